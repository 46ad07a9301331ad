"""Drawings of plans and resource graphs, and the files that they are saved as.

A drawing is a matplotlib Figure of its own. Saved as SVG it has the same bytes every time for the same documents
and matplotlib version: ids are hashed with a fixed salt, glyphs are paths, and no date is written.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferswarm.views.graph_drawing import draw_graph
from inferswarm.views.plan_drawing import draw_plan, plan_network

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_graph", "draw_plan", "figure_png", "figure_svg", "plan_network", "save_figure"]

PNG_DPI = 150
_SAVING: dict[Any, Any] = {
    "svg.hashsalt": "inferswarm",
    "svg.fonttype": "path",
    "savefig.bbox": None,
    "savefig.facecolor": "auto",
    "savefig.edgecolor": "auto",
    "savefig.transparent": False,
}
"""A notebook's own settings must not change the picture."""


def figure_svg(figure: Figure) -> str:
    """Return the figure as SVG text; equal drawings give equal text."""
    import matplotlib

    stream = io.StringIO()
    with matplotlib.rc_context(_SAVING):
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": "InferSwarm"})
    return stream.getvalue()


def figure_png(figure: Figure) -> bytes:
    """Return the figure as a PNG image with 150 dots per inch."""
    import matplotlib

    stream = io.BytesIO()
    with matplotlib.rc_context(_SAVING):
        figure.savefig(stream, format="png", dpi=PNG_DPI, metadata={"Software": "InferSwarm"})
    return stream.getvalue()


def save_figure(figure: Figure, path_svg: Path | str, path_png: Path | str) -> None:
    """Write the figure as SVG and as PNG. Raises OSError when a file cannot be written."""
    Path(path_svg).write_text(figure_svg(figure), encoding="utf-8")
    Path(path_png).write_bytes(figure_png(figure))
