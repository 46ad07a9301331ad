"""Paths over all address pairs: what is due, what is kept of an answer, and the addresses that a plan rests on."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from inferswarm.errors import FabricError
from inferswarm.evidence.currency import Currency, with_facts
from inferswarm.evidence.drift import record_run
from inferswarm.evidence.store import ObservationStore
from inferswarm.evidence.types import now_ns
from inferswarm.fabric import messages as m
from inferswarm.resources.address_pairs import pairs_on_one_machine
from inferswarm.resources.types import Envelope
from inferswarm.resources.virtual import graph_of_envelopes
from inferswarm.swarm.known import currency_of, measured_paths, path_reports
from inferswarm.swarm.path_measuring import (
    MAX_PAIRS,
    PATH_PAYLOAD_BYTES,
    PathProber,
    addresses_of_plan,
    payloads_for,
)
from inferswarm.views.html import graph_html
from inferswarm.views.text import WIDTH, graph_text
from tests.unit.resources.resources_samples import make_interface, make_inventory
from tests.unit.views import sample_documents as sample

ENVELOPES = tuple(Envelope(name=name, threads=1, memory_bytes=10**9) for name in ("birch", "oak"))
GRAPH = graph_of_envelopes(make_inventory(), "swarm", ENVELOPES, {}, "none", backends=("torch",))
BIRCH, OAK = (node.id for node in GRAPH.nodes)
LO = msgspec.structs.replace(make_interface("lo", "127.0.0.1"), kind="loopback")
INTERFACES = (LO, make_interface("eth0", "10.0.0.1"))
SIZES = payloads_for(10**9)
REACHED = m.StageStarted(
    pid=1,
    endpoint="tcp://127.0.0.1:5",
    endpoints=(("127.0.0.1", "tcp://127.0.0.1:5"), ("10.0.0.1", "tcp://10.0.0.1:6")),
)


class Bench:
    """The paths between two Nodes, and stages that answer what a test wants."""

    def __init__(self, directory: Path) -> None:
        self.store = ObservationStore(directory)
        self.interfaces = INTERFACES
        self.late_ns = 0

    def currency(self) -> Currency:
        found = currency_of(GRAPH, "none", interfaces=self.interfaces)
        return found._replace(now_ns=int(now_ns()) + self.late_ns)

    @property
    def prober(self) -> PathProber:
        return PathProber(self.store, pairs_on_one_machine((BIRCH, OAK), self.interfaces), self.currency)

    def due(self, source: str = BIRCH, target: str = OAK) -> str | None:
        return self.prober.due(source, target, SIZES, False)

    def measure(
        self,
        seconds: dict[str, float],
        *,
        reached: m.StageStarted = REACHED,
        left_out: str = "",
        drifting: frozenset[str] = frozenset(),
        steady_sizes: tuple[int, ...] = (),
    ) -> None:
        """Keep what would come of a run: a latency by source address, and a failure where none is given."""
        command = self.prober.command(BIRCH, OAK, reached, SIZES)
        pairs = []
        for ends in command.pairs:
            if ends.source not in seconds:
                pairs.append(m.PairSamples(ends=ends, failure="connection refused"))
                continue
            sizes = tuple(size for size in command.payload_bytes if size < 2**24 or not left_out)
            ramp = 30.0 if ends.source in drifting else 0.0
            samples = tuple(
                tuple(
                    (seconds[ends.source] + size * 1e-9) * (1 + ramp * (size not in steady_sizes) * index / 20)
                    for index in range(21)
                )
                for size in sizes
            )
            pairs.append(m.PairSamples(ends=ends, payload_bytes=sizes, seconds=samples, left_out=left_out))
        answer = m.PathSamples(pairs=tuple(pairs))
        measured, unreached = self.prober.records(BIRCH, OAK, reached, answer)
        facts = self.currency().facts
        stated = [record_run(with_facts(item, facts), num_warm_up=5, interleaving="turns") for item in measured]
        self.store.append([*stated, *(with_facts(item, facts) for item in unreached)])


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "observations")


BOTH = {"127.0.0.1": 1e-4, "10.0.0.1": 3e-4}


def test_every_pair_of_addresses_is_asked_for_and_what_is_known_is_not_due(bench: Bench) -> None:
    assert bench.due() == "not measured yet"
    command = bench.prober.command(BIRCH, OAK, REACHED, SIZES)
    assert command.pairs == (m.PathEnds("127.0.0.1", "tcp://127.0.0.1:5"), m.PathEnds("10.0.0.1", "tcp://10.0.0.1:6"))
    assert command.payload_bytes == (*PATH_PAYLOAD_BYTES, 2**24)
    assert bench.prober.addresses_of(OAK) == ("127.0.0.1", "10.0.0.1")
    bench.measure(BOTH)
    assert bench.due() is None
    assert bench.due(OAK, BIRCH) == "not measured yet"


def test_what_changed_at_one_address_makes_the_path_due_and_says_which(bench: Bench) -> None:
    bench.measure(BOTH)
    bench.interfaces = (LO, make_interface("eth0", "10.0.0.8"))
    assert bench.due() == "10.0.0.8 → 10.0.0.8: not measured yet"
    (curve,) = measured_paths(bench.store, GRAPH, bench.currency())
    assert len(curve.evidence_ids) == 4


def test_a_pair_that_is_not_reached_is_known_for_a_day_and_never_counts_as_a_time(bench: Bench) -> None:
    bench.measure({"127.0.0.1": 1e-4})
    assert bench.due() is None
    assert len(bench.store.headers(metric="message-seconds")) == 4
    (report,) = path_reports(bench.store, GRAPH, bench.currency())
    assert [(pair.addresses[0], pair.used, pair.reason) for pair in report.pairs] == [
        ("127.0.0.1", True, ""),
        ("10.0.0.1", False, "connection refused"),
    ]
    bench.late_ns = 25 * 3600 * 10**9
    assert bench.due() == "10.0.0.1 → 10.0.0.1: not measured yet"


def test_a_path_of_which_no_pair_gets_through_stays_unknown_and_due(bench: Bench) -> None:
    bench.measure({})
    assert bench.due() == "no address pair got through"
    assert measured_paths(bench.store, GRAPH, bench.currency()) == ()


def test_an_address_where_nothing_listens_is_a_failure_with_its_reason(bench: Bench) -> None:
    reached = msgspec.structs.replace(REACHED, endpoints=REACHED.endpoints[:1], unbound=(("10.0.0.1", "in use"),))
    bench.measure(BOTH, reached=reached)
    (report,) = path_reports(bench.store, GRAPH, bench.currency())
    assert report.pairs[1].reason == "nothing listens at 10.0.0.1: in use"


def test_a_disturbed_pair_is_not_measured_again_once_another_is_known(bench: Bench) -> None:
    bench.measure(BOTH, drifting=frozenset(BOTH))
    due = bench.due()
    assert due is not None
    assert "drifted while it was measured" in due
    bench.measure(BOTH, drifting=frozenset({"10.0.0.1"}))
    assert bench.due() is None


def test_a_size_that_drifted_is_not_said_to_be_unmeasured(bench: Bench) -> None:
    bench.measure(BOTH, drifting=frozenset({"127.0.0.1"}), steady_sizes=(64, 65536))
    (report,) = path_reports(bench.store, GRAPH, bench.currency())
    (_, other) = report.pairs
    assert other.addresses[0] == "127.0.0.1"
    assert "4 KB: stale: drifted while it was measured" in other.reason


def test_a_pair_of_which_every_size_drifted_is_shown_with_the_reason(bench: Bench) -> None:
    """Mutation: report only pairs of which something holds."""
    bench.measure(BOTH, drifting=frozenset({"127.0.0.1"}))
    (report,) = path_reports(bench.store, GRAPH, bench.currency())
    assert [(pair.addresses[0], pair.used) for pair in report.pairs] == [("10.0.0.1", True), ("127.0.0.1", False)]
    assert report.pairs[1].times is None
    assert "4 KB: stale: drifted while it was measured" in report.pairs[1].reason
    assert "drifted while it was measured" in " ".join(graph_text(GRAPH, (report,)).split())
    bench.measure(BOTH, drifting=frozenset(BOTH))  # the steady records of before stay in use
    (report,) = path_reports(bench.store, GRAPH, bench.currency())
    assert [pair.used for pair in report.pairs] == [True, False]
    bench.measure({"10.0.0.1": 1e-4})  # what was seen last is what is said
    (report,) = path_reports(bench.store, GRAPH, bench.currency())
    assert report.pairs[1].reason == "connection refused"


def test_a_pair_whose_address_is_gone_is_shown_no_more(bench: Bench) -> None:
    bench.measure(BOTH)
    bench.interfaces = (LO,)
    (report,) = path_reports(bench.store, GRAPH, bench.currency())
    assert [pair.addresses[0] for pair in report.pairs] == ["127.0.0.1"]


def test_a_message_that_is_too_large_for_a_path_is_left_out_and_not_due(bench: Bench) -> None:
    bench.measure(BOTH, left_out="16,777,216 B would take 9 s there and back")
    assert bench.due() is None
    text = " ".join(graph_text(GRAPH, path_reports(bench.store, GRAPH, bench.currency())).split())
    assert "(16,777,216 B would take 9 s there and back)" in text


def test_more_pairs_than_are_tried_are_reported(bench: Bench) -> None:
    bench.interfaces = (LO, *(make_interface(f"eth{index}", f"10.0.{index}.1") for index in range(6)))
    assert len(pairs_on_one_machine((BIRCH, OAK), bench.interfaces)[BIRCH, OAK]) == 37
    addresses = bench.prober.addresses_of(OAK)
    reached = msgspec.structs.replace(REACHED, endpoints=tuple((item, f"tcp://{item}:9") for item in addresses))
    bench.measure(dict.fromkeys(addresses, 1e-4), reached=reached)
    (report,) = path_reports(bench.store, GRAPH, bench.currency())
    reasons = [pair.reason for pair in report.pairs]
    assert sum(reason.startswith(f"not tried: {MAX_PAIRS} other") for reason in reasons) == 37 - MAX_PAIRS
    assert bench.due() is None


def test_an_answer_to_another_question_is_refused(bench: Bench) -> None:
    for answer in (m.Done(), m.PathSamples(pairs=())):
        with pytest.raises(FabricError, match="samples of 2 address pairs"):
            bench.prober.records(BIRCH, OAK, REACHED, answer)


def test_records_state_addresses_interfaces_and_that_there_is_no_network(bench: Bench) -> None:
    bench.measure(BOTH)
    header = bench.store.headers(metric="message-seconds")[-1]
    stated = {item.key: item.value for item in header.context}
    assert (stated["address.source"], stated["address.target"]) == ("10.0.0.1", "10.0.0.1")
    assert (stated["run.interface.source"], stated["run.speed.target"], stated["mtu"]) == (
        "eth0",
        "10" + "0" * 8,
        "1500>1500",
    )
    assert stated["link.kind"] == "loopback"


def test_a_plan_takes_the_addresses_of_the_records_that_it_was_priced_with(bench: Bench) -> None:
    bench.measure(BOTH)
    ids = {
        header.context_value("address.source"): header.id for header in bench.store.headers(metric="message-seconds")
    }
    graph = sample.make_graph()
    plan = sample.make_plan(graph, 2)
    placements = tuple(
        msgspec.structs.replace(item, node_id=node) for item, node in zip(plan.placements, (BIRCH, OAK), strict=True)
    )
    assert plan.prediction is not None
    prediction = msgspec.structs.replace(plan.prediction, evidence_ids=(ids["10.0.0.1"] or "",))
    priced = msgspec.structs.replace(plan, placements=placements, prediction=prediction)
    assert addresses_of_plan(bench.store, priced) == (m.PathUse(BIRCH, OAK, "10.0.0.1", "10.0.0.1"),)
    assert addresses_of_plan(bench.store, msgspec.structs.replace(priced, prediction=None)) == ()
    assert addresses_of_plan(bench.store, msgspec.structs.replace(priced, placements=placements[:1])) == ()


def test_the_graph_shows_each_pair_with_its_numbers_and_why_it_is_not_used(bench: Bench) -> None:
    bench.measure(BOTH)
    reports = path_reports(bench.store, GRAPH, bench.currency())
    text = graph_text(GRAPH, reports)
    assert max(map(len, text.splitlines())) <= WIDTH
    rows = [line.split() for line in text.splitlines() if " → 127.0.0.1" in line or " → 10.0.0.1" in line]
    assert [" ".join(row) for row in rows] == [
        "birch → oak 127.0.0.1 → 127.0.0.1 208 µs 396 MB/s 994 MB/s yes",
        "one host, no network 10.0.0.1 → 10.0.0.1 608 µs 179 MB/s 982 MB/s no: median 200 µs slower",
    ]
    page = graph_html(GRAPH, reports)
    assert "median 200 µs slower at 4 KB" in page
    assert "one host, no network" in page
