"""HTML that escapes by default: text becomes markup through `element`, which escapes children and attributes."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

STYLE = (
    ".inferswarm{font-family:system-ui,sans-serif;font-size:13px;line-height:1.45;color:inherit}"
    ".inferswarm table{border-collapse:collapse;margin:.35em 0 .8em;font-size:inherit;color:inherit}"
    ".inferswarm th,.inferswarm td{text-align:left;vertical-align:top;padding:.2em .75em;"
    "border-bottom:1px solid rgba(128,128,128,.35);background:none}"
    ".inferswarm th{font-weight:600;opacity:.75;white-space:nowrap}"
    ".inferswarm .long{overflow-wrap:anywhere}"
    ".inferswarm td.number,.inferswarm th.number{text-align:right;font-variant-numeric:tabular-nums;"
    "white-space:nowrap}"
    ".inferswarm .title{font-weight:650;font-size:1.12em}"
    ".inferswarm .faint{opacity:.7}"
    ".inferswarm .badge{padding:.05em .5em;border-radius:.7em;background:rgba(128,128,128,.22);white-space:nowrap}"
    ".inferswarm .good{background:rgba(34,150,84,.25)}"
    ".inferswarm .bad{background:rgba(214,58,58,.25)}"
    ".inferswarm .bar{display:inline-block;width:9em;height:.6em;border-radius:.3em;overflow:hidden;"
    "background:rgba(128,128,128,.22);vertical-align:middle;white-space:nowrap;font-size:inherit}"
    ".inferswarm .bar i{display:inline-block;height:100%;vertical-align:top}"
    ".inferswarm summary{cursor:pointer;font-weight:600}"
)
"""Colors are inherited or half transparent, so that the same markup suits light and dark notebooks."""


class Markup(str):
    """HTML that may be placed in a page as it is. Only this module makes it."""

    __slots__ = ()


Content = str | Markup


def element(name: str, *children: Content, kind: str = "", **attributes: str) -> Markup:
    """Return one element; children that are not Markup and all attribute values are escaped. `kind` is its class."""
    pairs = {**({"class": kind} if kind else {}), **attributes}
    written = "".join(f' {key}="{html.escape(value, quote=True)}"' for key, value in pairs.items())
    return Markup(f"<{name}{written}>{joined(children)}</{name}>")


def joined(children: Iterable[Content]) -> Markup:
    """Return the children one after the other, escaped where they are not Markup."""
    return Markup(
        "".join(child if isinstance(child, Markup) else html.escape(child, quote=True) for child in children)
    )


def table(headers: Sequence[str], rows: Iterable[Sequence[Content]], numbers: frozenset[int] = frozenset()) -> Markup:
    """Return a table; the columns in `numbers` are set to the right."""

    def cells(tag: str, row: Sequence[Content]) -> Markup:
        return joined(element(tag, cell, kind="number" if i in numbers else "") for i, cell in enumerate(row))

    body = joined(element("tr", cells("td", row)) for row in rows)
    return element("table", element("thead", element("tr", cells("th", headers))), element("tbody", body))


def badge(text: str, quality: str = "") -> Markup:
    """Return a short text on a colored ground; `quality` is "good", "bad" or nothing."""
    return element("span", text, kind=f"badge {quality}".strip())


def bar(*parts: tuple[float, str]) -> Markup:
    """Return a small bar with (share, CSS color) parts from the left; shares are cut at the whole."""
    left = 1.0
    pieces: list[Markup] = []
    for share, color in parts:
        width = min(max(share, 0.0), left)
        left -= width
        pieces.append(element("i", style=f"width:{width * 100:.1f}%;background:{color}"))
    return element("span", joined(pieces), kind="bar")


def details(summary: Content, *children: Content, opened: bool = False) -> Markup:
    """Return a part of the page that folds under its summary; it needs no script."""
    inner = joined((element("summary", summary), *children))
    return Markup(f"<details{' open' if opened else ''}>{inner}</details>")


def page(*children: Content) -> Markup:
    """Return the whole fragment with its style, ready for a notebook's output."""
    return element("div", element("style", Markup(STYLE)), joined(children), kind="inferswarm")


def whole_page(title: str, fragment: Markup) -> str:
    """Return a fragment as a page of its own, in which the browser itself forbids scripts, files and the network."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    head = Markup(
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width">'
    )
    body = element("body", fragment, style="margin:1.5em;color-scheme:light dark")
    return "<!doctype html>\n" + element("html", element("head", head, element("title", title)), body, lang="en")
