"""The Coordinator: ingress, membership, epoch authority and committed output for one scope. Torch-free.

One asyncio loop. It never sees a tensor: activations go from stage to stage, and what arrives here is a token and a
digest. Agents are not its children, so its death does not kill them.
"""

from __future__ import annotations

import asyncio
import contextlib
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
from inferswarm.errors import AuthorityUncertain, InferSwarmError, SpecError, WireError
from inferswarm.fabric import events as ev
from inferswarm.fabric import messages as m
from inferswarm.fabric.acquiring import Acquirer
from inferswarm.fabric.authority import attempt_of
from inferswarm.fabric.authority_keeper import AuthorityKeeper
from inferswarm.fabric.channel import MAX_MESSAGE_BYTES
from inferswarm.fabric.faults import to_error, to_fault
from inferswarm.fabric.frames import PROTOCOL, decode
from inferswarm.fabric.ledger import Ledger, SessionRow
from inferswarm.fabric.membership import Membership
from inferswarm.fabric.scope_service import ScopeService, ScopeTerms
from inferswarm.fabric.sockets import bind
from inferswarm.fabric.stage_liveness import SILENT_SECONDS
from inferswarm.fabric.transport import receive_frame

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
    wait_seconds: float = 0.0
    """How long to wait for a lease that another Coordinator holds."""
    patience_seconds: float = 15.0
    """How long open sessions wait for a Node when no plan has all of its Nodes: about the restart of an agent."""
    silent_seconds: float = SILENT_SECONDS
    """How long the system of the first stage's Node may acknowledge nothing."""


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
        self.term = self._wait_for_lease()
        self._keeper = AuthorityKeeper(spec.scope, self._ledger, self._on_effect)
        self._members = Membership(self._send, self.term)
        terms = ScopeTerms(spec.lease_seconds, spec.patience_seconds, spec.silent_seconds)
        acquirer = Acquirer(spec.scope, spec.token, self._members, self._ledger)
        self._service = ScopeService(
            self._keeper, self._ledger, self._members, results_endpoint, terms, self._spawn, acquirer
        )
        self._void: set[tuple[str, str]] = set()
        """Nodes and incarnations that were lost: what they have counts for nothing."""
        self._clients: set[bytes] = set()
        self._asked: dict[tuple[bytes, int], asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._defect: BaseException | None = None

    def _wait_for_lease(self) -> int:
        """Take the scope's lease, waiting as long as the specification says; returns the term."""
        until = time.monotonic() + self._spec.wait_seconds
        while True:
            self._leased_at = time.monotonic()
            try:
                return self._ledger.acquire_lease(self._spec.scope, self._holder, self._spec.lease_seconds)
            except AuthorityUncertain:
                if self._leased_at >= until:
                    raise
            time.sleep(self._spec.lease_seconds / LEASE_CHECKS_PER_LEASE)

    def stop(self) -> None:
        """Ask `run` to end."""
        self._stop.set()

    async def run(self) -> None:
        """Serve until stopped. Raises AuthorityUncertain when the lease is lost."""
        self._grant(self._leased_at)
        self._spawn(self._service.go_on())
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
            if self._stop.is_set() and self._defect is None:
                await self._say_farewell()
            self._service.sessions.stop_serving()
            with contextlib.suppress(AuthorityUncertain):
                self._ledger.release_lease(self._spec.scope, self._holder)
            self._ledger.close()
            self._context.destroy(linger=200)
            if self._spec.remove_directory is not None:
                shutil.rmtree(self._spec.remove_directory, ignore_errors=True)
        if self._defect is not None:
            raise self._defect

    async def _say_farewell(self) -> None:
        """End on purpose: authority is given back, and no stage has to wait for a successor."""
        try:
            self._service.end()
        except AuthorityUncertain:
            return  # there is one
        for link in self._members.links():
            await self._send(link.identity, m.Farewell(term=self.term))

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
            await self._send(identity, m.Greet(term=self.term))
            return
        match message:
            case m.Beat():
                if message.node_id == node_id:
                    await self._beat(identity, message)
            case m.StageGone():
                self._service.stage_gone(node_id, message, to_error(message.fault))
            case m.Answered() | m.Failed() | m.Progressed():
                self._members.answered(node_id, message)

    async def _serve_results(self) -> None:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._spawn(self._receive_results(reader, writer))

        server = await asyncio.start_server(accept, sock=self._results)
        async with server:
            await server.serve_forever()

    async def _receive_results(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take frames from one stage until it has gone. What fails its checks is refused and counted.

        Then the connection ends: something is missing of what came over it, and the stage learns that.
        """
        try:
            while (parts := await receive_frame(reader)) is not None:
                await self._service.sessions.handle(decode(parts))
        except WireError as error:
            self._ledger.refuse(error.code, str(error))
        finally:
            writer.close()

    # -- members and leases --

    def _check_token(self, token: str, protocol: int) -> InferSwarmError | None:
        if not secrets.compare_digest(token.encode(), self._spec.token.encode()):
            return SpecError("token", "another token", "this swarm's token")
        if protocol != PROTOCOL:
            return WireError("PROTOCOL_MISMATCH", f"the peer speaks {protocol}, this Coordinator {PROTOCOL}")
        return None

    async def _join(self, identity: bytes, join: m.Join) -> None:
        self._keeper.advance(ev.ClockAdvanced())
        if (join.node_id, join.incarnation) in self._void:
            await self._send(identity, m.Void(term=self.term, reason="the lease of this incarnation ran out"))
            return
        error = self._check_token(join.token, join.protocol)
        same_name = [link for link in self._members.links() if link.join.name == join.name]
        if error is None and any(link.join.node_id != join.node_id for link in same_name):
            error = SpecError("node name", join.name, "a name that no other member has")
        if error is None and join.highest_term > self.term:
            error = AuthorityUncertain(f"this Node has obeyed term {join.highest_term}; this is term {self.term}")
        member = self._keeper.state.member(join.node_id)
        is_known = member is not None and member.incarnation == join.incarnation
        if error is None:
            until = time.monotonic() + self._spec.lease_seconds
            kind = ev.NodeRenewed if is_known else ev.NodeJoined
            effects = self._keeper.advance(
                kind(node_id=join.node_id, incarnation=join.incarnation, lease_until=until)
            )
            refused = [effect for effect in effects if isinstance(effect, ev.Refused)]
            if refused:
                error = AuthorityUncertain(f"{refused[0].code.value}: {refused[0].detail}")
        if error is not None:
            await self._send(identity, m.Turned(fault=to_fault(error), term=self.term))
            return
        self._members.add(identity, join)
        orphans = self._service.stages_found(join.node_id, frozenset(stage.stage for stage in join.stages))
        await self._send(identity, m.Welcome(term=self.term, lease_seconds=self._spec.lease_seconds))
        for stage in orphans:
            if not is_known or attempt_of(stage.partition("/")[0]) is not None:  # a probe's may be in use
                self._spawn(self._stop_orphan(join.node_id, stage))
        if not is_known:
            self._service.node_joined()

    async def _stop_orphan(self, node_id: str, stage: str) -> None:
        with contextlib.suppress(InferSwarmError):  # the Node has gone, and the stage with it
            await self._members.call(node_id, m.StopStage(stage=stage))

    async def _beat(self, identity: bytes, beat: m.Beat) -> None:
        until = time.monotonic() + self._spec.lease_seconds
        self._keeper.advance(ev.ClockAdvanced())
        if self._keeper.state.member(beat.node_id) is None:
            void = (beat.node_id, beat.incarnation) in self._void
            reason = "the lease of this incarnation ran out"
            answer = m.Void(term=self.term, reason=reason) if void else m.Greet(term=self.term)
            await self._send(identity, answer)
            return
        self._keeper.advance(ev.NodeRenewed(node_id=beat.node_id, incarnation=beat.incarnation, lease_until=until))
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

    def _on_effect(self, effect: ev.Effect) -> None:
        if isinstance(effect, ev.MemberLost):
            link = self._members.link(effect.node_id)
            if link is not None:
                self._void.add((effect.node_id, link.join.incarnation))
                self._service.member_lost(link.join.name, effect)
            self._members.remove(effect.node_id, effect.reason)
        self._service.on_effect(effect)

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
                return await self._service.realize(question, on_progress)
            case m.Change():
                return await self._service.change(question, on_progress)
            case m.Retain():
                self._service.retain(question)
                return m.Done()
            case m.Generate():
                return await self._service.sessions.generate(question, on_token, on_admitted)
            case m.Replay():
                return await self._service.sessions.replay(question, on_token)
            case m.Retire():
                await self._service.retire(question.epoch)
                return m.Done()
            case m.StageReports():
                return await self._service.stage_reports(question.epoch)
            case m.ShowSession():
                return self._service.sessions.record(question.session)
            case m.Follow():
                return await self._service.sessions.follow(question, on_token)
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
