"""Reading the project's Markdown: which files there are, and the links, code spans, blocks and anchors in them."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
_FENCE = re.compile(r"^( *)(`{3,}|~{3,})[^\n]*\n(.*?)^\1\2[ \t]*$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^()\s]*)(?:\s+\"[^\"]*\")?\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#* *$", re.MULTILINE)


class Page(NamedTuple):
    """What a page holds. `text` is the page without code blocks and comments."""

    text: str
    blocks: tuple[str, ...]
    spans: tuple[str, ...]
    links: tuple[str, ...]
    anchors: frozenset[str]


def pages(root: Path = ROOT) -> list[Path]:
    """Return every Markdown page that people read: at the top of the repository and below docs/."""
    return [*sorted(root.glob("*.md")), *sorted((root / "docs").rglob("*.md"))]


def read_page(source: str) -> Page:
    """Take a page apart."""
    blocks = tuple(match.group(3) for match in _FENCE.finditer(source))
    text = _COMMENT.sub("", _FENCE.sub("", source))
    spans = tuple(" ".join(span.split()) for span in _SPAN.findall(text))
    return Page(
        text=text,
        blocks=blocks,
        spans=spans,
        links=tuple(_LINK.findall(_SPAN.sub("", text))),
        anchors=_anchors(text),
    )


def _anchors(text: str) -> frozenset[str]:
    """Return the anchors of all headings, numbered where they repeat."""
    found: list[str] = []
    for heading in _HEADING.findall(text):
        anchor = slug(heading)
        repeats = sum(item == anchor or re.fullmatch(rf"{re.escape(anchor)}-\d+", item) is not None for item in found)
        found.append(anchor if not repeats else f"{anchor}-{repeats}")
    return frozenset(found)


def slug(heading: str) -> str:
    """Return the anchor of a heading: lowercase, punctuation dropped, spaces as hyphens."""
    plain = _LINK.sub(lambda match: match.group(0).split("](")[0].lstrip("!["), heading).replace("`", "")
    kept = [
        character
        for character in unicodedata.normalize("NFC", plain.lower())
        if character in " -_" or character.isalnum()
    ]
    return "".join(kept).replace(" ", "-")
