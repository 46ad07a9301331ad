"""The plans that arms go through, by name: representation, Nodes in order, and the unit behind each cut.

A route without cuts is cut where the planner thinks best. The Nodes are those of `prediction.UNLIKE`; units are those
of SmolLM2-135M: its token table, 30 blocks and its head.
"""

from __future__ import annotations

from typing import NamedTuple

from inferswarm.errors import SpecError


class Route(NamedTuple):
    """One plan that is asked for: representation, Nodes in order, and the unit behind which each cut is (or any)."""

    representation: str
    nodes: tuple[str, ...]
    cuts: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Name it for keys and files."""
        return "-".join((self.representation, *self.nodes, *map(str, self.cuts)))


def _routes(*texts: str) -> tuple[Route, ...]:
    """Read routes as they are written here: `bf16 amber birch 20`."""
    found = []
    for text in texts:
        representation, *rest = text.split()
        nodes = tuple(item for item in rest if not item.isdecimal())
        found.append(Route(representation, nodes, tuple(int(item) for item in rest if item.isdecimal())))
    return tuple(found)


GRIDS = {
    "one-to-three-nodes": _routes(
        "bf16 amber",
        "bf16 birch",
        "bf16 amber cedar",
        "bf16 amber birch",
        "bf16 birch cedar",
        "bf16 cedar birch 8",
        "bf16 amber birch 22",
        "bf16 amber birch cedar",
        "bf16 cedar amber birch 6 14",
        "fp32 amber",
        "fp32 birch",
        "fp32 amber cedar",
        "fp32 amber birch",
        "fp32 birch cedar 20",
        "fp32 cedar birch 10",
        "fp32 amber birch cedar",
    ),
    "two-nodes-cut": _routes(
        "bf16 amber",
        "bf16 birch",
        "bf16 amber birch 5",
        "bf16 amber birch 10",
        "bf16 amber birch 16",
        "bf16 amber birch 21",
        "bf16 amber birch 26",
        "bf16 birch amber 5",
        "bf16 birch amber 16",
        "bf16 birch amber 26",
    ),
    "smallest": _routes("bf16 amber", "bf16 amber birch 10"),
}
"""By name; the smallest is for trying an arm out."""


def grid(name: str) -> tuple[Route, ...]:
    """Return the routes of a grid. Raises SpecError for a name that is none."""
    if name not in GRIDS:
        raise SpecError("grid", name, f"one of {', '.join(GRIDS)}")
    return GRIDS[name]
