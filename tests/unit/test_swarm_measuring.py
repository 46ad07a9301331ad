"""Measuring: everything once, each later time only what no record tells any more, with the reason shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inferswarm.errors import CommitRefused
from inferswarm.evidence.currency import Currency
from inferswarm.evidence.store import ObservationStore
from inferswarm.evidence.types import Observation, make_context, now_ns
from inferswarm.fabric import messages as m
from inferswarm.planner.problem import PlanningProblem
from inferswarm.resources.types import ComputeUnit, Envelope, Node, ResourceGraph
from inferswarm.resources.virtual import graph_of_envelopes
from inferswarm.strategies.dense.description import EMBEDDING, HEAD, DecoderDescription
from inferswarm.strategies.paths import LARGE_BYTES as LARGE_PAYLOAD_BYTES
from inferswarm.strategies.problem import make_problem
from inferswarm.strategies.shape import BLOCK, shape_digest
from inferswarm.swarm import measuring
from inferswarm.swarm.known import BASE_METRIC, base_of, currency_of, economics_of, why_unknown
from inferswarm.swarm.measuring import Prober
from inferswarm.swarm.node_measuring import HEADROOM
from inferswarm.swarm.path_measuring import PATH_PAYLOAD_BYTES
from inferswarm.swarm.targets import ProbeTarget, targets_of
from tests.unit.backends.backends_support import small_description
from tests.unit.resources.resources_samples import make_interface, make_inventory

MIB = 2**20
BASE_BYTES = 200 * MIB
ENVELOPES = (
    Envelope(name="birch", threads=1, memory_bytes=1250 * 10**6),
    Envelope(name="oak", threads=2, memory_bytes=600 * 10**6),
)
REPRESENTATIONS = ("bf16", "fp32")
LOOPBACK = (msgspec.structs.replace(make_interface("lo", "127.0.0.1"), kind="loopback"),)


class StagesOfRecord:
    """Answers what stages and agents would, at once and always the same, and keeps what was asked."""

    def __init__(self, torch_version: str) -> None:
        self.asked: list[Any] = []
        self._torch = torch_version

    def ask(self, question: m.OnNode, on_event: Callable[[object], None] | None = None) -> Any:
        command = question.command.command if isinstance(question.command, m.OnStage) else question.command
        self.asked.append((question.node_id, command))
        match command:
            case m.StartStage():
                endpoints = tuple((address, f"tcp://{address}:1") for address in command.addresses)
                return m.StageStarted(pid=1, endpoint=f"tcp://{question.node_id}", endpoints=endpoints)
            case m.InspectNode():
                return m.NodeReport(
                    mechanism="none",
                    limit_bytes=None,
                    charged_bytes=BASE_BYTES,
                    charged_peak_bytes=None,
                    mechanism_peak_bytes=None,
                    overflows=0,
                    resident_peak_bytes=0,
                    agent_resident_bytes=0,
                )
            case m.ProbePath():
                seconds = tuple((1e-4 + size * 1e-9,) * 15 for size in command.payload_bytes)
                pairs = tuple(
                    m.PairSamples(ends=ends, payload_bytes=command.payload_bytes, seconds=seconds)
                    for ends in command.pairs
                )
                return m.PathSamples(pairs=pairs, num_warm_up=10, conditions=(("load_average", "0.50"),))
            case m.ProbeBandwidth():
                record = Observation(
                    subject=command.subject,
                    metric="read-bandwidth",
                    unit="B/s",
                    samples=(1e10,) * 15,
                    context=make_context(threads=command.threads, set_bytes=command.set_bytes),
                    protocol="read-bandwidth/1",
                    taken_at_ns=now_ns(),
                    producer="test",
                )
                return m.Observed(observations=(record,), num_warm_up=1)
            case m.ProbeUnits():
                return m.Observed(observations=tuple(self._units(command)), num_warm_up=2)
            case _:
                return m.Done()

    def _units(self, command: m.ProbeUnits) -> list[Observation]:
        points = [(name, "step", 1, "0") for name in (EMBEDDING, BLOCK, HEAD)]
        points += [(name, "first-pass", size, "0") for name in (EMBEDDING, BLOCK) for size in (8, 64)]
        points += [(BLOCK, "step", 1, "0.008"), (BLOCK, "first-pass", 8, "0.008")]
        taken_at = now_ns()
        return [
            Observation(
                subject=command.compute_unit_id,
                metric=metric,
                unit="s",
                samples=(1e-3,) * 15,
                context=make_context(
                    backend="torch",
                    representation=command.representation,
                    cost_class=cost_class,
                    phase=phase,
                    positions=positions,
                    context_positions=0,
                    pause_seconds=pause,
                    num_units=4,
                    threads=command.threads,
                    model_shape=shape_digest(command.description),
                    torch=self._torch,
                    cpu="Test CPU",
                ),
                protocol="cost-classes/2",
                taken_at_ns=taken_at,
                producer="test",
            )
            for cost_class, phase, positions, pause in points
            for metric in ("unit-seconds", "step-overhead-seconds")
        ]


class Bench:
    """One swarm on paper, whose facts may change between two measurements."""

    def __init__(self, directory: Path) -> None:
        self.store = ObservationStore(directory)
        self.description: DecoderDescription = small_description()
        self.problem: PlanningProblem = make_problem(self.description)
        self.limits = tuple(envelope.memory_bytes for envelope in ENVELOPES)
        self.graph: ResourceGraph = self._graph("2.13.0")
        self.client = StagesOfRecord("2.13.0")
        self.has_stores = False

    @staticmethod
    def _graph(torch_version: str) -> ResourceGraph:
        inventory = make_inventory(torch_version=torch_version)
        return graph_of_envelopes(inventory, "swarm-1", ENVELOPES, {}, "none", backends=("torch",))

    def currency(self, mechanism: str = "none") -> Currency:
        return currency_of(self.graph, mechanism, interfaces=LOOPBACK)

    def install(self, torch_version: str) -> None:
        self.graph, self.client = self._graph(torch_version), StagesOfRecord(torch_version)

    @property
    def targets(self) -> tuple[ProbeTarget, ...]:
        names = [node.name for node in self.graph.nodes]
        return targets_of(self.graph, dict(zip(names, self.limits, strict=True)), self.has_stores)

    def measure(
        self, mechanism: str = "none", *, refresh: bool = False, only: frozenset[str] = frozenset()
    ) -> list[str]:
        """Measure, these Nodes only if there are any, and return what was shown, each once."""
        self.client.asked.clear()
        shown: dict[str, None] = {}
        prober = Prober(
            self.client,  # type: ignore[arg-type]
            self.store,
            make_inventory(interfaces=LOOPBACK),
            self.targets,
            self.currency(mechanism),
            lambda what, share: shown.setdefault(what),
            only,
        )
        prober.measure_nodes(refresh)
        prober.measure_requests(refresh)
        prober.measure_units(self.description, shape_digest(self.description), self.problem, self.graph, refresh)
        return [what for what in shown if "(" in what]


def requests_of_record(client: object, node: Node, unit: ComputeUnit) -> tuple[list[float], list[float]]:
    """Return what requests without computing would have taken."""
    return [1.5e-3] * 15, [2.5e-4] * 15


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(measuring, "measure_requests", requests_of_record)
    return Bench(tmp_path / "observations")


def test_everything_is_measured_once_and_what_holds_is_not_measured_again(bench: Bench) -> None:
    first = bench.measure()
    assert len(first) == 2 + 2 + 2 + 2 * len(REPRESENTATIONS)  # Nodes, paths, requests, cost classes
    assert all(what.endswith("(not measured yet)") for what in first)
    assert bench.measure() == []
    assert bench.client.asked == []


def test_a_newcomer_is_measured_with_its_paths_and_the_others_are_but_their_ends(bench: Bench) -> None:
    birch, oak = bench.graph.nodes
    shown = bench.measure(only=frozenset({oak.id}))
    assert len(shown) == 1 + 2 + 1 + len(REPRESENTATIONS)
    assert {what.split(":")[0].split(" (")[0] for what in shown} == {"oak", "path birch → oak", "path oak → birch"}
    assert {type(item) for node, item in bench.client.asked if node == birch.id} == {
        m.StartStage,
        m.StopStage,
        m.ProbePath,
    }


def test_what_was_measured_makes_every_curve(bench: Bench) -> None:
    bench.measure()
    found = economics_of(bench.store, shape_digest(bench.description), bench.problem, bench.graph, bench.currency())
    assert found.missing == ()
    assert len(found.paths) == 2
    assert len(found.services) == 2 * len(REPRESENTATIONS) * 6


def test_cost_classes_are_measured_at_two_times_apart_and_both_make_the_curve(bench: Bench) -> None:
    bench.measure()
    asked = [(node, item.representation) for node, item in bench.client.asked if isinstance(item, m.ProbeUnits)]
    assert asked[: len(asked) // 2] == asked[len(asked) // 2 :]
    assert len(set(asked)) == len(asked) // 2
    shape = shape_digest(bench.description)
    found = economics_of(bench.store, shape, bench.problem, bench.graph, bench.currency())
    known = {record.id for record in bench.store.query(metric="unit-seconds", context={"phase": "step"})}
    for curve in found.services:
        if (curve.cost_class, curve.phase) == (HEAD, "step"):
            assert len(known & set(curve.evidence_ids)) == 2


def test_while_a_plan_has_authority_requests_stay_unknown_and_the_rest_is_measured(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(client: object, node: Node, unit: ComputeUnit) -> tuple[list[float], list[float]]:
        raise CommitRefused("SCOPE_ALREADY_OWNED", "epoch 1 serves")

    monkeypatch.setattr(measuring, "measure_requests", refuse)
    bench.measure()
    assert not bench.store.headers(metric="request-opening-seconds")
    assert bench.store.headers(metric="unit-seconds")


def test_another_torch_stales_bases_and_cost_classes_and_no_path(bench: Bench) -> None:
    bench.measure()
    bench.install("2.14.0")
    again = bench.measure()
    assert not [what for what in again if what.startswith("path")]
    assert len(again) == 2 + 2 * len(REPRESENTATIONS)
    assert all(what.endswith("(stale: torch was '2.13.0', is '2.14.0' now)") for what in again)
    assert bench.measure() == []


def test_another_mechanism_stales_the_bases_alone(bench: Bench) -> None:
    bench.measure()
    again = bench.measure("cgroup-v2")
    assert [what.split(":")[0] for what in again] == ["birch", "oak"]
    assert all("runtime base" in what and "mechanism was 'none', is 'cgroup-v2' now" in what for what in again)


def test_a_base_with_a_courier_beside_it_is_another_base_and_both_are_kept(bench: Bench) -> None:
    bench.measure()
    bench.has_stores = True
    shown = bench.measure()
    assert shown
    assert all("(not measured yet)" in what for what in shown), shown
    assert bench.measure() == []
    bench.has_stores = False
    assert bench.measure() == []


def test_old_paths_are_measured_again_for_their_age(bench: Bench) -> None:
    bench.measure()
    late = bench.currency()
    late = late._replace(now_ns=late.now_ns + 8 * 86_400 * 10**9)
    subjects = {record.subject for record in bench.store.headers(metric="message-seconds")}
    reasons = {why_unknown(bench.store, late, subject, "message-seconds") for subject in subjects}
    assert len(subjects) == 2
    assert all(reason is not None and "s old, needed 0 to 604800 s" in reason for reason in reasons)


def test_asking_again_measures_everything_and_says_so(bench: Bench) -> None:
    first = bench.measure()
    again = bench.measure(refresh=True)
    assert len(again) == len(first)
    assert all(what.endswith("(asked for again)") for what in again)


def test_records_state_what_they_depend_on_and_how_their_run_went(bench: Bench) -> None:
    bench.measure()
    for record in bench.store.query():
        assert record.context_value("kernel") == "6.1"
        assert record.context_value("run.drift") == ("insufficient" if len(record.samples) < 15 else "none")
    path = bench.store.query(metric="message-seconds")[0]
    assert path.context_value("run.warm.up") == "10"
    assert path.context_value("run.interleaving") == "turns"
    assert path.context_value("run.load.average") == "0.50"
    assert path.context_value("run.clocks.mhz") == "unknown"
    base = bench.store.query(metric=BASE_METRIC)[0]
    assert (base.context_value("mechanism"), base.context_value("torch")) == ("none", "2.13.0")


def test_the_probe_of_a_node_may_fill_its_envelope_up_to_the_headroom(bench: Bench) -> None:
    """A table of 671 MB fits into an envelope of 1250 MB: no other limit may keep it from being measured."""
    bench.measure()
    budgets = {
        node: command.budget_bytes for node, command in bench.client.asked if isinstance(command, m.ProbeUnits)
    }
    for node, envelope in zip(bench.graph.nodes, ENVELOPES, strict=True):
        assert budgets[node.id] == int(HEADROOM * (envelope.memory_bytes - BASE_BYTES))
    assert budgets[bench.graph.nodes[0].id] > 262_144 * 640 * 4 + 16 * MIB


def test_paths_are_measured_in_both_directions_with_sleeping_ends(bench: Bench) -> None:
    bench.measure()
    asked = [command for _, command in bench.client.asked if isinstance(command, m.ProbePath)]
    assert [[(ends.source, ends.endpoint) for ends in command.pairs] for command in asked] == [
        [("127.0.0.1", "tcp://127.0.0.1:1")]
    ] * 2
    sizes = (*PATH_PAYLOAD_BYTES, LARGE_PAYLOAD_BYTES)
    assert all(command.pause_seconds > 0 and command.payload_bytes == sizes for command in asked)


def test_a_path_into_a_small_envelope_is_measured_without_the_largest_message(bench: Bench) -> None:
    bench.limits = (1250 * 10**6, BASE_BYTES + 8 * LARGE_PAYLOAD_BYTES)
    bench.measure()
    asked = [command for _, command in bench.client.asked if isinstance(command, m.ProbePath)]
    assert [command.payload_bytes for command in asked] == [PATH_PAYLOAD_BYTES] * 2
    assert bench.measure() == []


def test_a_base_is_the_highest_sample_of_the_newest_record_that_holds(bench: Bench) -> None:
    currency, target = currency_of(bench.graph, "none"), bench.targets[0]
    assert base_of(bench.store, target, currency) is None
    bench.measure()
    record = bench.store.query(target.node.id, BASE_METRIC)[-1]
    newer = msgspec.structs.replace(record, samples=(1.0, 3.0, 2.0), taken_at_ns=now_ns())
    other = msgspec.structs.replace(
        newer,
        samples=(9.0,),
        taken_at_ns=now_ns(),
        context=tuple(
            msgspec.structs.replace(item, value="2") if item.key == "threads" else item for item in newer.context
        ),
    )
    bench.store.append([newer, other])
    assert base_of(bench.store, target, currency_of(bench.graph, "none")) == 3
