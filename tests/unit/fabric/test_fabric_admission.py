"""A replay is admitted where the running stages can compute the record again, and refused by what differs."""

from __future__ import annotations

import msgspec
import pytest

from inferswarm.backends.base import UnitThreads
from inferswarm.backends.partition import Partition, Step, UnitRepresentation
from inferswarm.errors import AdmissionError
from inferswarm.fabric.admission import check_replay
from inferswarm.fabric.frames import Address
from inferswarm.fabric.ledger import SessionRow
from inferswarm.fabric.running import RunningPlan
from tests.integration.null_swarm import null_plan

RECORDED = Partition(
    primitive="torch",
    representation="bf16+fp32",
    representations=(UnitRepresentation(0, 3, "bf16"), UnitRepresentation(3, 6, "fp32")),
    kernel="k",
    threads=(UnitThreads(0, 6, 1),),
    session_positions=40,
    steps=(Step(0, 16),),
)
MOVED = (UnitRepresentation(0, 2, "bf16"), UnitRepresentation(2, 6, "fp32"))
PURE = {"representation": "fp32", "representations": msgspec.UNSET}


def check(
    model: str = "sha256:a", recorded_model: str = "sha256:a", prompt: tuple[int, ...] = (1,), **changes: object
) -> None:
    running = RunningPlan(
        plan=null_plan(("amber", "birch")),
        plan_digest="p",
        realization="r",
        epoch=1,
        stages=(),
        endpoints=(),
        pids=(),
        run_ahead=2,
        vocabulary_size=10,
        address=Address("s", 1, "r", "p"),
        model=model,
    )
    record = SessionRow(
        number=7,
        epoch=1,
        state="COMPLETED",
        reason="",
        prompt=prompt,
        max_tokens=1,
        stop=(),
        partition=b"",
        replay_of=0,
        at_ns=1,
        model=recorded_model,
    )
    check_replay(running, record, msgspec.structs.replace(RECORDED, **changes), RECORDED)


@pytest.mark.parametrize("recorded_model", ["sha256:a", ""], ids=["of its model", "from before models were recorded"])
def test_what_can_be_computed_again_is_admitted(recorded_model: str) -> None:
    check(recorded_model=recorded_model)


@pytest.mark.parametrize(
    ("changes", "field", "found"),
    [
        ({"prompt": ()}, "session", 7),
        ({"model": "sha256:b", "kernel": "l"}, "model", "sha256:b"),
        ({"model": ""}, "model", "one of which no bytes were read"),
        (PURE, "partition representation", "fp32"),
        ({"representations": MOVED}, "partition representation", "bf16 in units 0 to 1, fp32 in units 2 to 5"),
        ({"kernel": "l"}, "partition kernel", "l"),
    ],
    ids=str,
)
def test_what_cannot_is_refused_by_what_differs(changes: dict[str, object], field: str, found: object) -> None:
    with pytest.raises(AdmissionError) as refused:
        check(**changes)
    assert (refused.value.field, refused.value.found) == (field, found)
