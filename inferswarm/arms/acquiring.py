"""What a realization acquired: required, received and held bytes by Node, what must be 0, and the origin's log."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from inferswarm.arms.origins import OriginProcess, Sent, bytes_of
from inferswarm.artifacts.sources import ORIGIN
from inferswarm.campaigns.arm import Arm
from inferswarm.planner.plan import ExecutionPlan
from inferswarm.planner.problem import Workload
from inferswarm.swarm import Model, Swarm
from inferswarm.swarm.state import stores_directory
from inferswarm.swarm.transfers_view import Transfers

BLOBS = "blobs"
"""Folder of a store that holds what is published."""


CACHE_VARIABLE = "XDG_CACHE_HOME"
"""Where a user's caches are, by the XDG base directory specification."""


class Moment(NamedTuple):
    """A place in both accounts, from which on something is looked at."""

    generation: int
    lines: int


def moment(swarm: Swarm, origin: OriginProcess) -> Moment:
    """Return the present place in the swarm's account and in the origin's log."""
    return Moment(swarm.transfers().generation, len(origin.lines()))


def held_bytes(state: Path, node: str) -> int:
    """Return the bytes of everything that a Node's store has published; 0 where there is no store yet."""
    folder = stores_directory(state) / node / BLOBS
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0


def required_bytes(swarm: Swarm, model: Model, plan: ExecutionPlan, workload: Workload) -> dict[str, int]:
    """Return what each Node of a plan needs of the model's files, by its name."""
    problem = swarm.problem(model, workload)
    return {
        item.node_name: model.opened.requirement(problem, item.participant, item.first_unit, item.end_unit).bytes
        for item in plan.placements
    }


def keep_empty_roots(arm: Arm, state: Path, nodes: Sequence[str], condition: str) -> None:
    """Keep what the stores hold before anything is acquired: `held-before-bytes`, which must be 0."""
    for node in nodes:
        arm.sample("held-before-bytes", held_bytes(state, node), "B", condition=condition, key=node)


def keep_acquired(
    arm: Arm,
    swarm: Swarm,
    origin: OriginProcess,
    since: Moment,
    required: dict[str, int],
    state: Path,
    condition: str,
) -> Transfers:
    """Keep what was acquired since a moment, and return it.

    Series by Node: `required-bytes`, `received-bytes` (from origin and peers), `from-peers-bytes`, `cache-hit-bytes`
    and `held-bytes`; `zero-invariant` by its name, with no sample where it is unknown; `ledger-origin-bytes` and
    `origin-log-bytes` (what the account says came from the origin, and what the origin says left it), and of each
    range of the log `refused-answers` (any status but 200 and 206).
    """
    moved = swarm.transfers().since(since.generation)
    for node, needed in required.items():
        received = moved.total("received", node=node)
        parts = {
            "required-bytes": needed,
            "received-bytes": received,
            "from-peers-bytes": received - moved.total("received", node=node, source=ORIGIN),
            "cache-hit-bytes": moved.total("cache_hit", node=node),
            "held-bytes": held_bytes(state, node),
        }
        for series, value in parts.items():
            arm.sample(series, value, "B", condition=condition, key=node)
    for zero in moved.zeros():
        if zero.value is not None:
            arm.sample("zero-invariant", zero.value, "B", condition=condition, key=zero.name)
    lines = origin.lines(since.lines)
    from_origin = moved.total("received", source=ORIGIN)
    arm.sample("ledger-origin-bytes", from_origin, "B", condition=condition, key="origin")
    arm.sample("origin-log-bytes", bytes_of(lines), "B", condition=condition, key="origin")
    refused = sum(line.status not in (200, 206) for line in lines)
    arm.sample("refused-answers", refused, "answers", condition=condition, key="origin")
    return moved


def log_document(lines: Sequence[Sent]) -> list[dict[str, object]]:
    """Return the origin's log as plain data: each file with its answers' ranges and bytes, in their order."""
    return [
        {"method": line.method, "path": line.path, "range": [line.start, line.end], "sent": line.sent}
        for line in lines
    ]


def account_document(moved: Transfers) -> list[dict[str, object]]:
    """Return the account as plain data: events and bytes by class and source."""
    return list(moved.table().to_dicts())


def open_remote(origin: OriginProcess, name: str, scratch: Path) -> Model:
    """Open a model of an origin by its address: its headers are fetched, and kept in the scratch directory.

    From here on this process and those that it starts have their caches there: an address of a run is nobody's later.
    """
    os.environ[CACHE_VARIABLE] = str(scratch / "cache")
    return Model(origin.url(name))
