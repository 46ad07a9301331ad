"""Measured text: how wide a line is in points, and where it must break to fit a width.

Every drawing is laid out from these measurements before its figure exists, so that nothing is cut off or overlaps.
The font is DejaVu Sans, which matplotlib brings along: the same everywhere. Lengths are points (1/72 inch).
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import Any, Literal, NamedTuple

FONT = "DejaVu Sans"
LINE_HEIGHT = 1.32
"""Distance from one line to the next, as a multiple of the font size."""
_DPIS = (72, 100, 150)
"""Hinting makes widths depend a little on the resolution: the widest of these counts."""
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class TextStyle(NamedTuple):
    """Size in points, weight and color of a text."""

    size: float
    color: str = "#1a202c"
    weight: Literal["normal", "bold"] = "normal"

    @property
    def line_height(self) -> float:
        """Height of one line in points."""
        return self.size * LINE_HEIGHT


@lru_cache(maxsize=1)
def _glyphs() -> frozenset[int]:
    from matplotlib.font_manager import FontProperties, findfont
    from matplotlib.ft2font import FT2Font

    return frozenset(FT2Font(findfont(FontProperties(family=FONT))).get_charmap())


def drawable(text: str) -> str:
    """Return `text` on one line with a replacement character wherever the font has no glyph."""
    flat = " ".join(text.split())
    known = _glyphs()
    return "".join(
        character if ord(character) in known and unicodedata.category(character)[0] != "C" else _REPLACEMENT
        for character in flat
    )


@lru_cache(maxsize=4096)
def text_width(text: str, style: TextStyle) -> float:
    """Return the width of one line of drawable text in points."""
    from matplotlib.backends import backend_agg
    from matplotlib.font_manager import FontProperties

    make_renderer: Any = backend_agg.RendererAgg  # matplotlib does not annotate it
    font = FontProperties(family=FONT, size=style.size, weight=style.weight)
    return max(
        float(make_renderer(16, 16, dpi).get_text_width_height_descent(text, font, False)[0]) * 72 / dpi
        for dpi in _DPIS
    )


def wrap_text(text: str, style: TextStyle, width: float, max_lines: int = 0) -> tuple[str, ...]:
    """Break `text` into lines of at most `width` points, between words where that is possible.

    A word that is wider than a line is broken inside, after a mark such as a hyphen where one is near. With
    `max_lines` above 0, the last line ends in an ellipsis when there is more text than that.
    """
    lines: list[str] = []
    line = ""
    for word in drawable(text).split(" "):
        candidate = f"{line} {word}" if line else word
        if text_width(candidate, style) <= width:
            line = candidate
            continue
        if line:
            lines.append(line)
        line = word
        while text_width(line, style) > width:
            head = _longest_prefix(line, style, width)
            lines.append(head)
            line = line[len(head) :]
    lines.append(line)
    if max_lines and len(lines) > max_lines:
        last = lines[max_lines - 1]
        while last and text_width(f"{last} …", style) > width:
            last = last[:-1].rstrip()
        lines = [*lines[: max_lines - 1], f"{last} …"]
    return tuple(lines)


def _longest_prefix(text: str, style: TextStyle, width: float) -> str:
    length = 1  # one character always goes on a line, or wrapping would never end
    while length < len(text) and text_width(text[: length + 1], style) <= width:
        length += 1
    marks = [index + 1 for index in range(length // 2, length) if text[index] in "-_./:,"]
    return text[: marks[-1]] if marks else text[:length]


class Paragraph(NamedTuple):
    """Lines of one style that have been broken to a width."""

    lines: tuple[str, ...]
    style: TextStyle
    space_before: float = 0.0

    @property
    def height(self) -> float:
        """Height in points, with the space before."""
        return self.space_before + len(self.lines) * self.style.line_height

    @property
    def width(self) -> float:
        """Width of the widest line in points."""
        return max((text_width(line, self.style) for line in self.lines), default=0.0)


def paragraph(text: str, style: TextStyle, width: float, space_before: float = 0.0, max_lines: int = 0) -> Paragraph:
    """Break `text` to `width` points and return it with its style."""
    return Paragraph(wrap_text(text, style, width, max_lines), style, space_before)


def stack_height(paragraphs: tuple[Paragraph, ...]) -> float:
    """Return the height of paragraphs that are drawn below each other."""
    return sum(item.height for item in paragraphs)
