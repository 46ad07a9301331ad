"""The keeper of a swarm's health: what is accepted, what deviates, what is measured again and what goes to plans."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from inferswarm.documents import read_document
from inferswarm.errors import SpecError
from inferswarm.evidence.currency import Currency
from inferswarm.evidence.drift import record_run
from inferswarm.evidence.events import Scope
from inferswarm.evidence.report import HealthReport
from inferswarm.evidence.store import ObservationStore
from inferswarm.evidence.types import Observation, question_of
from inferswarm.resources.types import ComputeUnit, MemoryResource, Node, ResourceGraph, observed
from inferswarm.strategies.overheads import OPENING_METRIC, OVERHEAD_METRIC, TOKEN_METRIC
from inferswarm.swarm.health import HealthKeeper, Reviewed
from inferswarm.swarm.known import why_unknown
from tests.command_line import run_command
from tests.unit.evidence.evidence_samples import NOW, SECOND, make_event, make_record, make_table, noisy

UNIT, PATH = Scope("compute-unit", "cpu-1"), Scope("path", "node-1->node-2")
GRAPH = ResourceGraph(
    swarm_id="swarm-1",
    nodes=(Node(id="node-1", name="birch", host_id="host-1", virtual=False, facts=()),),
    compute_units=(
        ComputeUnit(
            id="cpu-1", node_id="node-1", kind="cpu", name="CPU", threads=4, capabilities=(), memory_ids=("ram-1",)
        ),
    ),
    memory_resources=(
        MemoryResource(
            id="ram-1",
            node_id="node-1",
            kind="ram",
            capacity_bytes=observed(10**9, "test"),
            reserved_bytes=observed(0, "test"),
            enforcement="none",
        ),
    ),
    links=(),
)


class Bench:
    """A keeper on paper: records are given to it as if they had been measured, at times of its own clock."""

    def __init__(self, directory: Path) -> None:
        self.store = ObservationStore(directory / "observations")
        self.now = NOW
        self.directory = directory
        self.keeper = HealthKeeper(directory, self.store, clock=lambda: self.now)

    def measure(self, center: float, subject: str = "cpu-1", metric: str = "unit-seconds") -> Observation:
        self.now += 60 * SECOND
        samples = noisy(center, seed=(self.now // SECOND) % 1000)
        record = record_run(
            make_record(subject, metric, samples, at_ns=self.now), num_warm_up=2, interleaving="turns"
        )
        self.store.append([record])
        return record

    def review(self) -> Reviewed:
        """Review what was measured last."""
        since_ns = self.now - 1
        self.now += SECOND
        return self.keeper.review(since_ns, GRAPH)

    def accept(self) -> int:
        self.now += SECOND
        currency = Currency(make_table(), self.now)
        return len(self.keeper.accept(currency, accepted_by="operator", reason="new", num_runs=1).baselines)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_deviation_is_doubted_confirmed_and_only_then_an_alert(bench: Bench) -> None:
    record = bench.measure(1e-3)
    assert bench.accept() == 1
    bench.measure(2e-3)
    first = bench.review()
    assert first.raised == ()
    (doubt,) = first.doubts
    assert (doubt.question, "measured again to confirm" in doubt.reason) == (question_of(record), True)
    bench.measure(2e-3)
    second = bench.review()
    assert [alert.subject for alert in second.raised] == ["cpu-1"]
    assert second.doubts == ()
    (health,) = bench.keeper.in_force(GRAPH)
    assert (health.scope, health.performance.state) == (UNIT, "degraded")


def test_a_deviation_that_does_not_repeat_is_none(bench: Bench) -> None:
    bench.measure(1e-3)
    bench.accept()
    bench.measure(2e-3)
    assert bench.review().doubts != ()
    bench.measure(1e-3)
    assert bench.review() == Reviewed((), (), ())
    assert bench.keeper.report().alerts == ()


def degrade(bench: Bench) -> None:
    bench.measure(1e-3)
    bench.accept()
    for _ in range(2):
        bench.measure(2e-3)
        bench.review()
    assert len(bench.keeper.report().alerts) == 1


def test_what_an_alert_is_about_is_measured_again_each_time_until_records_end_it(bench: Bench) -> None:
    degrade(bench)
    (doubt,) = bench.keeper.doubts(GRAPH)
    currency = Currency(make_table(), bench.now, undetermined_applies=True)
    assert why_unknown(bench.store, currency, "cpu-1", "unit-seconds") is None
    doubting = why_unknown(bench.store, currency._replace(doubts=(doubt,)), "cpu-1", "unit-seconds")
    assert doubting == "stale: degraded: the median is 2.00 times of what was accepted"
    bench.measure(1e-3)
    assert len(bench.review().doubts) == 1
    bench.measure(1e-3)
    ended = bench.review()
    assert len(ended.cleared) == 1
    assert (bench.keeper.doubts(GRAPH), bench.keeper.report().alerts) == ((), ())
    assert bench.keeper.in_force(GRAPH)[0].performance.state == "as-expected"


def test_a_doubt_ends_with_the_record_that_answers_it(bench: Bench) -> None:
    degrade(bench)
    doubts = bench.keeper.doubts(GRAPH)
    bench.measure(2e-3)
    currency = Currency(make_table(), bench.now, undetermined_applies=True, doubts=doubts)
    assert why_unknown(bench.store, currency, "cpu-1", "unit-seconds") is None


def test_a_scope_is_degraded_until_its_last_alert_has_ended(bench: Bench) -> None:
    for metric in ("unit-seconds", "step-overhead-seconds"):
        bench.measure(1e-3, metric=metric)
    bench.accept()
    for _ in range(2):
        since_ns = bench.now
        for metric in ("unit-seconds", "step-overhead-seconds"):
            bench.measure(2e-3, metric=metric)
        bench.now += SECOND
        bench.keeper.review(since_ns, GRAPH)
    assert len(bench.keeper.report().alerts) == 2
    for metric, state in (("unit-seconds", "degraded"), ("step-overhead-seconds", "as-expected")):
        for _ in range(2):
            bench.measure(1e-3, metric=metric)
            bench.review()
        assert bench.keeper.in_force(GRAPH)[0].performance.state == state


def test_a_run_that_drifted_too_far_is_measured_again_and_not_used(bench: Bench) -> None:
    """An older steady record stays in use; without one there is none, and the reason says what was wrong."""
    ramp = tuple(1e-3 * (1 + step / 10) for step in range(24))
    bench.now += SECOND
    drifted = record_run(make_record(samples=ramp, at_ns=bench.now), num_warm_up=2, interleaving="turns")
    bench.store.append([drifted])
    (doubt,) = bench.review().doubts
    assert doubt.reason.startswith("it drifted while it was measured")
    currency = Currency(make_table(), bench.now, undetermined_applies=True)
    reason = why_unknown(bench.store, currency, "cpu-1", "unit-seconds")
    assert reason is not None
    assert reason.startswith("stale: drifted while it was measured")
    steady = bench.measure(1e-3)
    later = record_run(make_record(samples=ramp, at_ns=bench.now + 1), num_warm_up=2, interleaving="turns")
    bench.store.append([later])
    currency = currency._replace(now_ns=bench.now + SECOND)
    assert why_unknown(bench.store, currency, "cpu-1", "unit-seconds") is None
    assert bench.store.query(newest=1, steady_only=True) == (steady,)


@pytest.mark.parametrize(
    ("metric", "subject"),
    [
        (OVERHEAD_METRIC, "cpu-1"),
        (OPENING_METRIC, "node-1"),
        (TOKEN_METRIC, "node-1"),
    ],
)
def test_whatever_prices_a_plan_is_measured_again_when_it_drifted(bench: Bench, metric: str, subject: str) -> None:
    """Else one burst of load while requests are measured leaves a model without a plan."""
    ramp = tuple(1e-3 * (1 + step / 10) for step in range(24))
    bench.now += SECOND
    record = make_record(subject, metric, ramp, at_ns=bench.now)
    bench.store.append([record_run(record, num_warm_up=2, interleaving="alone")])
    (doubt,) = bench.review().doubts
    assert doubt.question == question_of(record)


def test_an_exceeded_envelope_has_its_base_measured_again(bench: Bench) -> None:
    bench.measure(2e8, "node-1", "runtime-base-bytes")
    assert bench.keeper.doubts(GRAPH) == ()
    memory = Scope("memory-resource", "ram-1")
    bench.now += SECOND
    bench.keeper.note([make_event("envelope-exceeded", memory, at_ns=bench.now)])
    (doubt,) = bench.keeper.doubts(GRAPH)
    assert doubt.question[:2] == ("node-1", "runtime-base-bytes")
    bench.measure(3e8, "node-1", "runtime-base-bytes")
    bench.review()
    assert bench.keeper.doubts(GRAPH) == ()
    assert bench.keeper.in_force(GRAPH)[0].qualification.state == "applicable"


def test_only_what_a_plan_could_use_goes_to_the_planner(bench: Bench) -> None:
    own = (Scope("node", "node-1"), UNIT, Scope("implementation", "torch/bf16@cpu-1"))
    others = (Scope("node", "node-9"), PATH, Scope("implementation", "torch/bf16@cpu-9"), Scope("artifact", "a"))
    for scope in (*own, *others):
        bench.keeper.note([make_event("integrity-checked", scope)])
    assert {item.scope for item in bench.keeper.in_force(GRAPH)} == set(own)
    assert {item.scope for item in bench.keeper.report().scopes} == {*own, *others}


def test_what_cannot_be_accepted_is_named_and_nothing_is_accepted_twice(bench: Bench) -> None:
    bench.measure(1e-3)
    few = make_record("node-1", "runtime-base-bytes", (2e8,) * 4, at_ns=bench.now)
    bench.store.append([few])
    bench.now += SECOND
    currency = Currency(make_table(), bench.now)
    accepted = bench.keeper.accept(currency, accepted_by="operator", reason="new")
    assert [item.subject for item in accepted.baselines] == ["cpu-1"]
    assert len(accepted.left_out) == 1
    assert "samples to accept" in accepted.left_out[0]
    assert bench.keeper.accept(currency, accepted_by="operator", reason="again").baselines == ()
    bench.measure(2e-3)
    (second,) = bench.keeper.accept(
        currency._replace(now_ns=bench.now), accepted_by="operator", reason="slower"
    ).baselines
    assert (second.version, second.accepted_by) == (2, "operator")
    with pytest.raises(SpecError, match="accepted_by"):
        bench.keeper.accept(currency, accepted_by=" ", reason="new")


def test_everything_is_in_force_after_a_restart(bench: Bench) -> None:
    degrade(bench)
    again = HealthKeeper(bench.directory, bench.store, clock=lambda: bench.now)
    assert msgspec.to_builtins(again.report()) == msgspec.to_builtins(bench.keeper.report())


def test_the_command_line_lists_what_the_journal_says(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    degrade(bench)
    listed = run_command(capsys, "health", "list", "--state", str(bench.directory), "--json")
    report = read_document(HealthReport, listed.out, "standard output")
    assert (listed.status, report) == (0, bench.keeper.report())
    text = run_command(capsys, "health", "list", "--state", str(bench.directory)).out
    assert "alert: unit-seconds of cpu-1, 2.00 times worse" in text
    refused = run_command(capsys, "health", "revalidate", "no-such-kind x", "--state", str(bench.directory))
    assert refused.status == 1
    assert "a kind and an id" in refused.err
