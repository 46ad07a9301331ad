"""Colors of the drawings: muted, told apart by most color-blind readers, white text readable on each Node color."""

from __future__ import annotations

from inferswarm.resources.types import ResourceGraph

NODE_COLORS = ("#2b6a99", "#b45309", "#0f766e", "#7c3f8c", "#4d7c0f", "#9d2f4f", "#475569", "#8a6d1c")
MUTED = "#52606d"
"""Secondary text."""
LINE = "#334155"
"""Paths."""
FAINT = "#8a94a3"
"""The way back of a token, and links."""
CARD_EDGE = "#cbd2d9"
PANEL = "#f3f5f7"
TRACK = "#e4e8ec"
"""Free memory in a bar."""
RESERVED = "#a3adb8"
"""Reserved memory in a bar."""
ALARM = "#b91c1c"
"""What does not fit."""


def node_colors(graph: ResourceGraph) -> dict[str, str]:
    """Return a color for each Node id, by its place in the graph, so that one Node looks the same everywhere."""
    return {node.id: NODE_COLORS[index % len(NODE_COLORS)] for index, node in enumerate(graph.nodes)}
