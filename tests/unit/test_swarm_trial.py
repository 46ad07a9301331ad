"""A newcomer that answers wrongly is noted and not taken; the right answer opens what that shut."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from inferswarm.errors import FabricError
from inferswarm.evidence.health import health_of
from inferswarm.swarm import trial
from tests.unit.test_swarm_health import Bench
from tests.unit.test_swarm_health_checks import NODE, SEAT, Swarm, generated


def check(bench: Bench, swarm: Swarm) -> str:
    """Run the check of a trial, and return what the journal says of the Node's integrity."""
    bench.now += 1
    ground = SimpleNamespace(keeper=bench.keeper)
    trial._check(ground, SEAT.node, swarm, SEAT)  # type: ignore[arg-type]
    return integrity(bench)


def integrity(bench: Bench) -> str:
    return health_of(NODE, bench.keeper.events()).integrity.state


def test_a_wrong_answer_shuts_the_node_until_it_gives_the_right_one(tmp_path: Path) -> None:
    """Mutation: note what came out only when it went well, or raise nothing."""
    bench = Bench(tmp_path)
    assert integrity(bench) == "unknown"
    wrong = Swarm(Generate=generated(tokens=(1, 2, 3)))
    for _ in range(2):
        with pytest.raises(FabricError, match="birch was tried and does not work: the null model over birch"):
            check(bench, wrong)
        assert integrity(bench) == "quarantined"
    assert check(bench, Swarm()) == "trusted"
    assert [event.kind for event in bench.keeper.events()] == [
        "result-mismatch",
        "integrity-revalidation-failed",
        "integrity-revalidation-passed",
    ]


def test_a_newcomer_that_nothing_speaks_against_is_trusted_from_then_on(tmp_path: Path) -> None:
    assert check(Bench(tmp_path), Swarm()) == "trusted"
