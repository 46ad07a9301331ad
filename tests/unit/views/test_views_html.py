"""HTML of documents: the values are there, everything is escaped, and nothing needs a script or the network."""

from __future__ import annotations

from html.parser import HTMLParser

import msgspec
import pytest

from inferswarm.resources.types import NamedFact, observed
from inferswarm.views.html import decision_html, graph_html, plan_html
from inferswarm.views.markup import Markup, bar, element, joined, table
from tests.unit.views import sample_documents as sample

ATTACK = "<script>alert('x')</script><img src=x onerror=\"y\">&amp;"
VOID = {"br", "img", "hr"}


class Reader(HTMLParser):
    """Reads a fragment, checks that its tags are balanced, and keeps text and attributes."""

    def __init__(self, fragment: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.feed(fragment)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def documents(name: str = "amber") -> dict[str, str]:
    """Return the HTML of one document of each kind, with a Node of this name."""
    graph = sample.make_graph((name, "birch", "cedar"))
    node = msgspec.structs.replace(
        graph.nodes[0], facts=(NamedFact(name=name, fact=observed(name, f'read from "{name}"')),)
    )
    graph = msgspec.structs.replace(graph, nodes=(node, *graph.nodes[1:]))
    decision = sample.make_decision(graph, 2, reason=name)
    return {
        "graph": graph_html(graph),
        "plan": plan_html(sample.make_plan(graph)),
        "decision": decision_html(decision),
    }


@pytest.mark.parametrize("kind", ["graph", "plan", "decision"])
def test_hostile_names_are_text_and_nothing_else(kind):
    fragment = documents(ATTACK)[kind]
    reader = Reader(fragment)
    assert ATTACK in reader.text
    assert "<script" not in fragment
    assert reader.tags & {"script", "img", "iframe", "link", "object"} == set()
    assert [name for name, _ in reader.attributes if name.startswith("on")] == []
    assert {name for name, _ in reader.attributes} <= {"class", "style", "title", "open"}


@pytest.mark.parametrize("kind", ["graph", "plan", "decision"])
def test_fragments_stand_alone_and_suit_light_and_dark(kind):
    fragment = documents()[kind]
    assert Reader(fragment).tags
    for outside in ("http", "src=", "href=", "url(", "@import", "javascript"):
        assert outside not in fragment
    style = fragment.partition("<style>")[2].partition("</style>")[0]
    assert "color:inherit" in style
    assert "#" not in style  # every color is inherited or half transparent
    assert "white" not in style.replace("white-space", "")


def test_graph_values_and_provenance_are_there():
    reader = Reader(documents()["graph"])
    for value in ("amber", "birch", "Xeon 8-core", "380 MB", "148 MB", "cgroup-v1", "loopback", "virtual"):
        assert value in reader.text
    assert "unknown a loopback has no rate of its own" in reader.text
    assert ("title", "observed: resident size of an empty stage") in reader.attributes
    assert "representation:bf16" in reader.text


def test_plan_values_are_there_term_by_term():
    text = Reader(documents()["plan"]).text
    for value in (
        "embedding + blocks 0–14",
        "170 MB of 232 MB",
        "mutable state 4.42 MB",
        "scratch 2.56 MB",
        "logits 197 kB",
        "time to first token 672 ms (592 ms – 786 ms)",
        "decode rate 44.5 tok/s (38.0 – 50.5)",
        "stage-0 → stage-1 path 5.50 ms",
        "sha256:abababababab",
    ):
        assert value in text


def test_decision_values_are_there():
    text = Reader(documents()["decision"]).text
    for value in (
        "plan selected",
        "the only feasible family",
        "TECHNICALLY_INFEASIBLE",
        "RANKED",
        "node-0/ram: states 269 MB + mutable state 8.85 MB + scratch 2.56 MB + logits 197 kB = 281 MB of 232 MB",
        "proved optimal: 3 families",
        "lowest expected request time",
        "economics sha256:efefefefefef",
    ):
        assert value in text


def test_what_is_missing_is_said():
    graph = sample.make_graph(capacities=(None,))
    unpriced = Reader(plan_html(sample.make_plan(graph, priced=False))).text
    assert "no prediction: evidence is missing" in unpriced
    assert "170 MB of unknown" in unpriced
    assert "does not fit" in unpriced
    decision = msgspec.structs.replace(
        sample.make_decision(graph, 0),
        missing_evidence=("path amber → birch: never measured",),
        overrides=("cuts pinned after unit 7",),
        proved_optimal=False,
    )
    text = Reader(decision_html(decision)).text
    for value in ("no feasible plan", "never measured", "cuts pinned after unit 7", "not proved optimal"):
        assert value in text
    assert "<details open>" in decision_html(decision)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (element("td", "a < b & c"), "<td>a &lt; b &amp; c</td>"),
        (element("td", element("b", "<")), "<td><b>&lt;</b></td>"),
        (element("span", "x", title="\"'<>"), '<span title="&quot;&#x27;&lt;&gt;">x</span>'),
        (joined(["<", Markup("<i></i>")]), "&lt;<i></i>"),
        (
            table(("h",), [("<",)], frozenset({0})),
            '<table><thead><tr><th class="number">h</th></tr></thead>'
            '<tbody><tr><td class="number">&lt;</td></tr></tbody></table>',
        ),
        (
            bar((0.25, "red"), (2.0, "blue")),
            '<span class="bar"><i style="width:25.0%;background:red"></i>'
            '<i style="width:75.0%;background:blue"></i></span>',
        ),
    ],
)
def test_markup_escapes_whatever_is_not_markup(made, expected):
    assert made == expected


def test_concatenated_markup_is_no_longer_trusted():
    assert not isinstance(Markup("<b>") + "<i>", Markup)
