"""The boundary journal: what was sent comes back byte for byte, within its bounds, or is said not to be there."""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferswarm.errors import FabricError
from inferswarm.fabric.stage_journal import BoundaryJournal, JournalSettings, KeptStep


@pytest.fixture(autouse=True)
def closing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close every journal that a test makes."""
    with contextlib.ExitStack() as made:
        begin = BoundaryJournal.__init__

        def noted(journal: BoundaryJournal, settings: JournalSettings | None = None) -> None:
            begin(journal, settings)
            made.callback(journal.close)

        monkeypatch.setattr(BoundaryJournal, "__init__", noted)
        yield


def payload(session: int, start: int, size: int) -> bytes:
    return random.Random(session * 10_000 + start).randbytes(size)


def fill(journal: BoundaryJournal, session: int, steps: list[tuple[int, int]], size: int = 10) -> list[KeptStep]:
    kept = [KeptStep(start, count, payload(session, start, size * count)) for start, count in steps]
    for step in kept:
        journal.append(session, *step)
    return kept


CHUNKS = [(0, 8), (8, 8), (16, 3), (19, 1), (20, 1)]


@pytest.mark.parametrize("memory", [10_000, 100, 0])
def test_steps_come_back_as_they_were_sent_from_memory_and_from_files(tmp_path: Path, memory: int) -> None:
    journal = BoundaryJournal(JournalSettings(memory, 10_000, str(tmp_path)))
    ones, twos = fill(journal, 1, CHUNKS), fill(journal, 2, CHUNKS[:2])
    assert list(journal.read(1, 0, 21)) == ones
    assert list(journal.read(1, 8, 20)) == ones[1:4]
    assert list(journal.read(2, 0, 16)) == twos
    assert journal.memory_bytes <= memory
    assert journal.memory_bytes + journal.spilled_bytes == 210 + 160
    assert list(tmp_path.iterdir()) == [], "a file of a stage that is killed would stay"


@pytest.mark.parametrize(("first", "end"), [(0, 22), (1, 21), (0, 18), (8, 8), (21, 22)])
def test_what_is_not_kept_as_whole_steps_is_refused_before_anything_is_sent(first: int, end: int) -> None:
    journal = BoundaryJournal()
    fill(journal, 1, CHUNKS)
    with pytest.raises(FabricError, match="0 to 21"):
        journal.read(1, first, end)


def test_a_session_that_was_cut_goes_on_from_there(tmp_path: Path) -> None:
    journal = BoundaryJournal(JournalSettings(80, 10_000, str(tmp_path)))
    kept = fill(journal, 1, CHUNKS)
    journal.cut(1, 19)
    assert journal.kept(1) == (0, 19)
    kept[3:] = fill(journal, 1, [(19, 2), (21, 1)])
    assert list(journal.read(1, 0, 22)) == kept


def test_a_gap_begins_the_journal_anew() -> None:
    journal = BoundaryJournal()
    fill(journal, 1, [(0, 8)])
    fill(journal, 1, [(12, 1), (13, 1)])
    assert journal.kept(1) == (12, 14)


def test_the_largest_session_is_dropped_whole_when_there_is_no_room_and_the_others_stay(tmp_path: Path) -> None:
    journal = BoundaryJournal(JournalSettings(100, 220, str(tmp_path)))
    small = fill(journal, 1, [(0, 8)])
    fill(journal, 2, CHUNKS)
    assert journal.dropped_sessions == 0
    fill(journal, 2, [(21, 2)])
    assert journal.dropped_sessions == 1
    assert journal.kept(2) == (21, 23)
    assert list(journal.read(1, 0, 8)) == small
    assert journal.memory_bytes + journal.spilled_bytes == 80 + 20


def test_a_step_larger_than_everything_is_not_kept_and_breaks_nothing() -> None:
    journal = BoundaryJournal(JournalSettings(100))
    other = fill(journal, 2, [(0, 5)])
    fill(journal, 1, [(0, 1)])
    fill(journal, 1, [(1, 20), (21, 1)])
    assert journal.kept(1) == (21, 22)
    assert list(journal.read(2, 0, 5)) == other


def test_what_ends_gives_its_room_back(tmp_path: Path) -> None:
    journal = BoundaryJournal(JournalSettings(100, 300, str(tmp_path)))
    fill(journal, 1, CHUNKS)
    journal.forget(1)
    assert (journal.memory_bytes, journal.spilled_bytes, journal.kept(1)) == (0, 0, (0, 0))
    fill(journal, 2, CHUNKS)
    journal.close()
    assert (journal.memory_bytes, journal.spilled_bytes, journal.dropped_sessions) == (0, 0, 0)


def test_a_disk_that_is_full_costs_the_session_its_journal_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = BoundaryJournal(JournalSettings(80, 10_000, str(tmp_path)))
    fill(journal, 1, CHUNKS[:1])

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "pwrite", full)
    fill(journal, 1, CHUNKS[1:2])
    assert (journal.kept(1), journal.dropped_sessions, journal.memory_bytes) == ((0, 0), 1, 0)
    monkeypatch.undo()
    fill(journal, 1, CHUNKS[2:])
    assert journal.kept(1) == (16, 21)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_it_gives_back_what_it_was_given_last_or_says_that_it_is_not_there(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    directory = chance.choice((None, str(tmp_path)))
    settings = JournalSettings(chance.choice((0, 50, 200)), chance.choice((0, 100, 400)), directory)
    journal = BoundaryJournal(settings)
    given: dict[int, list[KeptStep]] = {1: [], 2: [], 3: []}
    for _ in range(60):
        session, act = chance.choice((1, 2, 3)), chance.random()
        first, end = journal.kept(session)
        if act < 0.75:
            start = end + chance.choice((0, 0, 0, 0, 0, 3))
            step = KeptStep(start, chance.randrange(1, 5), chance.randbytes(chance.randrange(80)))
            journal.append(session, *step)
            given[session] = [*given[session], step] if start == end else [step]
        elif act < 0.9:
            length = chance.randrange(first, end + 1)
            journal.cut(session, length)
            given[session] = [step for step in given[session] if step.start + step.num_positions <= length]
        else:
            journal.forget(session)
            given[session] = []
        assert 0 <= journal.memory_bytes <= settings.memory_bytes
        assert 0 <= journal.spilled_bytes <= (0 if directory is None else settings.spill_bytes)
        for number, steps in given.items():
            first, end = journal.kept(number)
            kept = [] if first == end else list(journal.read(number, first, end))
            assert kept == steps[len(steps) - len(kept) :]
            given[number] = kept
    journal.close()
    assert (journal.memory_bytes, journal.spilled_bytes) == (0, 0)
