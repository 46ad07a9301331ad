"""The watch of a swarm's health goes on after its Coordinator has changed the plan by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from inferswarm.documents import digest
from inferswarm.errors import ReplayDiverged
from inferswarm.evidence.events import Scope
from inferswarm.fabric import messages as m
from inferswarm.planner import ExecutionPlan
from inferswarm.swarm.health_checks import WORKLOAD
from inferswarm.swarm.health_watch import HealthWatch
from inferswarm.swarm.tiny_plans import Seat, tiny_plan
from tests.unit.planner.planner_cases import ENOUGH, make_graph
from tests.unit.test_swarm_health import Bench
from tests.unit.test_swarm_health_checks import stages

GRAPH = make_graph({"oak": ENOUGH, "elm": ENOUGH})
OAK, ELM = (Seat(node, unit) for node, unit in zip(GRAPH.nodes, GRAPH.compute_units, strict=True))
FIRST, NEXT = (tiny_plan((seat,), "null", "fp32", WORKLOAD) for seat in (OAK, ELM))
REPLAY = m.Replay(session=1)


class Coordinator:
    """One on paper, that may go on with another plan; its stage has refused three frames."""

    def __init__(self) -> None:
        self.epoch, self.plan = 1, FIRST
        self.on_fault: object = None
        self.asked: list[Any] = []

    def recover(self, plan: ExecutionPlan) -> None:
        self.epoch, self.plan = self.epoch + 1, plan

    def ask(self, question: Any) -> Any:
        self.asked.append(question)
        if isinstance(question, m.StageReports):
            return stages(("CHECKSUM_MISMATCH", 3))
        member = {"incarnation": "i", "pid": 1, "mechanism": "none", "lease_left_seconds": 1.0}
        nodes = tuple(m.NodeStatus(node_id=node.id, name=node.name, **member) for node in GRAPH.nodes)
        return m.SwarmStatus(
            scope="s",
            term=1,
            pid=1,
            nodes=nodes,
            epoch=self.epoch,
            plan_digest=digest(self.plan),
            refusals=(),
        )


def watched(directory: Path) -> tuple[Coordinator, HealthWatch, Bench]:
    coordinator, bench = Coordinator(), Bench(directory)
    watch = HealthWatch(bench.keeper, coordinator, lambda: GRAPH)  # type: ignore[arg-type]
    watch.runs(FIRST, 1, [NEXT])
    return coordinator, watch, bench


def concerned(bench: Bench, kind: str) -> set[Scope]:
    return {scope for event in bench.keeper.events() if event.kind == kind for scope in event.implicated}


def test_frames_are_looked_at_under_the_epoch_that_a_recovery_made(tmp_path: Path) -> None:
    """Mutation: keep the epoch that was realized, as if nothing else could come."""
    coordinator, watch, bench = watched(tmp_path)
    coordinator.recover(NEXT)
    watch.observe()
    assert [item.epoch for item in coordinator.asked if isinstance(item, m.StageReports)] == [2]
    assert Scope("node", ELM.node.id) in concerned(bench, "checksum-mismatch")
    assert Scope("node", OAK.node.id) not in concerned(bench, "checksum-mismatch")


def test_a_replay_that_diverges_is_held_against_the_plan_of_that_moment(tmp_path: Path) -> None:
    coordinator, watch, bench = watched(tmp_path)
    coordinator.recover(NEXT)
    watch.saw_fault(ReplayDiverged(3, "other digests"), REPLAY)
    assert concerned(bench, "result-mismatch") == {
        Scope("implementation", f"null/fp32@{ELM.unit.id}"),
        Scope("compute-unit", ELM.unit.id),
    }


def test_a_plan_that_nobody_here_knows_of_is_not_taken_for_the_last_one(tmp_path: Path) -> None:
    coordinator, watch, bench = watched(tmp_path)
    coordinator.recover(tiny_plan((OAK, ELM), "null", "fp32", WORKLOAD))
    watch.observe()
    assert [type(item) for item in coordinator.asked] == [m.Status]
    watch.saw_fault(ReplayDiverged(3, "other digests"), REPLAY)
    assert concerned(bench, "result-mismatch") == set()
    coordinator.recover(NEXT)
    watch.observe()
    assert Scope("node", ELM.node.id) in concerned(bench, "checksum-mismatch")
