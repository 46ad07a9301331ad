"""Requests become sessions, results become commits, commits become text: the Coordinator's serving side.

The order is fixed: the state machine says whether a result is the next commit, the ledger keeps it, and only then do
the client and the first stage hear of it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable

import msgspec

from inferswarm.backends.base import UnitThreads
from inferswarm.backends.partition import (
    Partition,
    Step,
    kernels_by_unit,
    merge_threads,
    mixture_name,
    prompt_steps,
)
from inferswarm.backends.representing import plan_representations
from inferswarm.documents import canonical_bytes, read_document
from inferswarm.errors import (
    CommitRefused,
    InferSwarmError,
    ReplayDiverged,
    StageLost,
    WireError,
)
from inferswarm.fabric import events as ev
from inferswarm.fabric import messages as m
from inferswarm.fabric.active import ActiveSession, OnToken
from inferswarm.fabric.admission import check_replay, check_size, check_stop, check_tokens, prompt_ids
from inferswarm.fabric.authority import RefusalCode, SessionState
from inferswarm.fabric.authority_keeper import AuthorityKeeper
from inferswarm.fabric.faults import Fault, to_error
from inferswarm.fabric.following import follow
from inferswarm.fabric.frames import Frame, FrameKind, encode, plan_prefix
from inferswarm.fabric.ledger import CommitRow, Ledger, SessionRow
from inferswarm.fabric.realizing import RunningPlan
from inferswarm.fabric.terms import ResultBody, SessionTerms
from inferswarm.fabric.text_side import TextSide
from inferswarm.fabric.transport import pack

OnAdmitted = Callable[[SessionRow, str], Awaitable[None]]
"""Called with a session that has just been opened and its plan's digest, before any work is done for it."""

_results = msgspec.msgpack.Decoder(ResultBody)
_reports = msgspec.msgpack.Decoder(tuple[m.SessionReport, ...])
_faults = msgspec.msgpack.Decoder(Fault)


class Sessions:
    """All sessions of the current epoch."""

    def __init__(self, keeper: AuthorityKeeper, ledger: Ledger, on_doubt: Callable[[WireError], None]) -> None:
        """Sessions need a running plan before they can be opened: see `serve`.

        `on_doubt` hears of connections that broke: a stage may have died, which its agent knows better.
        """
        self._keeper = keeper
        self._ledger = ledger
        self._on_doubt = on_doubt
        self._running: RunningPlan | None = None
        self._first: asyncio.StreamWriter | None = None
        self._text: TextSide | None = None
        self._active: dict[int, ActiveSession] = {}

    def serve(self, running: RunningPlan, first_stage: asyncio.StreamWriter, text: TextSide | None) -> None:
        """Take requests for this epoch from now on."""
        self._running = running
        self._first = first_stage
        self._text = text

    def stop_serving(self) -> None:
        """Take no more requests."""
        self._running = None
        if self._first is not None:
            self._first.close()
            self._first = None

    # -- requests --

    async def generate(
        self, question: m.Generate, on_token: OnToken, on_admitted: OnAdmitted | None = None
    ) -> m.Generated:
        """Answer a prompt. Raises AdmissionError before any work, or what ended the session."""
        self.require_running(question.epoch)
        prompt = await asyncio.to_thread(prompt_ids, question, self._text)
        running = self.require_running(question.epoch)
        sampling = question.sampling
        if sampling.is_drawn and sampling.seed is None:
            sampling = sampling.with_seed(secrets.randbits(64))
        grid = prompt_steps(len(prompt), running.plan.chunk_positions)
        max_tokens = question.max_tokens
        if max_tokens is None:
            max_tokens = max(1, running.plan.max_positions - len(prompt))
        wanted = SessionRow(
            number=0,
            epoch=0,
            state=SessionState.OPEN.value,
            reason="",
            prompt=prompt,
            max_tokens=max_tokens,
            stop=() if question.ignore_stop or self._text is None else self._text.stop_ids,
            partition=b"",
            replay_of=0,
            at_ns=0,
            sampling=sampling,
            stop_strings=question.stop,
        )
        active = self._open(running, wanted, len(prompt) + max_tokens, grid, on_token)
        return await self._run(running, active, grid, on_admitted)

    async def replay(self, question: m.Replay, on_token: OnToken) -> m.Generated:
        """Compute a recorded session again with its recorded partition; each position must be equal, bit for bit.

        Raises ReplayDiverged at the first position that is not, AdmissionError when this plan cannot compute that
        partition, or the stages hold another model.
        """
        running = self.require_running(question.epoch)
        record = self._ledger.session(question.session)
        recorded = read_document(Partition, record.partition, f"partition of session {question.session}")
        grid = tuple(step for step in recorded.steps if step.start < len(record.prompt))
        wanted = _partition(running, recorded.session_positions, recorded.steps)
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
        return await self._run(running, active, grid)

    async def follow(self, question: m.Follow, on_token: OnToken) -> m.SessionRecord:
        """Give out a session's committed tokens from a position on until it has ended; raises as `following.follow`.

        Their text is that of the model in force, or of the last one that was.
        """
        await follow(self._ledger, self._text, question, on_token)
        return self.record(question.session)

    def require_running(self, epoch: int | None) -> RunningPlan:
        """Return the plan in force. Raises CommitRefused when there is none, or another epoch than the given one."""
        if self._running is None:
            raise CommitRefused(RefusalCode.NO_ACTIVE_AUTHORITY.value, "no plan is realized; realize one first")
        if epoch not in (None, self._running.epoch):
            code = RefusalCode.RETIRED_OR_SUPERSEDED_EPOCH.value
            raise CommitRefused(code, f"epoch {epoch} has ended; epoch {self._running.epoch} is in force")
        return self._running

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
        effects = self._keeper.demand(ev.SessionRequested(prompt_tokens=len(wanted.prompt)))
        opened = next(effect for effect in effects if isinstance(effect, ev.SessionOpened))
        row = wanted._replace(
            number=opened.session,
            epoch=opened.epoch,
            partition=canonical_bytes(_partition(running, session_positions, grid)),
            at_ns=time.time_ns(),
            model=running.model,
        )
        self._ledger.open_session(row)
        active = ActiveSession(row, session_positions, self._text, on_token)
        self._active[row.number] = active
        return active

    async def _run(
        self,
        running: RunningPlan,
        active: ActiveSession,
        grid: tuple[Step, ...],
        on_admitted: OnAdmitted | None = None,
    ) -> m.Generated:
        row = active.row
        number, prompt = row.number, row.prompt
        history = prompt if row.sampling.is_penalized else ()
        terms = SessionTerms(
            prompt_tokens=len(prompt),
            max_tokens=row.max_tokens,
            session_positions=active.session_positions,
            stop_ids=row.stop,
            run_ahead=running.run_ahead,
            sampling=row.sampling,
            history=history,
        )
        try:
            if on_admitted is not None:
                await on_admitted(row, running.plan_digest)
            await self._send(running, FrameKind.OPEN, number, msgspec.msgpack.encode(terms))
            await active.opened
            for step in grid:
                ids = prompt[step.start : step.start + step.count]
                payload = b"".join(token.to_bytes(4, "little", signed=True) for token in ids)
                last = step.start + step.count == len(prompt)
                active.sent.append(step)
                await self._send(
                    running, FrameKind.INPUT, number, payload, position=step.start, count=step.count, sample=last
                )
            reason = await active.finished
        except InferSwarmError as error:
            self._end(running, active, SessionState.FAILED, str(error))
            if self._running is running:
                await self._send(running, FrameKind.CLOSE, number, b"")
            raise
        except asyncio.CancelledError:
            self._end(running, active, SessionState.CANCELLED, "cancelled: its client or its Coordinator ended")
            if self._running is running:
                await self._send(running, FrameKind.CLOSE, number, b"")
            raise
        finally:
            self._active.pop(number, None)
        self._end(running, active, SessionState.COMPLETED, reason)
        self._active[number] = active
        try:
            await self._send(running, FrameKind.CLOSE, number, b"")
            reports = await active.closed
        finally:
            self._active.pop(number, None)
        return m.Generated(
            record=self.record(number), text="".join(active.text), finish_reason=reason, reports=reports
        )

    def _end(self, running: RunningPlan, active: ActiveSession, state: SessionState, reason: str) -> None:
        row = active.row
        singles = (Step(len(row.prompt) + index, 1) for index in range(len(active.commits) - 1))
        steps = (*active.sent, *singles)  # what was really asked of the stages
        if self._keeper.state.session(row.number) is not None:  # not ended by the end of its epoch already
            self._keeper.advance(ev.SessionEnded(session=row.number, state=state, reason=reason))
        ended = self._ledger.session(row.number)
        partition = canonical_bytes(_partition(running, active.session_positions, steps))
        self._ledger.end_session(row.number, ended.state, ended.reason, partition, active.matched)

    async def _send(
        self,
        running: RunningPlan,
        kind: FrameKind,
        session: int,
        payload: bytes,
        *,
        position: int = 0,
        count: int = 0,
        sample: bool = False,
    ) -> None:
        if self._first is None:
            raise CommitRefused("NO_ACTIVE_AUTHORITY", "the epoch ended")
        header = running.address.header(kind, session, position=position, count=count, sample=sample)
        try:
            self._first.writelines(pack(encode(header, payload)))
            await self._first.drain()
        except OSError as error:
            self._on_doubt(WireError("PEER_NOT_RECEIVING", f"the first stage: {error}"))

    # -- what comes back --

    async def handle(self, frame: Frame) -> None:
        """Take one frame from the stages. What does not belong here is refused, counted, and changes nothing."""
        try:
            await self._handle(frame)
        except msgspec.DecodeError as error:
            self._ledger.refuse("MALFORMED_PAYLOAD", f"session {frame.header.session}: {error}")
        except InferSwarmError as error:  # a token that the tokenizer lacks, an epoch that ended meanwhile
            if (active := self._active.get(frame.header.session)) is not None:
                active.fail(error)

    async def _handle(self, frame: Frame) -> None:
        kind = frame.header.kind
        active, running = self._active.get(frame.header.session), self._running
        if kind == FrameKind.RESULT:
            await self._result(frame, active)
        elif kind not in (FrameKind.OPENED, FrameKind.CLOSED, FrameKind.FAULT):
            self._ledger.refuse("UNKNOWN_OPERATION", f"a frame of kind {kind}")
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
        active.commits.append(row)
        if (difference := active.difference()) is not None:
            active.fail(ReplayDiverged(row.position, difference))
            return
        shown, ending = active.show(row.token)
        if ending is None:
            await self._send(running, FrameKind.CREDIT, header.session, b"", position=header.position)
        await active.on_token(header.session, header.position, row.token, shown, row.logprobs)
        if ending is not None and not active.finished.done():
            active.finished.set_result(ending)

    def session_closed(self, effect: ev.SessionClosed) -> None:
        """The state machine ended a session; when it failed, whoever waits for it hears why."""
        active = self._active.get(effect.session)
        if active is None:
            return
        if effect.state is SessionState.FAILED:
            active.fail(StageLost("swarm", f"session {effect.session}", effect.reason, effect.committed))
        elif effect.state is SessionState.CANCELLED:
            code = RefusalCode.RETIRED_OR_SUPERSEDED_EPOCH.value
            kept = f"{effect.committed} committed tokens are kept in the ledger"
            active.fail(CommitRefused(code, f"session {effect.session} was cancelled: {effect.reason}; {kept}"))

    def participant_lost(self, error: InferSwarmError) -> None:
        """Tell every open session what exactly was lost."""
        for active in self._active.values():
            if isinstance(error, StageLost):
                committed = len(active.commits)
                active.fail(StageLost(error.node, error.participant, error.reason, committed))
            else:
                active.fail(error)

    def record(self, number: int) -> m.SessionRecord:
        """Return what the ledger holds of a session."""
        row = self._ledger.session(number)
        commits = self._ledger.commits(number)
        return m.SessionRecord(
            session=row.number,
            epoch=row.epoch,
            state=row.state,
            reason=row.reason,
            prompt_ids=row.prompt,
            tokens=tuple(commit.token for commit in commits),
            logits_digests=tuple(commit.logits_digest for commit in commits),
            margins=tuple(commit.margin for commit in commits),
            commit_seconds=tuple((commit.at_ns - row.at_ns) / 1e9 for commit in commits),
            partition=row.partition.decode(),
            replay_of=row.replay_of,
            max_tokens=row.max_tokens,
            sampling=row.sampling,
            stop=row.stop_strings,
            matched_stop=row.matched,
            logprobs=None if row.sampling.logprobs is None else tuple(commit.logprobs or () for commit in commits),
            model=row.model,
        )


def _partition(running: RunningPlan, session_positions: int, steps: tuple[Step, ...]) -> Partition:
    plan = running.plan
    representations = plan_representations(plan)
    return Partition(
        primitive=plan.primitive,
        representation=mixture_name(representations),
        representations=representations if len(representations) > 1 else msgspec.UNSET,
        kernel=kernels_by_unit(
            (item.first_unit, item.end_unit, stage.kernel)
            for item, stage in zip(plan.placements, running.stages, strict=True)
        ),
        threads=merge_threads(
            tuple(UnitThreads(item.first_unit, item.end_unit, item.threads) for item in plan.placements)
        ),
        session_positions=session_positions,
        steps=steps,
    )
