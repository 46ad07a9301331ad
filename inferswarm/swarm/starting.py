"""What a swarm needs before its first process starts: checked Nodes, a state directory, a store, settings."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, get_args

from inferswarm.artifacts.pinning import HashPolicy
from inferswarm.artifacts.sources import USUAL_POLICY, SourcePolicy, check_source_policy
from inferswarm.errors import SpecError
from inferswarm.evidence.store import ObservationStore
from inferswarm.fabric.engines.local import LocalSettings
from inferswarm.fabric.envelope import refuse_unavailable
from inferswarm.resources.discovery import HostInventory, discover
from inferswarm.resources.types import Envelope
from inferswarm.resources.virtual import graph_of_envelopes
from inferswarm.swarm.state import (
    default_state_directory,
    ledger_of,
    prepare_state_directory,
    refuse_name,
    stores_directory,
)

MECHANISMS = ("auto", "cgroup-v1", "cgroup-v2", "rlimit-data")


class Preparation(NamedTuple):
    """What a swarm starts from. `temporary` is removed when it ends; None: its ledger is kept."""

    inventory: HostInventory
    envelopes: tuple[Envelope, ...]
    settings: LocalSettings
    store: ObservationStore
    temporary: Path | None
    hash_policy: HashPolicy = "pinning"
    """Which digests count where Nodes have stores."""
    source_policy: SourcePolicy = USUAL_POLICY
    """From whom their bytes may come."""

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Keep what was made for as long as nothing fails."""
        try:
            yield
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Remove what was temporary."""
        if self.temporary is not None:
            shutil.rmtree(self.temporary, ignore_errors=True)


def prepare(
    nodes: Sequence[Envelope],
    *,
    name: str | None,
    state: str | Path | None,
    port: int,
    mechanism: str,
    lease_seconds: float,
    spares: bool = False,
    stores: bool = False,
    store_quota_bytes: int | None = None,
    transfer_bytes_per_second: float | None = None,
    hash_policy: HashPolicy = "pinning",
    source_policy: SourcePolicy = USUAL_POLICY,
    keep_results: bool = False,
) -> Preparation:
    """Check what a swarm is to be, look at the machine, and make the directories; see `Swarm.local`.

    Raises SpecError for impossible Nodes, a mechanism that is not there or an unwritable state directory.
    """
    if mechanism not in MECHANISMS:
        raise SpecError("mechanism", mechanism, f"one of {list(MECHANISMS)}")
    refuse_unavailable(mechanism)
    if name is not None:
        refuse_name(name)
    if not 0 <= port <= 65535:
        raise SpecError("port", port, "0 to 65535")
    if hash_policy not in get_args(HashPolicy):
        raise SpecError("hash_policy", hash_policy, f"one of {', '.join(get_args(HashPolicy))}")
    if store_quota_bytes is not None and not (stores and store_quota_bytes > 0):
        raise SpecError("store_quota_bytes", store_quota_bytes, "a number of bytes, for a swarm with stores")
    if (rate := transfer_bytes_per_second) is not None and not (stores and 0 < rate < math.inf):
        raise SpecError("transfer_bytes_per_second", rate, "more than 0 and finite, for a swarm with stores")
    if check_source_policy(source_policy) != USUAL_POLICY and not stores:
        raise SpecError("source_policy", source_policy, f"{USUAL_POLICY}, or a swarm with stores")
    if keep_results and not stores:
        raise SpecError("keep_results", keep_results, "False, or a swarm with stores")
    directory = prepare_state_directory(Path(state) if state is not None else default_state_directory())
    store = ObservationStore(directory / "observations")
    salt = name or "local"
    inventory = discover(salt, directory, disk_paths=(directory,))
    if nodes:
        graph_of_envelopes(inventory, salt, nodes, {}, "none")  # refuses impossible ones before anything starts
    _remove_abandoned_directories()
    temporary = None if name else Path(tempfile.mkdtemp(prefix=f"inferswarm-{os.getpid()}-"))
    ledger = ledger_of(directory, name or "") if temporary is None else temporary / "swarm.ledger"
    settings = LocalSettings(
        scope=name or f"local-{secrets.token_hex(4)}",
        ledger=str(ledger),
        token=secrets.token_hex(32),
        port=port,
        mechanism=mechanism,
        lease_seconds=lease_seconds,
        keep_spares=spares,
        stores_directory=str(stores_directory(directory)) if stores else "",
        store_quota_bytes=store_quota_bytes,
        transfer_bytes_per_second=transfer_bytes_per_second,
        keep_results=keep_results,
        remove_directory=None if temporary is None else str(temporary),
    )
    return Preparation(inventory, tuple(nodes), settings, store, temporary, hash_policy, source_policy)


def _remove_abandoned_directories() -> None:
    """Remove what swarms of this user left whose every process was killed; the names hold their owners' pids."""
    for path in Path(tempfile.gettempdir()).glob("inferswarm-*-*"):
        pid = path.name.split("-")[1]
        if pid.isdigit() and not os.path.exists(f"/proc/{pid}") and path.stat().st_uid == os.getuid():
            shutil.rmtree(path, ignore_errors=True)
