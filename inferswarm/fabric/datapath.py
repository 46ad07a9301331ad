"""The token path of one stage: frames in, one step of the executor, frames out.

A stage holds no policy. It checks that a frame belongs to its epoch and continues its session, computes, and passes
on. The last stage samples and starts the next step at the first stage itself; the first stage runs ahead of the
Coordinator's commits by at most the window that the session was opened with.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from inferswarm.backends.base import StageExecutor, StepOutput
from inferswarm.errors import FabricError, InferSwarmError, WireError
from inferswarm.fabric.connection_watch import LOOK_SECONDS
from inferswarm.fabric.faults import to_fault
from inferswarm.fabric.frames import ROUTE_SESSION, Address, Frame, FrameKind, encode, frame_bytes
from inferswarm.fabric.messages import SessionReport
from inferswarm.fabric.stage_journal import KeptStep
from inferswarm.fabric.stage_sessions import HeldSession, HeldSessions
from inferswarm.fabric.terms import ResultBody, SessionTerms
from inferswarm.fabric.transport import Outbox

MAX_HOP_SAMPLES = 4096
"""Raw hop times kept per session; later ones are counted in nothing else."""
SAY_AGAIN_SECONDS = 1.0
"""How long a stage that cannot reach the Coordinator waits until it says again that its route is broken."""
MAX_ENDED_SESSIONS = 1024
"""Closed sessions that a first stage remembers, to know their last steps when those come round."""


_terms = msgspec.msgpack.Decoder(SessionTerms)
_reports = msgspec.msgpack.Decoder(tuple[SessionReport, ...])


class DataPath:
    """One stage's part of the route, for one epoch. Not thread-safe: one thread drives it."""

    def __init__(
        self,
        executor: StageExecutor,
        address: Address,
        *,
        participant: str,
        node_id: str,
        results: Outbox,
        following: Outbox | None,
        first: Outbox | None,
        is_first: bool,
        held: HeldSessions | None = None,
    ) -> None:
        """`following` is None for the last stage; `first` is None when this stage is the first itself.

        `held` are the sessions that the stage has already; None: none.
        """
        self._executor = executor
        self._held = held or HeldSessions(executor, holds_head=following is None)
        self._address = address
        self._participant = participant
        self._node_id = node_id
        self._results = results
        self._following = following
        self._first = first
        self._ended: dict[int, int] = {}
        self._local: deque[Frame] = deque()
        self._is_left = False
        self._looks_at = 0.0
        self._broken: WireError | None = None
        """What the Coordinator has to hear of the route and has not been told."""
        self.refusals: Counter[str] = Counter()
        self.frames_sent = 0
        self.bytes_sent = 0
        self.unexplained_bytes_received = 0
        """Payload bytes of frames that belong to no session and no step here: where moved state would show."""
        self.step_started: float | None = None
        self._handlers: dict[int, Callable[[Frame], None]] = {
            FrameKind.OPEN: self._open,
            FrameKind.CLOSE: self._close,
        }
        if is_first:
            self._handlers |= {FrameKind.INPUT: self._input, FrameKind.CREDIT: self._credit}
        else:
            self._handlers |= {FrameKind.BOUNDARY: self._boundary}

    @property
    def has_authority(self) -> bool:
        """Whether its frames are those of an epoch, rather than what stages compute to be ready for one."""
        return self._address.epoch > 0

    def close(self) -> None:
        """Leave the route: what is being sent is given up, and nothing is sent any more."""
        self._is_left = True
        self._local.clear()
        for outbox in (self._results, self._following, self._first):
            if outbox is not None:
                outbox.close()

    def handle(self, frame: Frame) -> None:
        """Do what a frame asks for. A frame that does not belong here is refused and counted."""
        self._local.append(frame)
        while self._local:
            current = self._local.popleft()
            code = self._address.mismatch(current.header)
            handler = self._handlers.get(current.header.kind)
            if code is not None or handler is None:
                self._refuse(current, code or "UNKNOWN_OPERATION")
                continue
            try:
                handler(current)
            except msgspec.DecodeError:
                self._refuse(current, "MALFORMED_PAYLOAD")
            except InferSwarmError as error:
                self._report_fault(current, error)

    def watch(self, now: float) -> None:
        """Look at the connections that frames leave by, if it is time to, and report one that broke.

        What was on its way over it may be lost, and then nobody would ever wait for less.
        """
        if now < self._looks_at or self._is_left:
            return
        self._looks_at = now + LOOK_SECONDS
        for outbox in (self._results, self._following, self._first):
            try:
                if outbox is not None:
                    outbox.check()
            except WireError as error:
                self._broken = error
        if self._broken is not None and self._send_fault(ROUTE_SESSION, 0, self._broken):
            self._broken = None
        elif self._broken is not None:
            self._looks_at = now + SAY_AGAIN_SECONDS

    def _report_fault(self, frame: Frame, error: InferSwarmError) -> None:
        if not self._is_left:  # else what went wrong is that the route ended, and whoever ended it knows
            self._send_fault(frame.header.session, frame.header.position, error)

    def _send_fault(self, session: int, position: int, error: InferSwarmError) -> bool:
        header = self._address.header(FrameKind.FAULT, session, position=position)
        try:
            self._results.send(encode(header, msgspec.msgpack.encode(to_fault(error))))
        except WireError as unreachable:
            self._broken = unreachable
            return False
        return True

    # -- sessions --

    def _open(self, frame: Frame) -> None:
        terms = _terms.decode(frame.payload)
        number = frame.header.session
        self._held.open(number, terms)
        if self._following is not None:
            self._forward(self._following, FrameKind.OPEN, number, bytes(frame.payload))
        else:
            self._forward(self._results, FrameKind.OPENED, number, b"")

    def _close(self, frame: Frame) -> None:
        number = frame.header.session
        reports = _reports.decode(frame.payload) if len(frame.payload) else ()
        if self._held.get(number) is None:
            self.refusals["SESSION_MISMATCH"] += 1
        else:
            self._remember_end(number)
            if (session := self._held.close(number)) is not None:
                reports = (*reports, session.report(self._participant, self._node_id))
        body = msgspec.msgpack.encode(reports)
        if self._following is not None:
            self._forward(self._following, FrameKind.CLOSE, number, body)
        else:
            self._forward(self._results, FrameKind.CLOSED, number, body)

    def _remember_end(self, number: int) -> None:
        """Keep which step of a session may still come round: the Coordinator may end it while one is on its way."""
        self._ended[number] = self._held.length(number)
        if len(self._ended) > MAX_ENDED_SESSIONS:
            del self._ended[next(iter(self._ended))]  # the oldest

    def _credit(self, frame: Frame) -> None:
        session = self._held.get(frame.header.session)
        if session is None:
            return  # a credit for the last token may cross the close
        session.committed = max(session.committed, frame.header.position)
        if session.waiting is not None and self._may_run(session, session.waiting):
            waiting, session.waiting = session.waiting, None
            self._local.append(waiting)

    # -- steps --

    @staticmethod
    def _may_run(session: HeldSession, frame: Frame) -> bool:
        return frame.header.position - session.committed <= session.terms.run_ahead

    def _known(self, frame: Frame) -> HeldSession | None:
        session = self._held.get(frame.header.session)
        if session is None:
            self._refuse(frame, "SESSION_MISMATCH")
            return None
        if frame.header.position != self._held.length(frame.header.session):
            self._refuse(frame, "NON_NEXT_POSITION")
            return None
        return session

    def _refuse(self, frame: Frame, code: str) -> None:
        self.refusals[code] += 1
        self.unexplained_bytes_received += len(frame.payload)

    def _input(self, frame: Frame) -> None:
        header = frame.header
        if header.count == 1 and self._ended.get(header.session) == header.position:
            del self._ended[header.session]
            return
        if (session := self._known(frame)) is None:
            return
        frame = self._note_hop(session, frame)
        generated = frame.header.position >= session.terms.prompt_tokens
        if generated and not self._may_run(session, frame):
            session.waiting = frame
        else:
            self._step(session, frame)

    def _boundary(self, frame: Frame) -> None:
        if (session := self._known(frame)) is not None:
            self._step(session, self._note_hop(session, frame))

    @staticmethod
    def _note_hop(session: HeldSession, frame: Frame) -> Frame:
        """Keep how long a frame took until it was here, once: it may have to wait for a credit afterwards."""
        if not frame.header.sent_ns:
            return frame
        if len(session.hops) < MAX_HOP_SAMPLES:
            session.hops.append((time.monotonic_ns() - frame.header.sent_ns) / 1e9)
        return Frame(replace(frame.header, sent_ns=0), frame.payload)

    def _step(self, session: HeldSession, frame: Frame) -> None:
        header = frame.header
        started = time.monotonic_ns()
        self.step_started = started / 1e9
        name = str(header.session)
        try:
            output = self._executor.step(name, header.position, header.count, frame.payload, sample=header.sample)
        finally:
            self.step_started = None
        session.compute_seconds += (time.monotonic_ns() - started) / 1e9
        session.positions += header.count
        session.steps += 1
        self._held.computed(header.session, header.position, header.count, output.payload)
        if self._following is not None:
            self._send_boundary(self._following, session, frame, output)
        elif header.sample:
            self._send_result(session, frame, output)

    def _send_boundary(self, following: Outbox, session: HeldSession, frame: Frame, output: StepOutput) -> None:
        if output.payload is None:
            raise FabricError(f"{self._participant}: the executor gave no boundary payload")
        step = frame.header
        if step.position >= session.passes_from:
            self._pass_on(
                following, session, step.session, KeptStep(step.position, step.count, output.payload), step.sample
            )

    def _pass_on(
        self, following: Outbox, session: HeldSession, number: int, step: KeptStep, sample: bool = False
    ) -> None:
        header = self._address.header(
            FrameKind.BOUNDARY,
            number,
            position=step.start,
            count=step.num_positions,
            sample=sample,
            sent_ns=time.monotonic_ns(),
        )
        self._count(session, send_counted(following, encode(header, step.payload)))

    def refill(self, number: int, first: int, end: int) -> None:
        """Send what was sent of positions [first, end) of a session to the next stage again, in the same steps.

        Raises FabricError when not all of it is kept, or when there is no next stage; WireError as every sending.
        """
        session, journal = self._held.get(number), self._held.journal
        if session is None or journal is None or self._following is None:
            raise FabricError(f"{self._participant} keeps nothing of session {number} for a next stage")
        for step in journal.read(number, first, end):
            self._pass_on(self._following, session, number, step)

    def _send_result(self, session: HeldSession, frame: Frame, output: StepOutput) -> None:
        if output.token is None or output.logits_digest is None or output.margin is None:
            raise FabricError(f"{self._participant}: the executor sampled no token")
        position = frame.header.position + frame.header.count
        number = frame.header.session
        session.generated += 1
        ended = session.generated >= session.terms.max_tokens or output.token in session.terms.stop_ids
        if not ended:
            self._send_next_input(session, number, position, output.token)
        body = msgspec.msgpack.encode(ResultBody(output.token, output.logits_digest, output.margin, output.logprobs))
        header = self._address.header(FrameKind.RESULT, number, position=position)
        self._count(session, send_counted(self._results, encode(header, body)))

    def _send_next_input(self, session: HeldSession, number: int, position: int, token: int) -> None:
        sent_ns = 0 if self._first is None else time.monotonic_ns()  # no hop where there is no link
        header = self._address.header(
            FrameKind.INPUT, number, position=position, count=1, sample=True, sent_ns=sent_ns
        )
        payload = token.to_bytes(4, "little", signed=True)
        if self._first is None:
            self._local.append(Frame(header, memoryview(payload)))
        else:
            self._count(session, send_counted(self._first, encode(header, payload)))

    def _forward(self, outbox: Outbox, kind: FrameKind, number: int, payload: bytes) -> None:
        outbox.send(encode(self._address.header(kind, number), payload))

    def _count(self, session: HeldSession, num_bytes: int) -> None:
        session.bytes_sent += num_bytes
        session.frames_sent += 1
        self.bytes_sent += num_bytes
        self.frames_sent += 1


def send_counted(outbox: Outbox, parts: tuple[bytes, bytes | memoryview, bytes]) -> int:
    """Send a frame and return its size in bytes."""
    outbox.send(parts)
    return frame_bytes(parts)
