"""Which swarms live that use a store: each Node's agent holds a lock beside the store's root for as long as it runs.

The kernel releases it, however the agent ends, so that what a swarm that was killed keeps in a store can be told from
what a living one needs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from inferswarm.artifacts.store.layout import refusal
from inferswarm.errors import SpecError

_ENDING: Final = ".lives"


def scope_of(owner: str) -> str:
    """Return the scope of the swarm that keeps contents under an owner's name."""
    return owner.partition("/")[0]


class LivingScope:
    """Says that a scope uses a store, until it is closed or its process ends. Closing it twice is harmless."""

    def __init__(self, root: str | os.PathLike[str], scope: str) -> None:
        """Raises StoreRefused when it cannot be said there."""
        self._path = _mark(Path(root).absolute(), scope)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)  # who looks has it for an instant
        except OSError as error:
            raise refusal(Path(root), error, f"that {scope} uses it cannot be said") from error

    def close(self) -> None:
        """Say no more that it lives."""
        if self._descriptor >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1


def lives(root: Path, scope: str) -> bool:
    """Return whether a scope uses a store; whoever cannot be asked lives."""
    try:
        with dead_scope([root], scope):
            return False
    except SpecError:
        return True


@contextlib.contextmanager
def dead_scope(roots: Iterable[Path], scope: str) -> Iterator[None]:
    """Hold that a scope uses none of these stores: it cannot begin meanwhile. Raises SpecError while it lives."""
    with contextlib.ExitStack() as held:
        for root in roots:
            try:
                descriptor = os.open(_mark(root.absolute(), scope), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise _alive(root, scope, f"it cannot be told whether it has ({error.strerror})") from error
            held.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise _alive(root, scope, "an agent of it runs") from error
        yield


def _mark(root: Path, scope: str) -> Path:
    return root.with_name(f"{root.name}.{scope}{_ENDING}")


def _alive(root: Path, scope: str, why: str) -> SpecError:
    return SpecError("release", scope, f"a swarm that has ended; {why}, with the store {root}")
