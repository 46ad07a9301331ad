"""Where a swarm keeps what outlives a process: identity salt, observations, ledgers of named swarms.

The environment is read here, at the edge, and nowhere below.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from inferswarm.errors import SpecError

_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")


def refuse_name(name: str) -> None:
    """Raise SpecError for a name that no swarm can have."""
    if not _NAME.fullmatch(name):
        raise SpecError("name", name, "1 to 40 letters, digits, '-' or '_'")


def ledger_of(directory: Path, name: str) -> Path:
    """Return where a named swarm's ledger is in its state directory. Raises SpecError for an impossible name."""
    refuse_name(name)
    return directory / f"{name}.ledger"


def stores_directory(directory: Path) -> Path:
    """Return where the Nodes' artifact stores are in a state directory: they outlive the swarms that fill them."""
    return directory.absolute() / "stores"


def default_state_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Return $XDG_STATE_HOME/inferswarm, or ~/.local/state/inferswarm.

    Raises SpecError when neither XDG_STATE_HOME nor HOME is set: the caller has to name a directory then.
    """
    base = environment.get("XDG_STATE_HOME")
    if base:
        return Path(base) / "inferswarm"
    home = environment.get("HOME")
    if not home:
        raise SpecError("state directory", "neither XDG_STATE_HOME nor HOME is set", "--state DIRECTORY (state=...)")
    return Path(home) / ".local" / "state" / "inferswarm"


def prepare_state_directory(path: Path) -> Path:
    """Create the directory for its owner only, prove that it can be written, and return it.

    Raises SpecError naming the path otherwise.
    """
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        probe = path / f".write-test-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise SpecError(
            "state directory", str(path), f"a directory that can be written ({error.strerror})"
        ) from error
    return path
