"""The highest term that a Node has seen: it only rises, survives its agents, and without it nobody is obeyed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from inferswarm.errors import EngineError
from inferswarm.fabric.agent_terms import TermFile


def test_a_lower_term_is_refused_and_a_higher_one_is_kept_for_the_next_agent(tmp_path: Path) -> None:
    terms = TermFile(tmp_path / "node", "scope")
    assert terms.highest() == 0
    assert [terms.admit(term) for term in (3, 3, 2, 5, 4)] == [True, True, False, True, False]
    again = TermFile(tmp_path / "node", "scope")
    assert again.highest() == 5
    assert not again.admit(4)


def test_what_another_agent_of_the_node_has_seen_counts_at_once(tmp_path: Path) -> None:
    old, new = TermFile(tmp_path, "scope"), TermFile(tmp_path, "scope")
    assert old.admit(1)
    assert new.admit(2)
    assert not old.admit(1)


def test_agents_that_raise_it_at_once_never_lower_it(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda term: TermFile(tmp_path, "scope").admit(term), [*range(1, 40), *range(40, 1, -1)]))
    assert TermFile(tmp_path, "scope").highest() == 40


def test_a_file_that_was_written_in_part_changes_nothing(tmp_path: Path) -> None:
    TermFile(tmp_path, "scope").admit(7)
    (tmp_path / "term.new").write_bytes(b'{"scope":"sc')  # as an agent that was killed would leave it
    terms = TermFile(tmp_path, "scope")
    assert terms.highest() == 7
    assert terms.admit(8)
    assert TermFile(tmp_path, "scope").highest() == 8


@pytest.mark.parametrize("body", [b"", b"7", b'{"scope":"scope"}', b'{"scope":"another","term":7}'], ids=repr)
def test_a_file_that_tells_nothing_about_this_scope_is_no_term_of_zero(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "term").write_bytes(body)
    with pytest.raises(EngineError, match=str(tmp_path)):
        TermFile(tmp_path, "scope")


def test_a_term_that_cannot_be_kept_is_not_obeyed(tmp_path: Path) -> None:
    terms = TermFile(tmp_path / "node", "scope")
    (tmp_path / "node").rmdir()
    with pytest.raises(EngineError, match="cannot be kept"):
        terms.admit(1)
