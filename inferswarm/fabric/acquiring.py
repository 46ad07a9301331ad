"""Has the Nodes of a plan acquire exactly what it needs: who has it, who may be asked, what became of it.

The Coordinator decides from records alone: inventories with receipts, digests, tickets, counts. Bytes go from sources
to Nodes and never through here, which a guard on every answer of a courier counts. What fails of a source is tried
with another one, a bounded number of times; what fails of a Node or of the order itself fails the realization.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Final

import msgspec
from msgspec.structs import replace

from inferswarm.artifacts.exactness import check_execution
from inferswarm.artifacts.inventory import InventoryBook, SourceIndex
from inferswarm.artifacts.sources import Source
from inferswarm.artifacts.taxonomy import COVERAGE_INCOMPLETE
from inferswarm.artifacts.tickets import TicketBooth
from inferswarm.backends.base import StageAssignment
from inferswarm.errors import ArtifactError, FabricError, InferSwarmError, SpecError
from inferswarm.fabric import messages as m
from inferswarm.fabric.acquiring_orders import HeldArtifact, check_needed, stored_blobs, with_known_digests
from inferswarm.fabric.acquisition_log import AcquisitionLog
from inferswarm.fabric.acquisition_rounds import Acquisition, Looked, Parts, Version
from inferswarm.fabric.bulk_guard import bulk_bytes
from inferswarm.fabric.ledger import Ledger
from inferswarm.fabric.membership import Membership, OnProgress
from inferswarm.fabric.taking_results import Taker, take_results
from inferswarm.fabric.transfer_accounts import TransferAccount
from inferswarm.fabric.transfer_records import TransferRecords

LOOK_SECONDS: Final = 30.0
"""How long a participant's courier may take to say what it holds: it may be starting again."""
PEER_LOOK_SECONDS: Final = 2.0
"""How long another Node's may: sessions may be waiting, and it is one source of several."""
RELEASE_SECONDS: Final = 2.0
"""How long a Node is waited for that is told that it may let contents go; it is told again later."""


class Acquirer:
    """Acquires for one Coordinator's scope."""

    def __init__(self, scope: str, token: str, members: Membership, ledger: Ledger) -> None:
        """`token` is the swarm's; what was kept in the ledger goes on. Raises SpecError for an empty token."""
        self._scope = scope
        self._token = token
        self._members = members
        self._ledger = ledger
        self._records = TransferRecords(ledger)
        self._booth = TicketBooth(token, scope)
        self._book = InventoryBook(token, ())
        self._registered: dict[str, Source] = {}
        self._accounts: dict[str, TransferAccount] = {}
        """Of realizations whose stages have not made their states yet."""
        self._asked: set[asyncio.Task[m.Answer]] = set()
        """What couriers were asked, also when nobody waits for it any more: its bytes are counted all the same."""

    async def acquire(
        self, order: m.Fallback, realization: str, adopted: Collection[str], on_progress: OnProgress
    ) -> tuple[StageAssignment, ...]:
        """Have every participant's Node hold what it needs, verified; return assignments that say where it is.

        `adopted` are participants whose stages have their states already. Without artifacts in the order, nothing is
        done. Raises SpecError for a Node without a store, ArtifactError naming Node, artifact, source and reason for
        what cannot be had, and what a Node's agent raises.
        """
        needed = order.artifacts
        if isinstance(needed, msgspec.UnsetType):
            return order.assignments
        self._accounts.clear()  # of attempts that failed before their stages had states
        plan_digest = order.assignments[0].plan_digest
        check_needed(needed, order.plan, plan_digest)
        for assignment in order.assignments:
            if assignment.requirement is not None:
                own = needed.plan.of(assignment.participant)
                check_execution(own, assignment.plan_digest, assignment.requirement, needed.files)
        placements = order.plan.placements
        for item in placements:
            self._require_store(item.node_id, item.node_name)
        pins = {} if needed.strict else self._records.pins()  # nobody published them
        artifacts = with_known_digests(needed.plan, pins)
        nodes = tuple((item.participant, item.node_id, item.node_name) for item in placements)
        account = TransferAccount(self._records, realization, nodes, artifacts)
        self._records.own(self._owner(plan_digest), {item.node_id for item in placements})
        parts = Parts(
            needed=needed,
            owner=self._owner(plan_digest),
            booth=self._booth,
            records=self._records,
            account=account,
            log=partial(AcquisitionLog, self._records.report, realization, account.generation),
            look=self._look,
            call=self._call,
            refuse=self._ledger.refuse,
            name_of=self._members.name_of,
        )
        wanted = [(item.participant, item.node_id) for item in placements if item.participant not in adopted]
        held = await Acquisition(parts, artifacts, wanted, on_progress).run()
        told = tuple(_told(item, held.get(item.participant), needed.files) for item in order.assignments)
        if needed.takes_results:
            node_of = dict(wanted)
            takers = [
                Taker(
                    item.participant,
                    node_of[item.participant],
                    item.representation,
                    item.requirement,
                    held[item.participant],
                )
                for item in told
                if item.participant in held and item.requirement is not None
            ]
            couriers = [link.join.node_id for link in self._members.links() if link.join.courier]
            await take_results(parts, takers, couriers)
        self._accounts[realization] = account
        return told

    def materialized(self, realization: str, stages: Iterable[tuple[str, m.Materialized]]) -> None:
        """Count what the stages of a realization, by participant, have made of what was acquired for them."""
        account = self._accounts.pop(realization, None)
        if account is not None:
            for participant, stage in stages:
                account.materialized(participant, stage)

    def serves(self, realization: str) -> None:
        """Hear that a realization serves from now on: no byte may move for it any more."""
        self._records.serves(realization)

    async def keep_only(self, plan_digests: Iterable[str]) -> None:
        """Let all contents go that were kept for other plans than these, and end what is acquired for them.

        A Node that is away hears of it later.
        """
        kept = {self._owner(item) for item in plan_digests}

        async def release(owner: str, node_id: str) -> None:
            with contextlib.suppress(InferSwarmError, TimeoutError):
                command = m.OnCourier(command=m.ReleaseArtifacts(owner=owner))
                await asyncio.wait_for(self._members.call(node_id, command), RELEASE_SECONDS)
                self._records.disown(owner, node_id)

        over = [pair for pair in self._records.owners() if pair[0] not in kept]
        await asyncio.gather(*(release(owner, node_id) for owner, node_id in over))

    def _owner(self, plan_digest: str) -> str:
        return f"{self._scope}/{plan_digest}"

    def _require_store(self, node_id: str, node_name: str) -> None:
        link = self._members.link(node_id)
        if link is not None and not link.join.courier:
            raise SpecError("artifact store", f"none on Node {node_name}", "a swarm that was begun with stores")

    # -- couriers --

    async def _look(self, generation: int, required: Collection[str], objects: Collection[Version]) -> Looked:
        """Freeze a generation everywhere and hear what every Node holds; those that do not answer are no source.

        Of `objects`, by URI and version, they also say what first fetches gave.
        Raises what went wrong at a `required` Node.
        """
        couriers = {
            link.join.node_id: Source(link.join.node_id, link.join.courier)
            for link in self._members.links()
            if link.join.courier
        }
        if couriers != self._registered:
            self._registered, self._book = couriers, InventoryBook(self._token, couriers.values())

        async def one(node_id: str) -> m.InventoryReported:
            seconds = LOOK_SECONDS if node_id in required else PEER_LOOK_SECONDS
            await self._within(seconds, node_id, m.FreezeArtifacts(generation=generation))
            answer = await self._within(seconds, node_id, m.ReportInventory(pins_of=tuple(sorted(objects))))
            if isinstance(answer, m.InventoryReported) and bulk_bytes(answer) == 0:
                return answer
            raise FabricError(f"the courier of {node_id} answered with something else than its inventory")

        nodes = sorted({*couriers, *required})
        outcomes = await asyncio.gather(*map(one, nodes), return_exceptions=True)
        answers = {}
        for node_id, outcome in zip(nodes, outcomes, strict=True):
            if isinstance(outcome, m.InventoryReported):
                answers[node_id] = outcome
            elif node_id in required or not isinstance(outcome, InferSwarmError):
                raise outcome
        return await asyncio.to_thread(_index, self._book, answers, required)

    async def _within(self, seconds: float, node_id: str, command: m.CourierCommand) -> m.Answer:
        try:
            return await asyncio.wait_for(self._call(node_id, command), seconds)
        except TimeoutError as error:
            name = self._members.name_of(node_id)
            raise FabricError(
                f"the courier of Node {name} did not answer {type(command).__name__} in {seconds:.0f} s"
            ) from error

    async def _call(
        self,
        node_id: str,
        command: m.CourierCommand,
        on_progress: OnProgress | None = None,
        on_answer: Callable[[m.Answer], None] | None = None,
    ) -> m.Answer:
        """Ask a Node's courier. `on_answer` hears its answer also when nobody waits for it any more."""

        async def ask() -> m.Answer:
            answer = await self._members.call(node_id, m.OnCourier(command=command), on_progress)
            if on_answer is not None:
                on_answer(answer)
            return answer

        task = asyncio.ensure_future(ask())
        self._asked.add(task)
        task.add_done_callback(self._answered)
        return await asyncio.shield(task)

    def _answered(self, task: asyncio.Task[m.Answer]) -> None:
        self._asked.discard(task)
        if not task.cancelled():
            task.exception()  # who waited has it; nobody else needs it


def _told(
    assignment: StageAssignment, held: tuple[HeldArtifact, ...] | None, files: tuple[str, ...]
) -> StageAssignment:
    """Return an assignment whose requirement says under which digests its Node keeps what it needs.

    Raises ArtifactError `REQUIRED_STATE_COVERAGE_INCOMPLETE` for artifacts that are not just what it requires.
    """
    if held is None or assignment.requirement is None:
        return assignment
    try:
        requirement = replace(assignment.requirement, stored=stored_blobs(held, files))
    except (KeyError, ValueError) as error:
        raise ArtifactError(COVERAGE_INCOMPLETE, assignment.participant, f"cannot be told: {error}") from error
    return replace(assignment, requirement=requirement)


def _index(book: InventoryBook, answers: Mapping[str, m.InventoryReported], required: Collection[str]) -> Looked:
    """Return who advertises what, and pins, of those that have just said it and are believed.

    Raises ArtifactError as `InventoryBook.accept` for a `required` Node; another one is no source then.
    """
    believed, pins = [], {}
    for node_id, answer in answers.items():
        try:
            book.accept(answer.inventory, answer.receipt)
        except ArtifactError:
            if node_id in required:
                raise
        else:
            believed.append(answer.inventory)
            pins[node_id] = answer.pins
    return Looked(SourceIndex(believed), pins)
