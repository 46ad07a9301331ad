"""One acquisition of one realization: rounds of artifacts, attempts from chosen sources, others after failures.

A round holds what can be had at once. What several participants need and nobody knows the digest of comes for one of
them first; the others are held to the digest that this found, in the next round, and may get it from that peer.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from inferswarm.artifacts.inventory import SourceIndex
from inferswarm.artifacts.participant_artifacts import PlanArtifacts
from inferswarm.artifacts.source_choices import Choice, SourceFacts, SourcingPlan, Want
from inferswarm.artifacts.sources import ORIGIN
from inferswarm.artifacts.sourcing import choose_again, choose_sources
from inferswarm.artifacts.store.records import Pin
from inferswarm.artifacts.taxonomy import (
    CACHE_TAMPERED,
    INTEGRITY_MISMATCH,
    RECONCILIATION_MISMATCH,
    SOURCE_UNAVAILABLE,
)
from inferswarm.artifacts.tickets import TicketBooth
from inferswarm.errors import ArtifactError, AuthorityUncertain, FabricError, InferSwarmError
from inferswarm.fabric import messages as m
from inferswarm.fabric.acquiring_orders import (
    THE_ORIGIN,
    Content,
    HeldArtifact,
    Terms,
    content_of,
    describe,
    digests_told,
    next_round,
    orders_of,
    shut_pairs,
    unknown_places,
    unpublished_of,
)
from inferswarm.fabric.acquisition_log import AcquisitionLog
from inferswarm.fabric.membership import OnProgress
from inferswarm.fabric.transfer_accounts import TransferAccount
from inferswarm.fabric.transfer_records import Place, TransferRecords, pin_place

ATTEMPTS: Final = 4
"""So many sources one artifact is tried from: its Node, two peers, the origin."""
TICKET_MARGIN_SECONDS: Final = 60.0
"""What a ticket is good for beyond the deadline: clocks of Nodes differ."""
ACQUIRED: Final = "bytes acquired"
"""The note of progress that is about bytes on their way to Nodes."""
_THERE: Final = ("cache-hit", "acquired")

OnAnswer = Callable[[m.Answer], None]
Version = tuple[str, str]
"""An object's URI and its version."""
Key = tuple[str, str]
"""Participant and artifact id."""


class Call(Protocol):
    """Asks a Node's courier; `on_answer` hears its answer also when nobody waits for it any more."""

    def __call__(
        self,
        node_id: str,
        command: m.CourierCommand,
        on_progress: OnProgress | None = None,
        on_answer: OnAnswer | None = None,
    ) -> Awaitable[m.Answer]:
        """Return its answer. Raises what the Node's agent raises."""


class Looked(NamedTuple):
    """What the couriers have said, of those that are believed."""

    sources: SourceIndex
    """Who advertises what."""
    pins: Mapping[str, tuple[Pin, ...]]
    """By Node, what first fetches of the objects that were asked about gave it, or others before it."""


class Parts(NamedTuple):
    """What an acquisition is made with."""

    needed: m.NeededArtifacts
    owner: str
    booth: TicketBooth
    records: TransferRecords
    account: TransferAccount
    log: Callable[[int], AcquisitionLog]
    """Makes what writes down how far an acquisition of so many bytes is."""
    look: Callable[[int, Collection[str], Collection[Version]], Awaitable[Looked]]
    """Freezes a generation and asks everybody, also for the pins of objects; raises for the Nodes that are named."""
    call: Call
    refuse: Callable[[str, str], None]
    """Writes down a code and what was refused under it."""
    name_of: Callable[[str], str]
    """From a Node's id to its name."""


class _Failed(NamedTuple):
    """One attempt that failed, and what is said of it."""

    want: Want
    choice: Choice
    code: str
    why: str
    reason: str
    """From whom, and why."""


class Acquisition:
    """Runs once."""

    def __init__(
        self,
        parts: Parts,
        artifacts: PlanArtifacts,
        participants: Sequence[tuple[str, str]],
        on_progress: OnProgress,
    ) -> None:
        """`participants` are those that acquire, each with its Node's id."""
        self._parts = parts
        self._participants = participants
        self._wants = [
            Want(name, node_id, artifact)
            for name, node_id in participants
            for artifact in artifacts.of(name).artifacts
        ]
        self._num_bytes = sum(want.artifact.length for want in self._wants)
        self._on_progress = on_progress
        self._log = parts.log(self._num_bytes)
        self._done: dict[str, int] = {}
        self._under_way: dict[str, int] = {}
        self._found: dict[Content, str] = {}
        self._plan: SourcingPlan
        self._choosing = asyncio.Lock()
        """Held while the plan is made anew, which takes a while for thousands of failures."""
        self._held: dict[str, list[HeldArtifact]] = {name: [] for name, _ in participants}
        self._refused: set[tuple[str, str]] = set()
        """Source and code of what was written down as refused."""
        self._until = time.monotonic() + parts.needed.deadline_seconds
        deadline = time.time() + parts.needed.deadline_seconds
        expires_at, policy = int(deadline + TICKET_MARGIN_SECONDS), parts.needed.source_policy
        unpublished = unpublished_of(parts.needed.plan)
        self._terms = Terms(parts.account.generation, expires_at, policy, unpublished)

    async def run(self) -> Mapping[str, tuple[HeldArtifact, ...]]:
        """Return for each participant what its Node holds for it.

        Raises ArtifactError naming Node, artifact, source and reason for what cannot be had.
        """
        self._log.begun()
        try:
            held = await self._acquire_all()
        except InferSwarmError as error:
            self._log.ended(str(error))
            raise
        except asyncio.CancelledError:
            self._log.ended("it was given up")
            raise
        self._log.ended(None)
        return held

    async def _acquire_all(self) -> Mapping[str, tuple[HeldArtifact, ...]]:
        account, nodes = self._parts.account, {node_id for _, node_id in self._participants}
        waiting = self._wants
        while waiting:
            unknown = {} if self._parts.needed.strict else unknown_places(waiting, self._found)
            objects = {(uri, version) for uri, version, _, _ in unknown}
            looked = await self._parts.look(self._terms.generation, nodes, objects)
            self._take_pins(unknown, looked.pins)
            now, waiting = next_round(waiting, self._found)
            await self._round(now, looked.sources)
        account.check()
        held = {name: tuple(items) for name, items in self._held.items()}
        for name, items in held.items():
            account.holds(name, [item.artifact for item in items])
        return held

    def _take_pins(self, unknown: Mapping[Place, Content], told: Mapping[str, tuple[Pin, ...]]) -> None:
        """Keep the digests that Nodes know of first fetches, unless the scope knows one. Raises ArtifactError."""
        if not unknown:
            return
        records = self._parts.records
        known = records.pins()
        records.pin(digests_told(unknown.keys() - known.keys(), told, self._parts.name_of).items())
        known = records.pins()
        self._found.update((content, known[place]) for place, content in unknown.items() if place in known)

    async def _round(self, wants: list[Want], index: SourceIndex) -> None:
        needed, account = self._parts.needed, self._parts.account
        by_key = {(want.participant, want.artifact.id): want for want in wants}
        facts = SourceFacts(
            index=index,
            origin=THE_ORIGIN,
            seconds_per_byte={(source, node): seconds for source, node, seconds in needed.seconds_per_byte},
            excluded=shut_pairs(wants, self._parts.records.shut_sources()),
        )
        try:
            plan = await asyncio.to_thread(choose_sources, wants, facts, needed.source_policy, self._terms.generation)
        except ArtifactError as error:
            want = next((want for want in wants if want.artifact.id == error.subject), None)
            raise error if want is None else self._error(want, error.code, error.reason) from error
        account.required(wants)
        self._plan = plan
        by_participant: dict[str, list[Choice]] = {}
        for choice in plan.choices:
            by_participant.setdefault(choice.participant, []).append(choice)
        await _all_or_first_error(self._until_there(by_key, mine, facts) for mine in by_participant.values())

    async def _until_there(self, wants: Mapping[Key, Want], choices: Sequence[Choice], facts: SourceFacts) -> None:
        """Have one participant's Node get what was chosen; what fails, from another source."""
        while choices:
            self._parts.account.authorized(choices)
            failures = await self._ask(wants, choices)
            failed = [
                self._failed(wants[choice.participant, choice.artifact], choice, outcome)
                for choice, outcome in failures
            ]
            async with self._choosing:
                self._plan = await asyncio.to_thread(self._choose_again, self._plan, failed, facts)
            keys = {(item.choice.participant, item.choice.artifact) for item in failed}
            choices = [item for item in self._plan.choices if (item.participant, item.artifact) in keys]

    # -- one attempt --

    async def _ask(
        self, wants: Mapping[Key, Want], choices: Sequence[Choice]
    ) -> list[tuple[Choice, m.AcquisitionOutcome]]:
        parts, participant, node_id = self._parts, choices[0].participant, choices[0].node_id
        mine = [wants[participant, choice.artifact] for choice in choices]
        command = m.AcquireArtifacts(
            participant=participant,
            owner=parts.owner,
            orders=await asyncio.to_thread(orders_of, mine, choices, parts.booth, self._terms),
            strict=parts.needed.strict,
            deadline_seconds=max(0.0, self._until - time.monotonic()),
        )

        def on_answer(answer: m.Answer) -> None:
            if isinstance(answer, m.ArtifactsAcquired):
                parts.account.answered(participant, answer)

        def on_progress(progress: m.Progressed) -> None:
            self._under_way[participant] = progress.done
            self._tell()

        answer = await parts.call(node_id, command, on_progress, on_answer)
        if not isinstance(answer, m.ArtifactsAcquired):
            raise FabricError(f"the courier of {node_id} answered with {type(answer).__name__}")
        for sha256, reason in answer.tampered:
            parts.refuse(CACHE_TAMPERED, f"Node {parts.name_of(node_id)} held {sha256} altered: {reason}")
        failures = self._judge(mine, choices, answer)
        self._under_way.pop(participant, None)
        self._tell()
        return failures

    def _judge(
        self, wants: Sequence[Want], choices: Sequence[Choice], answer: m.ArtifactsAcquired
    ) -> list[tuple[Choice, m.AcquisitionOutcome]]:
        """Take what is there; return the attempts that failed. An answer that is not to the question is refused."""
        if [item.artifact for item in answer.outcomes] != [want.artifact.id for want in wants]:
            name = self._parts.name_of(choices[0].node_id)
            raise ArtifactError(RECONCILIATION_MISMATCH, name, "answered for other artifacts than it was asked for")
        failures: list[tuple[Choice, m.AcquisitionOutcome]] = []
        pins = []
        for want, choice, outcome in zip(wants, choices, answer.outcomes, strict=True):
            artifact, sha256 = want.artifact, outcome.sha256
            if outcome.how not in _THERE:
                failures.append((choice, outcome))
                continue
            known = artifact.sha256
            if sha256 is None or (sha256 != known and not isinstance(known, msgspec.UnsetType)):
                raise self._error(want, RECONCILIATION_MISMATCH, f"is said to be there as {sha256}, not as {known}")
            if isinstance(known, msgspec.UnsetType):
                self._found[content_of(artifact)] = sha256
                if (place := pin_place(artifact)) is not None:
                    pins.append((place, sha256))
            self._held[want.participant].append(HeldArtifact(artifact, sha256))
            self._done[want.participant] = self._done.get(want.participant, 0) + artifact.length
        self._parts.records.pin(pins)
        return failures

    def _failed(self, want: Want, choice: Choice, outcome: m.AcquisitionOutcome) -> _Failed:
        """Write down a failed attempt. Raises ArtifactError when another source would not help."""
        parts, source = self._parts, choice.source
        from_whom = "what it holds itself" if source is None else self._source_name(source.id)
        code = outcome.code or SOURCE_UNAVAILABLE
        why = outcome.reason or f"{outcome.how}: it was not there when the time was over"
        reason = f"from {from_whom}: {why}"
        if source is not None and outcome.side == "source":
            text = f"{describe(want.artifact)} for {want.participant} on Node {parts.name_of(want.node_id)} {reason}"
            if (source.id, code) not in self._refused:  # a source that has gone fails for a thousand artifacts
                self._refused.add((source.id, code))
                parts.refuse(code, text)
            if code == INTEGRITY_MISMATCH and not isinstance(want.artifact.sha256, msgspec.UnsetType):
                parts.records.shut(source.id, want.artifact.sha256, text)
        if (source is not None and outcome.side != "source") or choice.attempt >= ATTEMPTS:
            raise self._error(want, code, reason)
        return _Failed(want, choice, code, why, reason)

    def _choose_again(self, plan: SourcingPlan, failed: Iterable[_Failed], facts: SourceFacts) -> SourcingPlan:
        """Return the plan with other sources for what failed. Raises ArtifactError where there is none."""
        for item in failed:
            try:
                plan = choose_again(plan, item.choice, item.why, item.want, facts)
            except ArtifactError as error:
                raise self._error(item.want, item.code, f"{item.reason}; {error.reason}") from error
        return plan

    # -- words --

    def _source_name(self, source_id: str) -> str:
        return "the origin" if source_id == ORIGIN else f"Node {self._parts.name_of(source_id)}"

    def _error(self, want: Want, code: str, reason: str) -> ArtifactError:
        subject = f"{want.participant} on Node {self._parts.name_of(want.node_id)}"
        return ArtifactError(code, subject, f"{describe(want.artifact)} {reason}")

    def _tell(self) -> None:
        done = min(sum(self._done.values()) + sum(self._under_way.values()), self._num_bytes)
        with contextlib.suppress(AuthorityUncertain):  # the lease has gone, as whoever has to know hears elsewhere
            self._log.moved(done)
        self._on_progress(m.Progressed(request=0, done=done, total=self._num_bytes, note=ACQUIRED))


async def _all_or_first_error(calls: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Await all at once; the first error ends the waiting for the others, whose bytes are counted all the same."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
