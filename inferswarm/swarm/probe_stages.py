"""Empty stages that things are measured in, one for each Compute Unit, and the records that are kept of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence

from inferswarm import __version__
from inferswarm.errors import FabricError
from inferswarm.evidence.currency import Currency, with_facts
from inferswarm.evidence.drift import Interleaving, record_run
from inferswarm.evidence.store import ObservationStore
from inferswarm.evidence.types import Observation, make_context, now_ns
from inferswarm.fabric import messages as m
from inferswarm.fabric.client import Client
from inferswarm.fabric.expecting import expect
from inferswarm.swarm.targets import ProbeTarget

OnEvent = Callable[[object], None]


class ProbeStages:
    """Starts, asks and stops the stages of one run of measurements, and keeps what they say."""

    def __init__(
        self,
        client: Client,
        store: ObservationStore,
        currency: Currency,
        addresses_of: Callable[[str], tuple[str, ...]],
    ) -> None:
        """`currency` says which records hold now, and what new ones depend on.

        `addresses_of` tells where the stages of a Node (id) listen, beside their agent's own address.
        """
        self._addresses_of = addresses_of
        self.client = client
        self.store = store
        self._facts = currency
        self._started: dict[str, tuple[ProbeTarget, m.StageStarted]] = {}

    @property
    def currency(self) -> Currency:
        """What records are held against at this moment: also those that were made since this object was."""
        return self._facts._replace(now_ns=int(now_ns()))

    def start(self, target: ProbeTarget) -> m.StageStarted:
        """Return where the stage of a Compute Unit is reached; it is started first when it does not run.

        It is bound to the Compute Unit's CPUs, where it states any. Raises EnvelopeExceeded when it has no room.
        """
        if target.unit.id not in self._started:
            addresses = self._addresses_of(target.node.id)
            threads = target.unit.threads if target.unit.kind == "cpu" else 0
            start = m.StartStage(stage=_name(target), addresses=addresses, cpus=target.cpus, threads=threads)
            answer = expect(m.StageStarted, self.on_node(target, start), "a started stage")
            self._started[target.unit.id] = (target, answer)
        return self._started[target.unit.id][1]

    def stop(self) -> None:
        """Stop every stage that was started; those of Nodes that are gone have ended already."""
        for target, _ in self._started.values():
            with contextlib.suppress(FabricError):
                self.on_node(target, m.StopStage(stage=_name(target)))
        self._started.clear()

    def on_node(
        self, target: ProbeTarget, command: m.AgentCommand, on_event: OnEvent | None = None
    ) -> m.ClientAnswer:
        """Give a command to the agent of a target's Node, and return its answer. Raises what it refuses with."""
        return self.client.ask(m.OnNode(node_id=target.node.id, command=command), on_event)

    def on_stage(
        self, target: ProbeTarget, command: m.StageCommand, on_event: OnEvent | None = None
    ) -> m.ClientAnswer:
        """Give a command to the stage of a target, which runs, and return its answer. Raises what it refuses with."""
        return self.on_node(target, m.OnStage(stage=_name(target), command=command), on_event)

    def keep(
        self,
        observations: Iterable[Observation],
        interleaving: Interleaving,
        num_warm_up: int = 0,
        conditions: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Keep observations with the facts that they depend on and how their run went."""
        stated = dict(conditions)
        stamped = []
        for observation in observations:
            with_all = with_facts(observation, self._facts.facts)
            if min(observation.samples) > 0:  # of what took no time or memory, no drift can be told
                with_all = record_run(
                    with_all,
                    num_warm_up=num_warm_up,
                    interleaving=interleaving,
                    load_average=stated.get("load_average", "unknown"),
                    clocks_mhz=stated.get("clocks_mhz", "unknown"),
                )
            stamped.append(with_all)
        self.store.append(stamped)


def make_observation(
    subject: str, metric: str, unit: str, samples: Sequence[float], protocol: str, **context: str
) -> Observation:
    """Return a record of samples that were taken just now; `_` in the names of the context stands for a dot."""
    return Observation(
        subject=subject,
        metric=metric,
        unit=unit,
        samples=tuple(float(sample) for sample in samples),
        context=make_context(**context),
        protocol=protocol,
        taken_at_ns=now_ns(),
        producer=f"inferswarm {__version__}",
    )


def _name(target: ProbeTarget) -> str:
    return f"probe-{target.unit.id}"
