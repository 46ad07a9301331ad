"""A matplotlib figure whose coordinates are points from the upper left corner, and the few shapes drawn on it.

matplotlib is loaded when the first canvas is made, and used through its objects only: no pyplot, no global state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from inferswarm.views.typeset import FONT, Paragraph, TextStyle

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyBboxPatch

Point = tuple[float, float]


class Rect(NamedTuple):
    """A rectangle: left and top edge, width and height, in points; y grows downwards."""

    left: float
    top: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """The right edge."""
        return self.left + self.width

    @property
    def bottom(self) -> float:
        """The bottom edge."""
        return self.top + self.height

    @property
    def center(self) -> Point:
        """The middle."""
        return self.left + self.width / 2, self.top + self.height / 2

    def overlaps(self, other: Rect, gap: float = 0.0) -> bool:
        """Whether the two come closer than `gap` in both directions."""
        return (
            self.left < other.right + gap
            and other.left < self.right + gap
            and self.top < other.bottom + gap
            and other.top < self.bottom + gap
        )


class Canvas:
    """One figure of `width` × `height` points on white paper.

    Shapes and texts carry a `gid`, which becomes their id in SVG.
    """

    def __init__(self, width: float, height: float) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.figure: Figure = Figure(figsize=(width / 72, height / 72), dpi=100, facecolor="white")
        FigureCanvasAgg(self.figure)
        self._axes = self.figure.add_axes((0, 0, 1, 1))
        self._axes.set_xlim(0, width)
        self._axes.set_ylim(height, 0)
        self._axes.set_axis_off()
        self._order = 1

    def _next_order(self) -> int:
        self._order += 1
        return self._order

    def box(
        self,
        rect: Rect,
        face: str,
        edge: str = "none",
        radius: float = 5.0,
        gid: str | None = None,
        dashed: bool = False,
        line_width: float = 1.0,
    ) -> FancyBboxPatch:
        """Draw a rectangle with round corners."""
        from matplotlib.patches import FancyBboxPatch

        patch = FancyBboxPatch(
            (rect.left, rect.top),
            rect.width,
            rect.height,
            boxstyle=f"round,pad=0,rounding_size={min(radius, rect.width / 2, rect.height / 2)}",
            facecolor=face,
            edgecolor=edge,
            linewidth=line_width,
            linestyle="--" if dashed else "-",
            zorder=self._next_order(),
            gid=gid,
        )
        self._axes.add_patch(patch)
        return patch

    def band(self, rect: Rect, face: str, within: FancyBboxPatch) -> None:
        """Fill a rectangle, clipped to the round corners of `within`."""
        from matplotlib.patches import Rectangle

        patch = Rectangle(
            (rect.left, rect.top), rect.width, rect.height, facecolor=face, linewidth=0, zorder=self._next_order()
        )
        self._axes.add_patch(patch)
        patch.set_clip_path(within)

    def text(
        self, x: float, top: float, line: str, style: TextStyle, anchor: Literal["left", "center", "right"], gid: str
    ) -> None:
        """Draw one line of text whose line box begins at `top`; `x` is its left end, middle or right end."""
        self._axes.text(
            x,
            top + style.size * 1.02,
            line,
            family=FONT,
            fontsize=style.size,
            fontweight=style.weight,
            color=style.color,
            horizontalalignment=anchor,
            verticalalignment="baseline",
            zorder=self._next_order(),
            parse_math=False,
            usetex=False,
            gid=gid,
        )

    def paragraphs(
        self,
        x: float,
        top: float,
        items: tuple[Paragraph, ...],
        gid: str,
        anchor: Literal["left", "center", "right"] = "left",
    ) -> float:
        """Draw paragraphs below each other from `top`, and return where the next thing may begin."""
        for item in items:
            top += item.space_before
            for line in item.lines:
                self.text(x, top, line, item.style, anchor, gid)
                top += item.style.line_height
        return top

    def line(
        self, points: tuple[Point, ...], color: str, gid: str, arrow: bool = True, line_width: float = 1.4
    ) -> None:
        """Draw a line through `points`, with an arrow head at its end when `arrow`."""
        from matplotlib.patches import FancyArrowPatch
        from matplotlib.path import Path

        self._axes.add_patch(
            FancyArrowPatch(
                path=Path(list(points)),
                arrowstyle="-|>,head_length=6,head_width=3" if arrow else "-",
                mutation_scale=1,
                shrinkA=0,
                shrinkB=0,
                color=color,
                linewidth=line_width,
                capstyle="butt",
                joinstyle="round",
                zorder=self._next_order(),
                gid=gid,
            )
        )
