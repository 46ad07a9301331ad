"""Requests become sessions, results become commits, commits become text: the Coordinator's serving side.

The order is fixed: the state machine says whether a result is the next commit, the ledger keeps it, and only then do
the client and the first stage hear of it. A session whose epoch is lost waits, and goes on under the next one where
it was; its client sees a pause.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from inferswarm.backends.partition import Step, first_difference, prompt_steps
from inferswarm.documents import canonical_bytes
from inferswarm.errors import (
    AuthorityUncertain,
    CommitRefused,
    InferSwarmError,
    ReplayDiverged,
    StageLost,
    WireError,
)
from inferswarm.fabric import events as ev
from inferswarm.fabric import messages as m
from inferswarm.fabric.active import ActiveSession, OnToken
from inferswarm.fabric.admission import (
    check_replay,
    check_resumption,
    check_size,
    check_stop,
    check_tokens,
    prompt_ids,
)
from inferswarm.fabric.authority import RefusalCode, SessionState
from inferswarm.fabric.authority_keeper import AuthorityKeeper
from inferswarm.fabric.credits import Credits
from inferswarm.fabric.faults import Fault, to_error
from inferswarm.fabric.feeding import FirstStage, session_needs
from inferswarm.fabric.following import follow
from inferswarm.fabric.frames import ROUTE_SESSION, Frame, FrameKind, plan_prefix
from inferswarm.fabric.holding import SessionNeed
from inferswarm.fabric.ledger import CommitRow, Ledger, SessionRow
from inferswarm.fabric.running import RunningPlan
from inferswarm.fabric.session_records import (
    partition_of,
    recorded_grid,
    recorded_partition,
    session_record,
    wanted_session,
)
from inferswarm.fabric.terms import ResultBody
from inferswarm.fabric.text_side import TextSide

OnAdmitted = Callable[[SessionRow, str], Awaitable[None]]
"""Called with a session that has just been opened and its plan's digest, before any work is done for it."""

_results = msgspec.msgpack.Decoder(ResultBody)
_reports = msgspec.msgpack.Decoder(tuple[m.SessionReport, ...])
_faults = msgspec.msgpack.Decoder(Fault)


async def _nobody(*_: object) -> None:
    """Nobody listens: the client of a session that an earlier Coordinator opened."""


class Sessions:
    """All open sessions, those of the current epoch and those that wait for the next."""

    def __init__(
        self,
        keeper: AuthorityKeeper,
        ledger: Ledger,
        on_doubt: Callable[[WireError], None],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        """Sessions need a running plan before they can be opened: see `serve`.

        `on_doubt` hears of connections that broke: a stage may have died, which its agent knows better. `spawn`
        starts what goes on beside.
        """
        self._spawn = spawn
        self._keeper = keeper
        self._ledger = ledger
        self._on_doubt = on_doubt
        self._first: FirstStage | None = None
        self._epochs: frozenset[int] = frozenset()
        self._text: TextSide | None = None
        self._active: dict[int, ActiveSession] = {}
        self._loss: InferSwarmError | None = None
        self._steady = asyncio.Event()
        """Set while something serves, or nothing will: requests need not wait."""
        self._credits = Credits()
        self.num_committed = 0
        """Tokens of all sessions since this Coordinator began."""
        self.begun = asyncio.Event()
        """Set when it is known what an earlier Coordinator left."""

    def serve(
        self, running: RunningPlan, writer: asyncio.StreamWriter, text: TextSide | None, epochs: frozenset[int]
    ) -> None:
        """Take requests for this epoch from now on, and let go on what waits.

        `writer` leads to the first stage. `epochs` are those that clients may name when they mean this one: itself,
        and those that it goes on for.
        """
        self._first = FirstStage(running, writer, self._on_doubt)
        self._credits.clear()
        self._epochs = epochs
        self._text = text
        self._loss = None
        self._steady.set()
        for number in running.fed_from:
            if number not in self._active:  # it ended while its state was being prepared
                self._spawn(self._first.send(FrameKind.CLOSE, number))
        self._resume_waiting()

    def stop_serving(self, *, for_now: bool = False) -> None:
        """Take no more requests; `for_now`: they wait, as another epoch may follow."""
        for active in self._active.values():
            active.stop_feeding()
            if not active.closed.done():
                active.closed.set_result(())  # nobody is left who could report
        if self._first is not None:
            self._first.close()
            self._first = None
        if for_now:
            self._steady.clear()
        else:
            self._steady.set()
        self.begun.set()

    # -- requests --

    async def generate(
        self, question: m.Generate, on_token: OnToken, on_admitted: OnAdmitted | None = None
    ) -> m.Generated:
        """Answer a prompt. Raises AdmissionError before any work, or what ended the session."""
        await self._steady.wait()
        self.require_running(question.epoch)
        prompt = await asyncio.to_thread(prompt_ids, question, self._text)
        await self._steady.wait()
        running = self.require_running(question.epoch)
        grid = prompt_steps(len(prompt), running.plan.chunk_positions)
        wanted = wanted_session(question, prompt, running, () if self._text is None else self._text.stop_ids)
        active = self._open(running, wanted, len(prompt) + wanted.max_tokens, grid, on_token)
        return await self._run(active, on_admitted)

    async def replay(self, question: m.Replay, on_token: OnToken) -> m.Generated:
        """Compute a recorded session again with its recorded partition; each position must be equal, bit for bit.

        Raises ReplayDiverged at the first position that is not, AdmissionError when this plan cannot compute that
        partition, or the stages hold another model.
        """
        await self._steady.wait()
        running = self.require_running(question.epoch)
        record = self._ledger.session(question.session)
        recorded = recorded_partition(record)
        grid = recorded_grid(record, recorded)
        wanted = partition_of(running, recorded.session_positions, recorded.steps)
        check_replay(running, record, wanted, recorded)
        again = record._replace(
            state=SessionState.OPEN.value,
            reason="",
            max_tokens=record.max_tokens if question.max_tokens is None else question.max_tokens,
            replay_of=record.number,
            matched=None,
        )
        active = self._open(running, again, recorded.session_positions, grid, on_token)
        active.expected = self._ledger.commits(record.number)
        return await self._run(active)

    async def follow(self, question: m.Follow, on_token: OnToken) -> m.SessionRecord:
        """Give out a session's committed tokens from a position on until it has ended; raises as `following.follow`.

        Their text is that of the model in force, or of the last one that was.
        """
        await self.begun.wait()
        await follow(self._ledger, self._text, question, on_token)
        return self.record(question.session)

    def record(self, number: int) -> m.SessionRecord:
        """Return what the ledger holds of a session."""
        return session_record(self._ledger, number)

    def is_named(self, epoch: int | None) -> bool:
        """Whether somebody who names an epoch (None: any) means the one in force, or the last one."""
        return epoch is None or epoch in self._epochs

    def require_running(self, epoch: int | None) -> RunningPlan:
        """Return the plan in force. Raises CommitRefused when there is none, or another epoch than the given one."""
        if self._first is None:
            raise CommitRefused(RefusalCode.NO_ACTIVE_AUTHORITY.value, "no plan is realized; realize one first")
        running = self._first.running
        if not self.is_named(epoch):
            code = RefusalCode.RETIRED_OR_SUPERSEDED_EPOCH.value
            raise CommitRefused(code, f"epoch {epoch} has ended; epoch {running.epoch} is in force")
        return running

    def _open(
        self,
        running: RunningPlan,
        wanted: SessionRow,
        session_positions: int,
        grid: tuple[Step, ...],
        on_token: OnToken,
    ) -> ActiveSession:
        """Admit a session and give it its number and epoch. Raises AdmissionError, having changed nothing."""
        check_size(running, wanted.prompt, wanted.max_tokens, len(self._active))
        check_tokens(running, wanted.prompt, wanted.sampling)
        check_stop(wanted.stop_strings, self._text)
        with self._ledger.transaction():
            requested = ev.SessionRequested(
                prompt_tokens=len(wanted.prompt), resumable=True, max_tokens=wanted.max_tokens
            )
            effects = self._keeper.demand(requested)
            opened = next(effect for effect in effects if isinstance(effect, ev.SessionOpened))
            row = wanted._replace(
                number=opened.session,
                epoch=opened.epoch,
                partition=canonical_bytes(partition_of(running, session_positions, grid)),
                at_ns=time.time_ns(),
                model=running.model,
            )
            self._ledger.open_session(row)
        active = ActiveSession(row, session_positions, self._text, on_token, grid)
        self._active[row.number] = active
        return active

    async def _run(self, active: ActiveSession, on_admitted: OnAdmitted | None = None) -> m.Generated:
        number = active.row.number
        try:
            if on_admitted is not None and self._first is not None:
                await on_admitted(active.row, self._first.running.plan_digest)
            if not active.suspended:
                self._feed(active, None)
            reason = await active.finished
        except InferSwarmError as error:
            await self._close(active, SessionState.FAILED, str(error))
            raise
        except asyncio.CancelledError:
            await self._close(active, SessionState.CANCELLED, "cancelled: its client or its Coordinator ended")
            raise
        try:
            await self._close(active, SessionState.COMPLETED, reason)
            reports = await active.closed
        finally:
            self._active.pop(number, None)
        return m.Generated(
            record=self.record(number), text="".join(active.text), finish_reason=reason, reports=reports
        )

    async def _close(self, active: ActiveSession, state: SessionState, reason: str) -> None:
        """Record the end of a session, and free it on the stages. One that did not complete is forgotten first."""
        number = active.row.number
        active.stop_feeding()
        if state is not SessionState.COMPLETED:
            self._active.pop(number, None)
        self._end(active, state, reason)
        if self._first is not None and not active.suspended:
            await self._first.send(FrameKind.CLOSE, number)
        elif not active.closed.done():
            active.closed.set_result(())  # no stage has it
        self._resume_waiting()

    def _end(self, active: ActiveSession, state: SessionState, reason: str) -> None:
        row = active.row
        singles = (Step(len(row.prompt) + index, 1) for index in range(len(active.commits) - 1))
        steps = (*active.sent, *singles)  # what was really asked of the stages
        with self._ledger.transaction():
            if self._keeper.state.session(row.number) is not None:  # not ended by the end of its epoch already
                stopped = active.ending == "stop"
                ended = ev.SessionEnded(session=row.number, state=state, reason=reason, stopped=stopped)
                self._keeper.advance(ended)
            known = self._ledger.session(row.number)
            body = canonical_bytes(replace(recorded_partition(known), steps=steps))
            told = "; ".join(part for part in (known.reason, active.note) if part)
            self._ledger.end_session(row.number, known.state, told, body, active.matched)

    # -- epochs that go and come --

    def suspended(self, effect: ev.SessionSuspended) -> None:
        """A session waits for another epoch."""
        if (active := self._active.get(effect.session)) is not None:
            active.suspend()

    def open(self) -> list[ActiveSession]:
        """Return the sessions that the epoch in force computes."""
        return [item for item in self._active.values() if not item.suspended and item.ending is None]

    def hold_back(self) -> None:
        """Have the stages wait behind what is committed, once they have run ahead as far as they may."""
        self._credits.hold_back()

    async def one_more(self) -> None:
        """Let the stages that are held back compute one token more of each session."""
        if self._first is not None:
            await self._credits.give_one(self._first)

    def let_go(self) -> None:
        """Let the stages of the epoch in force go on, if they were held back."""
        self._spawn(self._credits.let_go(self._first))

    def leave(self, sessions: Iterable[ActiveSession]) -> None:
        """Note that sessions were handed over to an epoch that is about to serve: see `serve`."""
        for active in sessions:
            active.suspend()

    def needs(self, order: m.Fallback) -> list[SessionNeed]:
        """Return what the stages of a plan would have to hold, of as many sessions as it has room for."""
        return session_needs(order, [item for item in self._active.values() if item.suspended])

    def inherit(self, text: TextSide | None, epochs: frozenset[int]) -> None:
        """Take over the sessions that an earlier Coordinator left open; requests wait until they can go on.

        Those that cannot be taken over fail with a reason. `epochs` as for `serve`.
        """
        self._text = text
        self._epochs = epochs
        self.begun.set()
        for session in self._keeper.state.sessions:
            row = self._ledger.session(session.number)
            try:
                recorded = recorded_partition(row)
                grid = recorded_grid(row, recorded)
                active = ActiveSession(row, recorded.session_positions, text, _nobody, grid)
                active.restore(self._ledger.commits(row.number))
            except InferSwarmError as error:
                self._keeper.advance(
                    ev.SessionEnded(session=row.number, state=SessionState.FAILED, reason=str(error))
                )
                continue
            if row.replay_of:
                active.expected = self._ledger.commits(row.replay_of)
            self._active[row.number] = active
            self._spawn(self._run_alone(active))

    async def _run_alone(self, active: ActiveSession) -> None:
        with contextlib.suppress(InferSwarmError):  # nobody waits for it: the ledger says how it ended
            await self._run(active)

    def _resume_waiting(self) -> None:
        """Bind sessions that wait to the epoch in force, as many as its plan has room for."""
        if self._first is None:
            return
        running = self._first.running
        for active in list(self._active.values()):
            if not active.suspended or active.ending is not None:
                continue
            if sum(not item.suspended for item in self._active.values()) >= running.plan.sessions:
                return
            self._resume(active, running)

    def _resume(self, active: ActiveSession, running: RunningPlan) -> None:
        number = active.row.number
        recorded = recorded_partition(self._ledger.session(number))
        wanted = partition_of(running, active.session_positions, recorded.steps)
        try:
            check_resumption(running, active.row, active.session_positions)
            known = self._keeper.state.session(number)
            if known is None or known.suspended:  # others were handed over with the epoch
                self._keeper.demand(ev.ResumptionRequested(session=number))
        except InferSwarmError as error:
            active.fail(error)
            return
        if (difference := first_difference(wanted, recorded)) is not None:
            field, found, earlier = difference
            position = len(active.row.prompt) + len(active.commits)
            active.note = f"from position {position} on computed with {field} {found}, before that {earlier}"
        active.suspended = False
        self._feed(active, running.fed_from.get(number))

    def _feed(self, active: ActiveSession, from_position: int | None) -> None:
        first = self._first
        if first is None:
            return

        async def feed() -> None:
            try:
                await first.feed(active, from_position)
            except InferSwarmError as error:
                active.fail(error)

        active.feeding = self._spawn(feed())

    # -- what comes back --

    async def handle(self, frame: Frame) -> None:
        """Take one frame from the stages. What does not belong here is refused, counted, and changes nothing.

        Raises AuthorityUncertain when the ledger is another Coordinator's by now: nothing may be served any more.
        """
        try:
            await self._handle(frame)
        except msgspec.DecodeError as error:
            self._ledger.refuse("MALFORMED_PAYLOAD", f"session {frame.header.session}: {error}")
        except InferSwarmError as error:  # a token that the tokenizer lacks, an epoch that ended meanwhile
            if (active := self._active.get(frame.header.session)) is not None:
                active.fail(error)
            if isinstance(error, AuthorityUncertain):
                raise

    async def _handle(self, frame: Frame) -> None:
        kind = frame.header.kind
        active, running = self._active.get(frame.header.session), self._running
        if kind == FrameKind.RESULT:
            await self._result(frame, active)
        elif kind not in (FrameKind.OPENED, FrameKind.CLOSED, FrameKind.FAULT):
            self._ledger.refuse("UNKNOWN_OPERATION", f"a frame of kind {kind}")
        elif kind == FrameKind.FAULT and frame.header.session == ROUTE_SESSION:
            fault = to_error(_faults.decode(frame.payload))
            if isinstance(fault, WireError) and running is not None and not running.address.mismatch(frame.header):
                self._on_doubt(fault)  # of a route that is over it is no news
        elif active is None or running is None:
            self._ledger.refuse("SESSION_MISMATCH", f"{FrameKind(kind).name} for session {frame.header.session}")
        elif (code := running.address.mismatch(frame.header)) is not None:
            self._ledger.refuse(code, f"{FrameKind(kind).name} for session {frame.header.session}")
        elif kind == FrameKind.OPENED and not active.opened.done():
            active.opened.set_result(None)
        elif kind == FrameKind.CLOSED and not active.closed.done():
            active.closed.set_result(_reports.decode(frame.payload))
        elif kind == FrameKind.FAULT:
            fault = to_error(_faults.decode(frame.payload))
            if isinstance(fault, WireError) and fault.code == "PEER_NOT_RECEIVING":
                self._on_doubt(fault)
            else:
                active.fail(fault)

    async def _result(self, frame: Frame, active: ActiveSession | None) -> None:
        header = frame.header
        body = _results.decode(frame.payload)  # before anything changes: what cannot be read is not committed
        if (unusable := body.first_unusable()) is not None:
            self._ledger.refuse("MALFORMED_PAYLOAD", f"session {header.session}: {unusable}")
            return
        running = self._running
        current = running is not None and running.address.mismatch(header) is None
        if active is not None and current and active.ran_past_its_end(header.position):
            return  # the stages could not know: what they compute past a stop string is dropped
        ours = running is not None and plan_prefix(running.plan_digest) == header.plan
        claimed = running.plan_digest if running is not None and ours else header.plan
        effects = self._keeper.advance(
            ev.ResultArrived(
                epoch=header.epoch,
                realization_id=header.realization,
                plan_digest=claimed,
                session=header.session,
                position=header.position,
            )
        )
        if active is None or running is None or not isinstance(effects[-1], ev.Committed):
            return  # refused, recorded, and nothing changed
        row = CommitRow(
            position=header.position,
            token=body.token,
            epoch=header.epoch,
            logits_digest=body.logits_digest,
            margin=body.margin,
            at_ns=active.now_ns(),
            logprobs=body.logprobs,
        )
        self._ledger.commit(header.session, row)
        self.num_committed += 1
        shown = active.take(row)
        if (difference := active.difference()) is not None:
            active.fail(ReplayDiverged(row.position, difference))
            return
        if active.ending is None and self._first is not None:
            await self._credits.give(self._first, header.session, header.position)
        await active.on_token(header.session, header.position, row.token, shown, row.logprobs)
        if active.ending is not None and not active.finished.done():
            active.finished.set_result(active.ending)

    @property
    def _running(self) -> RunningPlan | None:
        return None if self._first is None else self._first.running

    def session_closed(self, effect: ev.SessionClosed) -> None:
        """The state machine ended a session; when it failed, whoever waits for it hears why."""
        active = self._active.get(effect.session)
        if active is None:
            return
        if effect.state is SessionState.FAILED:
            loss = self._loss or StageLost("swarm", f"session {effect.session}", effect.reason)
            if isinstance(loss, StageLost):
                loss = StageLost(loss.node, loss.participant, loss.reason, effect.committed)
            active.fail(loss)
        elif effect.state is SessionState.CANCELLED:
            code = RefusalCode.RETIRED_OR_SUPERSEDED_EPOCH.value
            kept = f"{effect.committed} committed tokens are kept in the ledger"
            active.fail(CommitRefused(code, f"session {effect.session} was cancelled: {effect.reason}; {kept}"))

    def note_loss(self, error: InferSwarmError) -> None:
        """Keep what exactly was lost, for the clients of sessions that cannot go on."""
        self._loss = self._loss or error
