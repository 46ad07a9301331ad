"""Swarms on paper whose Nodes have several Compute Units, and a machine that charges them by the process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from inferswarm.backends.probe import COPY_SECONDS
from inferswarm.evidence.store import ObservationStore
from inferswarm.evidence.types import Observation, make_context, now_ns
from inferswarm.fabric import messages as m
from inferswarm.resources.types import Envelope, ResourceGraph
from inferswarm.resources.virtual import graph_of_envelopes
from inferswarm.swarm.known import BASE_METRIC, currency_of
from inferswarm.swarm.node_measuring import NodeProber
from inferswarm.swarm.probe_stages import ProbeStages
from inferswarm.swarm.reservations import Reservations, reservations_of
from inferswarm.swarm.targets import by_node, targets_of
from tests.unit.resources.resources_samples import make_inventory

MIB = 2**20
AGENT, STAGE = 6 * MIB, 170 * MIB
OAK = Envelope.parse("oak:threads=1+2,memory=2GB")
ELM = Envelope.parse("elm:threads=1,memory=1GB")


class Machine:
    """Agents and stages that charge a fixed amount for each process, and keep what was asked."""

    def __init__(self, stage_bytes: int = STAGE) -> None:
        self.stages: dict[str, set[str]] = {}
        self.asked: list[Any] = []
        self._stage_bytes = stage_bytes

    def ask(self, question: m.OnNode, on_event: object = None) -> Any:
        running = self.stages.setdefault(question.node_id, set())
        command = question.command
        self.asked.append(command)
        match command:
            case m.StartStage():
                running.add(command.stage)
                return m.StageStarted(pid=1, endpoint="tcp://127.0.0.1:1")
            case m.StopStage():
                running.discard(command.stage)
            case m.InspectNode():
                return m.NodeReport(
                    mechanism="none",
                    limit_bytes=None,
                    charged_bytes=AGENT + len(running) * self._stage_bytes,
                    charged_peak_bytes=None,
                    mechanism_peak_bytes=None,
                    overflows=0,
                    resident_peak_bytes=0,
                    agent_resident_bytes=0,
                )
            case m.OnStage(command=m.ProbeBandwidth() as asked):
                context = {"threads": str(asked.threads), "set_bytes": str(asked.set_bytes)}
                return self._observed(asked.subject, "read-bandwidth", "B/s", 1e10 * asked.threads, context)
            case m.OnStage(command=m.ProbeAccelerator() as asked):
                found = self._observed(asked.memory_id, BASE_METRIC, "B", 300.0 * MIB, {"backend": "torch"})
                copies = {"direction": "into", "payload_bytes": "65536", "pinned": "yes"}
                more = self._observed(asked.compute_unit_id, COPY_SECONDS, "s", 1e-5, copies)
                return m.Observed(observations=(*found.observations, *more.observations), num_warm_up=3)
        return m.Done()

    @staticmethod
    def _observed(subject: str, metric: str, unit: str, value: float, context: dict[str, str]) -> m.Observed:
        record = Observation(
            subject=subject,
            metric=metric,
            unit=unit,
            samples=(value,) * 15,
            context=make_context(**context),
            protocol=f"{metric}/1",
            taken_at_ns=now_ns(),
            producer="test",
        )
        return m.Observed(observations=(record,), num_warm_up=1)

    def commands(self, kind: type) -> list[Any]:
        """Return what stages were asked of this kind."""
        return [item.command for item in self.asked if isinstance(item, m.OnStage) and isinstance(item.command, kind)]


class Rig:
    """One graph, its store, and what is known of it."""

    def __init__(self, directory: Path, graph: ResourceGraph, envelopes: tuple[Envelope, ...] = ()) -> None:
        self.graph = graph
        self.envelopes = envelopes
        self.store = ObservationStore(directory)
        limits = {envelope.name: envelope.memory_bytes for envelope in envelopes}
        self.targets = targets_of(graph, limits)

    def measure(self, machine: Machine) -> None:
        for group in by_node(self.targets):
            stages = ProbeStages(
                machine,  # type: ignore[arg-type]
                self.store,
                currency_of(self.graph, "none"),
                lambda node: (),
            )
            stages.start(group.first)
            NodeProber(stages, make_inventory()).measure(group)
            stages.stop()

    @property
    def due(self) -> list[str | None]:
        stages = ProbeStages(None, self.store, currency_of(self.graph, "none"), lambda node: ())  # type: ignore[arg-type]
        return [NodeProber(stages, make_inventory()).due(group, False) for group in by_node(self.targets)]

    @property
    def reserved(self) -> Reservations:
        return reservations_of(self.store, self.targets, currency_of(self.graph, "none"), "none")


def of_envelopes(directory: Path, *envelopes: Envelope) -> Rig:
    graph = graph_of_envelopes(make_inventory(), "swarm-1", envelopes, {}, "none", backends=("torch",))
    return Rig(directory, graph, envelopes)
