"""What arms count, by hand: differences, gaps, orders of plans, epochs with authority."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from inferswarm.arms.answers import Rows
from inferswarm.arms.disturbing import keep_authority
from inferswarm.arms.endpoint import session_of
from inferswarm.arms.exactness import Cut, read_cuts
from inferswarm.arms.grids import GRIDS, grid
from inferswarm.arms.inventory import differing_bytes
from inferswarm.arms.splits import Split, proportional_split
from inferswarm.arms.streams import Followed, Seen
from inferswarm.arms.times import Round, Times, compare, keep_order
from inferswarm.errors import SpecError
from inferswarm.fabric import events as ev
from inferswarm.planner.plan import Interval, Prediction
from inferswarm.resources.types import Envelope
from inferswarm.swarm.event_log import SwarmEvent

NOTHING = "sha256:" + "0" * 64


class Kept(NamedTuple):
    series: str
    value: float
    key: str


class Notes:
    """Stands where an arm stands, and remembers samples."""

    def __init__(self) -> None:
        self.samples: list[Kept] = []

    def sample(self, series: str, value: float, unit: str, *, key: str = "", **_: Any) -> None:
        self.samples.append(Kept(series, value, key))

    def values(self, series: str) -> list[float]:
        return [item.value for item in self.samples if item.series == series]


def followed(*positions: int) -> Followed:
    seen = tuple(Seen(float(index), position, position % 7) for index, position in enumerate(positions))
    return Followed("q", seen, None, "")


@pytest.mark.parametrize(
    ("positions", "gaps", "repeated"),
    [
        ((5, 6, 7), 0, 0),
        ((5, 7, 8), 1, 0),
        ((5, 6, 6, 7), 0, 1),
        ((5, 6, 5, 6), 0, 1),
        ((5, 9, 7, 8), 3, 1),
        ((), 0, 0),
    ],
)
def test_gaps_and_repeats_are_counted(positions: tuple[int, ...], gaps: int, repeated: int) -> None:
    stream = followed(*positions)
    assert (stream.num_gaps, stream.num_repeated) == (gaps, repeated)
    assert stream.num_unlike_ledger == len(positions), "without a record nothing is as the ledger has it"


def test_the_wait_is_that_for_the_token_behind_the_longest_gap() -> None:
    times = (0.0, 1.0, 1.1, 4.0, 4.1)
    stream = Followed("q", tuple(Seen(at, 5 + index, 0) for index, at in enumerate(times)), None, "")
    assert stream.longest_wait(1.05) == pytest.approx(2.95), "the token at 1.1 was on its way"
    with pytest.raises(ValueError, match="empty"):
        stream.longest_wait(5.0)


def test_rows_that_differ_or_are_missing_are_counted() -> None:
    mine = Rows((1,), (2, 3), ("a", "b"))
    assert mine.differing(Rows((1,), (2, 3), ("a", "b"))) == 0
    assert mine.differing(Rows((1,), (2, 3), ("a", "c"))) == 1
    assert mine.differing(Rows((1,), (2,), ("a",))) == 1
    assert (differing_bytes(b"abc", b"abc"), differing_bytes(b"abc", b"axcd")) == (0, 2)


@pytest.mark.parametrize(
    ("memory", "split"),
    [
        ((1, 1), Split(("n0", "n1"), (15,))),
        ((3, 1), Split(("n0", "n1"), (23,))),
        ((1, 1000), Split(("n1",), ())),
        ((2, 1, 1), Split(("n0", "n1", "n2"), (15, 23))),
    ],
)
def test_a_split_in_proportion_to_memory_covers_the_chain(memory: tuple[int, ...], split: Split) -> None:
    nodes = [Envelope(name=f"n{i}", threads=1, memory_bytes=size) for i, size in enumerate(memory)]
    assert proportional_split(32, nodes) == split


def activated(epoch: int) -> ev.EpochActivated:
    return ev.EpochActivated(epoch=epoch, realization_id=f"r{epoch}", plan_digest=NOTHING)


def authority(*documents: Any) -> list[float]:
    notes = Notes()
    events = [
        SwarmEvent(at_ns=str(index), source="authority", number=index, kind=type(item).__name__, document=item)
        for index, item in enumerate(documents)
    ]
    keep_authority(notes, events)  # type: ignore[arg-type]
    return notes.values("epochs-with-authority")


def test_an_epoch_keeps_authority_until_it_is_lost_or_gives_it_away() -> None:
    lost = ev.EpochLost(epoch=1, state="NON_EXECUTABLE", reason="a stage was lost")
    settling = ev.EpochSettling(epoch=2, successor=3)
    assert authority(activated(1), lost, activated(2), settling, activated(3)) == [1, 1, 1]
    assert authority(activated(1), activated(2)) == [1, 2]


def predicted(seconds: float) -> Prediction:
    interval = Interval(0.9 * seconds, seconds, 1.2 * seconds)
    return Prediction(
        ttft=interval, inter_token=interval, request=interval, decode_rate=interval, terms=(), evidence_ids=()
    )


def test_errors_noise_and_orders_come_from_medians() -> None:
    def cell(expected: float, *taken: float) -> list[Round]:
        return [Round(predicted(expected), tuple(Times(value, value, value) for value in taken))]

    found = compare("a", cell(1.0, 1.0, 1.1, 1.5), "request")
    assert (found.measured, found.is_inside) == (1.1, True)
    assert found.error == pytest.approx(0.1)
    assert found.noise == pytest.approx(0.1 / 1.1)
    assert not compare("a", cell(1.0, 1.3), "ttft").is_inside

    notes = Notes()
    cells = {"a": cell(1.0, 1.0), "b": cell(1.04, 0.9), "c": cell(2.0, 1.9), "d": cell(3.0, 1.8)}
    agreement = keep_order(notes, cells)  # type: ignore[arg-type]
    assert agreement == (5, 4), "a and b are too close to be told apart; c and d came out the other way round"
    assert notes.values("order-agreement") == [0.8]


def test_what_parameters_write_is_read() -> None:
    assert read_cuts("a+b:4 a+b+c:4,9") == (Cut(("a", "b"), (4,)), Cut(("a", "b", "c"), (4, 9)))
    assert Cut(("a", "b"), (4,)).name == "a-b-4"
    assert session_of("chatcmpl-local-1f-12-0123456789abcdef") == 12
    names = [route.name for route in GRIDS["one-to-three-nodes"]]
    assert len({*names}) == len(names)
    with pytest.raises(SpecError, match="one of"):
        grid("nothing")
