"""The Coordinator: ingress, membership, epoch authority and committed output for one scope. Torch-free.

One asyncio loop. It never sees a tensor: activations go from stage to stage, and what arrives here is a token and a
digest. Agents are not its children, so its death does not kill them.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import socket
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from inferswarm.backends.base import LogProbabilities
from inferswarm.errors import AuthorityUncertain, InferSwarmError, RealizationFailed, SpecError, StageLost, WireError
from inferswarm.fabric import events as ev
from inferswarm.fabric import messages as m
from inferswarm.fabric.authority_keeper import AuthorityKeeper
from inferswarm.fabric.channel import MAX_MESSAGE_BYTES
from inferswarm.fabric.faults import to_error, to_fault
from inferswarm.fabric.frames import PROTOCOL, decode
from inferswarm.fabric.ledger import Ledger, SessionRow
from inferswarm.fabric.membership import Membership
from inferswarm.fabric.realizing import Realizer, RunningPlan
from inferswarm.fabric.sessions import Sessions
from inferswarm.fabric.sockets import bind
from inferswarm.fabric.text_side import TextSide
from inferswarm.fabric.transport import parse_endpoint, receive_frame

LEASE_CHECKS_PER_LEASE = 4


class CoordinatorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a Coordinator is told at its start. `port` 0 takes a free one; `lease_seconds` is also the Nodes'."""

    scope: str
    ledger: str
    token: str
    address: str
    port: int
    lease_seconds: float
    remove_directory: str | None = None
    """Removed at the end: the ledger of a swarm that ends with its owner."""


class Coordinator:
    """The one authority of a scope, for as long as it holds the scope's lease."""

    def __init__(self, spec: CoordinatorSpec) -> None:
        """Open the ledger, bind the sockets, take the lease.

        Raises AuthorityUncertain while another Coordinator holds the lease, EngineError for a port in use,
        SpecError for a ledger that cannot be written.
        """
        self._spec = spec
        self._ledger = Ledger(Path(spec.ledger))
        self._context: zmq.asyncio.Context = zmq.asyncio.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.LINGER, 500)
        self._router.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self._router.setsockopt(zmq.SNDHWM, 0)  # a client that reads slowly loses nothing
        self.endpoint = bind(self._router, spec.address, spec.port)
        self._results = socket.create_server((spec.address, 0))
        results_endpoint = "tcp://{}:{}".format(*self._results.getsockname()[:2])
        # The lease comes last: a start that fails before it must not keep the scope from another Coordinator.
        self._holder = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._leased_at = time.monotonic()
        self.term = self._ledger.acquire_lease(spec.scope, self._holder, spec.lease_seconds)
        self._ledger.close_orphans("its Coordinator ended before it did")
        self._keeper = AuthorityKeeper(spec.scope, self._ledger, self._on_effect)
        self._members = Membership(self._send)
        self._members.term = self.term
        self._realizer = Realizer(spec.scope, self._keeper, self._members, results_endpoint)
        self._sessions = Sessions(self._keeper, self._ledger, self._doubt)
        self._running: RunningPlan | None = None
        self._clients: set[bytes] = set()
        self._asked: dict[tuple[bytes, int], asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._defect: BaseException | None = None

    def stop(self) -> None:
        """Ask `run` to end."""
        self._stop.set()

    async def run(self) -> None:
        """Serve until stopped. Raises AuthorityUncertain when the lease is lost."""
        self._grant(self._leased_at)
        loops = [
            asyncio.create_task(self._receive_control()),
            asyncio.create_task(self._serve_results()),
            asyncio.create_task(self._keep_leases()),
            asyncio.create_task(self._stop.wait()),
        ]
        try:
            done, _ = await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (*loops, *self._tasks):
                task.cancel()
            await asyncio.gather(*loops, *self._tasks, return_exceptions=True)
            self._sessions.stop_serving()
            self._ledger.release_lease(self._spec.scope, self._holder)
            self._ledger.close()
            self._context.destroy(linger=200)
            if self._spec.remove_directory is not None:
                shutil.rmtree(self._spec.remove_directory, ignore_errors=True)
        if self._defect is not None:
            raise self._defect

    # -- wire --

    async def _send(self, identity: bytes, message: msgspec.Struct) -> None:
        await self._router.send_multipart([identity, msgspec.msgpack.encode(message)])

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._defect = self._defect or task.exception()  # end rather than go on half
            self._stop.set()

    async def _receive_control(self) -> None:
        decoder = msgspec.msgpack.Decoder(m.ToCoordinator)
        while True:
            parts = await self._router.recv_multipart()
            if len(parts) != 2:
                continue
            try:
                message = decoder.decode(parts[1])
            except (msgspec.DecodeError, ValueError) as error:
                await self._send(parts[0], m.Turned(fault=to_fault(WireError("MALFORMED_MESSAGE", str(error)))))
                continue
            await self._dispatch(parts[0], message)

    async def _dispatch(self, identity: bytes, message: m.ToCoordinator) -> None:
        match message:
            case m.Join():
                await self._join(identity, message)
            case m.Hello():
                await self._hello(identity, message)
            case m.Ask():
                await self._ask(identity, message)
            case m.Abandon():
                self._abandon(identity, message.request)
            case m.Beat() | m.StageGone() | m.Answered() | m.Failed() | m.Progressed():
                await self._from_node(identity, message)

    async def _from_node(
        self, identity: bytes, message: m.Beat | m.StageGone | m.Answered | m.Failed | m.Progressed
    ) -> None:
        node_id = self._members.node_of(identity)
        if node_id is None:
            error = AuthorityUncertain("this connection belongs to no member; join first")
            await self._send(identity, m.Turned(fault=to_fault(error)))
            return
        match message:
            case m.Beat():
                if message.node_id == node_id:
                    await self._beat(identity, message)
            case m.StageGone():
                self._stage_gone(node_id, message)
            case m.Answered() | m.Failed() | m.Progressed():
                self._members.answered(node_id, message)

    async def _serve_results(self) -> None:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._spawn(self._receive_results(reader, writer))

        server = await asyncio.start_server(accept, sock=self._results)
        async with server:
            await server.serve_forever()

    async def _receive_results(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take frames from one stage until it has gone. What fails its checks is refused and counted."""
        try:
            while (parts := await receive_frame(reader)) is not None:
                try:
                    frame = decode(parts)
                except WireError as error:
                    self._ledger.refuse(error.code, str(error))
                else:
                    await self._sessions.handle(frame)
        except WireError as error:  # lengths that make no sense: nothing behind them can be read either
            self._ledger.refuse(error.code, str(error))
        finally:
            writer.close()

    def _doubt(self, error: WireError) -> None:
        """A connection of the route broke. When no agent reports a death within a lease, the route is lost itself."""
        if self._running is not None:
            self._spawn(self._end_route(self._running, error))

    async def _end_route(self, running: RunningPlan, error: WireError) -> None:
        await asyncio.sleep(self._spec.lease_seconds)
        if self._running is running:
            self._sessions.participant_lost(error)
            lost = ev.ParticipantLost(realization_id=running.realization, participant="the route", reason=str(error))
            self._keeper.advance(lost)

    # -- members and leases --

    def _check_token(self, token: str, protocol: int) -> InferSwarmError | None:
        if not secrets.compare_digest(token.encode(), self._spec.token.encode()):
            return SpecError("token", "another token", "this swarm's token")
        if protocol != PROTOCOL:
            return WireError("PROTOCOL_MISMATCH", f"the peer speaks {protocol}, this Coordinator {PROTOCOL}")
        return None

    async def _join(self, identity: bytes, join: m.Join) -> None:
        error = self._check_token(join.token, join.protocol)
        same_name = [link for link in self._members.links() if link.join.name == join.name]
        if error is None and any(link.join.node_id != join.node_id for link in same_name):
            error = SpecError("node name", join.name, "a name that no other member has")
        member = self._keeper.state.member(join.node_id)
        again = member is not None and member.incarnation == join.incarnation
        if error is None and not (again and self._members.node_of(identity) == join.node_id):
            until = time.monotonic() + self._spec.lease_seconds
            effects = self._keeper.advance(
                ev.NodeJoined(node_id=join.node_id, incarnation=join.incarnation, lease_until=until)
            )
            refused = [effect for effect in effects if isinstance(effect, ev.Refused)]
            if refused:
                error = AuthorityUncertain(f"{refused[0].code.value}: {refused[0].detail}")
        if error is not None:
            await self._send(identity, m.Turned(fault=to_fault(error)))
            return
        self._members.add(identity, join)
        await self._send(identity, m.Welcome(term=self.term, lease_seconds=self._spec.lease_seconds))

    async def _beat(self, identity: bytes, beat: m.Beat) -> None:
        until = time.monotonic() + self._spec.lease_seconds
        effects = self._keeper.advance(
            ev.NodeRenewed(node_id=beat.node_id, incarnation=beat.incarnation, lease_until=until)
        )
        if any(isinstance(effect, ev.Refused) for effect in effects):
            error = AuthorityUncertain("the lease of this incarnation ran out; join again")
            await self._send(identity, m.Turned(fault=to_fault(error)))
        else:
            await self._send(identity, m.BeatSeen(term=self.term))

    def _grant(self, since: float) -> None:
        until = since + self._spec.lease_seconds  # never later than what the ledger says
        self._keeper.demand(ev.LeaseGranted(term=self.term, lease_until=until))

    async def _keep_leases(self) -> None:
        while True:
            await asyncio.sleep(self._spec.lease_seconds / LEASE_CHECKS_PER_LEASE)
            before = time.monotonic()
            self._ledger.renew_lease(self._spec.scope, self._holder, self.term, self._spec.lease_seconds)
            self._grant(before)
            self._keeper.advance(ev.ClockAdvanced())

    # -- effects --

    def _stage_gone(self, node_id: str, message: m.StageGone) -> None:
        owner = self._realizer.participant_of(message.stage)
        if owner is None or not self._realizer.uses_node(owner[0], node_id):
            return  # a stage of a probe: the call that waits for it hears of it
        realization, participant = owner
        error = to_error(message.fault)
        if isinstance(error, StageLost):
            error = StageLost(error.node, participant, error.reason)
        if self._running is not None and self._running.realization == realization:
            self._sessions.participant_lost(error)
        self._keeper.advance(
            ev.ParticipantLost(realization_id=realization, participant=participant, reason=str(error))
        )

    def _on_effect(self, effect: ev.Effect) -> None:
        match effect:
            case ev.MemberLost():
                name = self._members.name_of(effect.node_id)
                if self._running is not None and self._realizer.uses_node(self._running.realization, effect.node_id):
                    self._sessions.participant_lost(StageLost(name, "its agent", effect.reason))
                self._members.remove(effect.node_id, effect.reason)
            case ev.SessionClosed():
                self._sessions.session_closed(effect)
            case ev.EpochLost():
                self._sessions.stop_serving()
                self._running = None
            case ev.RealizationDied():
                self._spawn(self._realizer.reclaim(effect.realization_id))
            case _:
                pass

    # -- clients --

    async def _hello(self, identity: bytes, hello: m.Hello) -> None:
        error = self._check_token(hello.token, hello.protocol)
        if error is not None:
            await self._send(identity, m.Turned(fault=to_fault(error)))
            return
        self._clients.add(identity)
        await self._send(identity, m.Welcome(term=self.term, lease_seconds=self._spec.lease_seconds))

    async def _ask(self, identity: bytes, ask: m.Ask) -> None:
        if identity not in self._clients:
            error = SpecError("client", "a connection without a greeting", "a greeting with the swarm's token")
            await self._send(identity, m.Turned(fault=to_fault(error)))
            return
        self._asked[identity, ask.request] = self._spawn(self._answer(identity, ask))

    async def _answer(self, identity: bytes, ask: m.Ask) -> None:
        try:
            answer = await self._execute(identity, ask)
        except InferSwarmError as error:
            await self._send(identity, m.Failed(request=ask.request, fault=to_fault(error)))
        else:
            await self._send(identity, m.ClientAnswered(request=ask.request, answer=answer))
        finally:
            self._asked.pop((identity, ask.request), None)
            self._clients.discard(identity)  # a connection asks once

    def _abandon(self, identity: bytes, request: int) -> None:
        task = self._asked.get((identity, request))
        if task is not None:
            task.cancel()

    async def _execute(self, identity: bytes, ask: m.Ask) -> m.ClientAnswer:
        question = ask.question

        def on_progress(progress: m.Progressed) -> None:
            passed = m.Progressed(request=ask.request, done=progress.done, total=progress.total, note=progress.note)
            self._spawn(self._send(identity, passed))

        async def on_token(
            session: int, position: int, token: int, text: str, logprobs: LogProbabilities | None
        ) -> None:
            committed = m.TokenCommitted(
                request=ask.request, session=session, position=position, token=token, text=text, logprobs=logprobs
            )
            await self._send(identity, committed)

        async def on_admitted(row: SessionRow, plan_digest: str) -> None:
            admitted = m.SessionAdmitted(
                request=ask.request,
                session=row.number,
                epoch=row.epoch,
                plan_digest=plan_digest,
                prompt_tokens=len(row.prompt),
            )
            await self._send(identity, admitted)

        match question:
            case m.Status():
                return self._status()
            case m.OnNode():
                return await self._members.call(question.node_id, question.command, on_progress)
            case m.Realize():
                return await self._realize(question, on_progress)
            case m.Generate():
                return await self._sessions.generate(question, on_token, on_admitted)
            case m.Replay():
                return await self._sessions.replay(question, on_token)
            case m.Retire():
                return await self._retire(question.epoch)
            case m.StageReports():
                return await self._stage_reports(question.epoch)
            case m.ShowSession():
                return self._sessions.record(question.session)
            case m.Follow():
                return await self._sessions.follow(question, on_token)
            case m.Shutdown():
                self._stop.set()
                return m.Done()

    def _status(self) -> m.SwarmStatus:
        active = self._keeper.state.active_epoch()

        def lease_until(node_id: str) -> float | None:
            member = self._keeper.state.member(node_id)
            return None if member is None else member.lease_until

        return m.SwarmStatus(
            scope=self._spec.scope,
            term=self.term,
            pid=os.getpid(),
            nodes=self._members.statuses(lease_until),
            epoch=None if active is None else active.number,
            plan_digest=None if active is None else active.plan_digest,
            refusals=tuple(sorted(self._ledger.refusals().items())),
        )

    async def _realize(self, question: m.Realize, on_progress: Any) -> m.Realized:
        started = time.monotonic()
        path = question.model_path
        text = None if path is None else await asyncio.to_thread(TextSide, path)
        self._ledger.save_plan(question.plan)
        running = await self._realizer.realize(question, on_progress)
        try:
            _, first = await asyncio.open_connection(*parse_endpoint(running.endpoints[0]))
        except OSError as error:
            reason = f"the first stage cannot be reached: {error}"
            self._keeper.advance(ev.RealizationEnded(realization_id=running.realization, reason=reason))
            raise RealizationFailed(running.plan.placements[0].node_name, reason) from error
        active = self._keeper.state.active_epoch()
        if active is None or active.number != running.epoch:  # a stage was lost in this very moment
            first.close()
            raise RealizationFailed(running.plan.placements[0].node_name, "a stage was lost as the epoch began")
        self._running = running
        self._sessions.serve(running, first, text)
        return m.Realized(
            epoch=running.epoch,
            realization=running.realization,
            stages=running.stages,
            pids=running.pids,
            seconds=time.monotonic() - started,
            paths=running.paths,
        )

    async def _retire(self, epoch: int | None) -> m.Done:
        active = self._keeper.state.active_epoch()
        if active is not None and epoch in (None, active.number):
            self._keeper.demand(ev.EpochRetired(epoch=active.number, reason="retired on request"))
            await self._realizer.reclaim(active.realization_id)
        return m.Done()

    async def _stage_reports(self, epoch: int | None) -> m.StageReportList:
        running = self._sessions.require_running(epoch)
        return m.StageReportList(reports=await self._realizer.reports(running))
