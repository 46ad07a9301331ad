"""Small pictures of what an arm measured, which a notebook shows by itself; made without any global state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from inferswarm.arms.times import Round, compare
from inferswarm.swarm.displays import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, ACCENT = "#1f2933", "#9aa5b1", "#2f6f8f"
SIZE = (6.4, 3.4)
"""Inches: legible in a report, and a few ten kilobytes."""


def _figure(num_axes: int) -> tuple[Figure, list[Axes]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, dpi=90, layout="constrained")
    FigureCanvasAgg(figure)
    axes = [figure.add_subplot(1, num_axes, number + 1) for number in range(num_axes)]
    for item in axes:
        item.spines[["top", "right"]].set_visible(False)
        item.tick_params(labelsize=8)
    return figure, axes


def draw_predictions(cells: Mapping[str, Sequence[Round]], fields: Sequence[str]) -> Picture:
    """Draw predicted against measured milliseconds, each cell a point with its interval; the line is equality."""
    figure, axes = _figure(len(fields))
    for axis, field in zip(axes, fields, strict=True):
        rows = [compare(cell, rounds, field) for cell, rounds in cells.items()]
        measured = [row.measured * 1e3 for row in rows]
        predicted = [row.predicted * 1e3 for row in rows]
        spread = (
            [(row.predicted - row.low) * 1e3 for row in rows],
            [(row.high - row.predicted) * 1e3 for row in rows],
        )
        axis.errorbar(measured, predicted, yerr=spread, fmt="o", ms=3.5, color=ACCENT, ecolor=MUTED, lw=0.8)
        end = max(measured + predicted) * 1.1
        axis.plot((0, end), (0, end), color=INK, lw=0.8)
        axis.set_xlim(0, end)
        axis.set_ylim(bottom=0)
        axis.set_xlabel(f"measured {field.replace('_', ' ')}, ms", fontsize=9)
        axis.set_ylabel("predicted, ms", fontsize=9)
    return Picture(figure)


def draw_samples(samples: Mapping[str, Sequence[float]], label: str) -> Picture:
    """Draw every sample of several conditions as a point, in the order taken, a row for each condition."""
    figure, (axis,) = _figure(1)
    names = list(samples)
    for row, name in enumerate(names):
        values = samples[name]
        offsets = [row + 0.5 * (index / max(1, len(values) - 1) - 0.5) for index in range(len(values))]
        axis.plot(values, offsets, "o", ms=4, color=ACCENT, alpha=0.8)
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.set_ylim(len(names) - 0.4, -0.6)
    axis.set_xlim(left=0)
    axis.set_xlabel(label, fontsize=9)
    return Picture(figure)
