"""Which pages belong to which session: every sequence of calls leaves a table that passes its own audit."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from inferswarm.backends.torch_backend.pages import PAGE_POSITIONS, PageTable
from inferswarm.errors import FabricError

PAGES, SESSIONS = 12, 4


class PagesMachine(RuleBasedStateMachine):
    """Any calls in any order, against a model that only knows lengths."""

    def __init__(self):
        super().__init__()
        self.table = PageTable(PAGES, SESSIONS)
        self.lengths: dict[str, int] = {}

    names = st.sampled_from(["a", "b", "c", "d", "e"])

    @rule(name=names)
    def open(self, name):
        if name in self.lengths or len(self.lengths) == SESSIONS:
            with pytest.raises(FabricError):
                self.table.open(name)
        else:
            self.table.open(name)
            self.lengths[name] = 0

    @rule(name=names, count=st.one_of(st.integers(1, 3), st.integers(60, 200)))
    def extend(self, name, count):
        if name not in self.lengths:
            with pytest.raises(FabricError, match="not open"):
                self.table.extend(name, count)
            return
        wanted = self.lengths | {name: self.lengths[name] + count}
        if sum(-(-length // PAGE_POSITIONS) for length in wanted.values()) > PAGES:
            before = self.table.pages(name)
            with pytest.raises(FabricError, match="more pages"):
                self.table.extend(name, count)
            assert self.table.pages(name) == before
        else:
            kept = self.table.pages(name)
            self.table.extend(name, count)
            assert self.table.pages(name)[: len(kept)] == kept, "pages that hold positions moved"
            self.lengths = wanted

    @rule(name=names, share=st.floats(0, 1.2))
    def truncate(self, name, share):
        length = int(self.lengths.get(name, 0) * share)
        if name not in self.lengths or length > self.lengths[name]:
            with pytest.raises(FabricError):
                self.table.truncate(name, length)
        else:
            self.table.truncate(name, length)
            self.lengths[name] = length

    @rule(name=names)
    def close(self, name):
        if name in self.lengths:
            self.table.close(name)
            del self.lengths[name]
        else:
            with pytest.raises(FabricError, match="not open"):
                self.table.close(name)

    @invariant()
    def audit(self):
        self.table.check_integrity()
        for name, length in self.lengths.items():
            assert self.table.length(name) == length
            pages, run = self.table.pages(name), self.table.first_of_run(name)
            assert (run is not None) == (
                len(pages) > 0 and list(pages) == list(range(pages[0], pages[0] + len(pages)))
            )


PagesMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPages = PagesMachine.TestCase


def test_page_zero_is_a_page_like_any_other():
    table = PageTable(1, 1)
    table.open("a")
    table.extend("a", 1)
    assert table.pages("a") == (0,)
    assert table.first_of_run("a") == 0


def test_sessions_that_grow_in_turns_stay_in_one_piece():
    table = PageTable(16, 4)
    for name in "abcd":
        table.open(name)
    for _ in range(4):
        for name in "abcd":
            table.extend(name, PAGE_POSITIONS)
    assert all(table.first_of_run(name) is not None for name in "abcd")
    table.check_integrity()


def test_a_session_with_a_neighbor_behind_it_continues_elsewhere():
    table = PageTable(4, 3)
    for name in "abc":
        table.open(name)
        table.extend(name, 1)
    table.close("b")
    table.extend("a", 2 * PAGE_POSITIONS)
    assert table.first_of_run("a") is None
    assert sorted(table.pages("a") + table.pages("c")) == [0, 1, 2, 3]
    with pytest.raises(FabricError, match="0 of 4 are free"):
        table.extend("a", PAGE_POSITIONS)
    table.check_integrity()


def test_an_unopened_session_has_no_length():
    with pytest.raises(FabricError, match="'ghost' is not open"):
        PageTable(1, 1).length("ghost")


@pytest.mark.parametrize(
    ("spoil", "finding"),
    [
        (lambda table: table._free.add(table.pages("a")[0]), "free and owned"),
        (lambda table: table._sessions["b"].pages.append(table.pages("a")[0]), "two sessions"),
        (lambda table: table._free.pop(), "lost"),
        (lambda table: setattr(table._sessions["a"], "length", 999), "reaches 16 pages"),
    ],
)
def test_the_audit_finds_a_spoiled_table(spoil, finding):
    table = PageTable(PAGES, SESSIONS)
    for name in "ab":
        table.open(name)
        table.extend(name, 70)
    spoil(table)
    with pytest.raises(AssertionError, match=finding):
        table.check_integrity()
