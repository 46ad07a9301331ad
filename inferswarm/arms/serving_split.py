"""A plan over several Nodes, realized and asked: everything that its stages and Nodes count, and its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from inferswarm.arms.questions import Question, ids_of
from inferswarm.campaigns.arm import Arm
from inferswarm.fabric.proc import mapped_files
from inferswarm.planner.plan import ExecutionPlan
from inferswarm.swarm import Generation, Model, Service, Swarm
from inferswarm.swarm.service import NodeMemory


class Served(NamedTuple):
    """What came of one realization: its answers by the key of their question."""

    answers: Mapping[str, Generation]
    memory: tuple[NodeMemory, ...]


def realized_digest(swarm: Swarm) -> str:
    """Return the digest of the plan that has authority, as the Coordinator says; empty where none has."""
    return swarm.status().plan_digest or ""


def serve_questions(
    arm: Arm,
    swarm: Swarm,
    model: Model,
    plan: ExecutionPlan,
    questions: Sequence[Question],
    max_tokens: int,
    condition: str,
) -> Served:
    """Realize a plan, ask it every question, and keep what was counted.

    Series, by participant or Node: `source-bytes` and `required-bytes` (read for its states, and needed for them),
    `state-bytes-moved` (since then), `positions-computed` and `positions-expected` (of each answer), `peak-bytes` and
    `limit-bytes` (charged at the peak, and the envelope), `processes-stopped`, `torch-libraries` (mapped by the
    Coordinator, and by each stage, which shows that looking finds them).
    """
    before = {name: report.overflows for name, report in swarm.node_memory(reset_peak=True)}
    with swarm.realize(plan, model) as service:
        arm.realized(realized_digest(swarm))
        _keep_reading(arm, service, condition)
        _keep_libraries(arm, service, condition)
        answers = {}
        for question in questions:
            answer = service.generate(ids_of(model, question), max_tokens=max_tokens, ignore_stop=True)
            answers[question.key] = answer
            _keep_positions(arm, answer, condition, question.key)
        memory = swarm.node_memory()
        for report in service.stage_reports():
            arm.sample(
                "state-bytes-moved", report.state_bytes_moved, "B", condition=condition, key=report.participant
            )
    _keep_memory(arm, memory, before, condition)
    return Served(answers, memory)


def _keep_reading(arm: Arm, service: Service, condition: str) -> None:
    for placement, stage in zip(service.plan.placements, service.realized.stages, strict=True):
        key = placement.participant
        arm.sample("source-bytes", stage.source_bytes, "B", condition=condition, key=key)
        arm.sample("required-bytes", stage.required_bytes, "B", condition=condition, key=key)


def _keep_positions(arm: Arm, answer: Generation, condition: str, question: str) -> None:
    for report in answer.reports:
        key = f"{question} {report.participant}"
        arm.sample("positions-computed", report.positions, "positions", condition=condition, key=key)
        arm.sample("positions-expected", answer.expected_positions, "positions", condition=condition, key=key)


def _keep_libraries(arm: Arm, service: Service, condition: str) -> None:
    looked_at = {"coordinator": service.coordinator_pid}
    placed = zip(service.plan.placements, service.realized.pids, strict=True)
    looked_at |= {placement.participant: pid for placement, pid in placed}
    for key, pid in looked_at.items():
        name = "torch-libraries" if key == "coordinator" else "torch-libraries-of-stages"
        arm.sample(name, torch_libraries(pid), "files", condition=condition, key=key)


def torch_libraries(pid: int) -> int:
    """Return how many files of torch a process has mapped. Raises OSError when it cannot be looked at."""
    return sum("/torch/" in path or Path(path).name.startswith("libtorch") for path in mapped_files(pid))


def _keep_memory(arm: Arm, memory: Sequence[NodeMemory], before: Mapping[str, int], condition: str) -> None:
    for name, report in memory:
        if report.charged_peak_bytes is not None and report.limit_bytes is not None:
            arm.sample("peak-bytes", report.charged_peak_bytes, "B", condition=condition, key=name)
            arm.sample("limit-bytes", report.limit_bytes, "B", condition=condition, key=name)
        stopped = report.overflows - before.get(name, 0)
        arm.sample("processes-stopped", stopped, "processes", condition=condition, key=name)
