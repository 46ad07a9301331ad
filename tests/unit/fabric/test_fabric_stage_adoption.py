"""A route of real stage processes that loses its last one: the first is adopted, and gives a new one what it sent."""

from __future__ import annotations

import asyncio
import os
import signal
from itertools import pairwise

import msgspec
import pytest

from inferswarm.artifacts.types import (
    ByteRange,
    ModelFile,
    ParticipantRequirement,
    StoredBlob,
    StoredBlobs,
    TensorRecord,
)
from inferswarm.backends.base import StageAssignment, UnitThreads
from inferswarm.backends.direct import run_direct
from inferswarm.errors import FabricError, RealizationFailed, StageLost
from inferswarm.fabric import messages as m
from inferswarm.fabric.envelope import NodeEnvelope
from inferswarm.fabric.frames import Address, Frame, encode
from inferswarm.fabric.frames import FrameKind as K
from inferswarm.fabric.stage_process import StageProcess
from inferswarm.fabric.terms import ResultBody, SessionTerms
from inferswarm.fabric.transport import Inbox, Outbox
from tests.unit.fabric.stage_ring import DESCRIPTION, null_executor

PLAN = "sha256:" + "ab" * 32
PROMPT = tuple(range(10, 31))
TOKENS, COMMITTED = 12, 4
EDGES = (0, 3, len(DESCRIPTION.unit_ids))


def needed(participant: str, root: str, length: int) -> ParticipantRequirement:
    """Eight bytes or so that nobody reads, kept at a root."""
    part = ByteRange(0, length)
    return ParticipantRequirement(
        participant=participant,
        problem_digest=PLAN,
        files=(ModelFile(uri="/model", length=16),),
        tensors=(TensorRecord(name="a", encoding="I8", shape=(length,), range=part),),
        state_ids=("a",),
        stored=StoredBlobs(root, (StoredBlob(0, part, PLAN),)),
    )


def assign(index: int, *, threads: int = 1, root: str = "/store", length: int = 8) -> StageAssignment:
    first, end = tuple(pairwise(EDGES))[index]
    return StageAssignment(
        participant=f"stage-{index}",
        plan_digest=PLAN,
        primitive="null",
        representation="fp32",
        description=DESCRIPTION,
        first_unit=first,
        end_unit=end,
        threads=(UnitThreads(first, end, threads),),
        requirement=needed(f"stage-{index}", root, length),
        max_positions=64,
        sessions=2,
        chunk_positions=8,
    )


def terms_of(committed: int) -> bytes:
    return msgspec.msgpack.encode(SessionTerms(len(PROMPT), TOKENS, 64, (), 2, committed=committed))


class Route:
    """Two stage processes under one address, with the test as Coordinator."""

    def __init__(self, stages: list[StageProcess], realization: str, epoch: int, inbox: Inbox) -> None:
        self.stages, self.inbox = stages, inbox
        self.address = Address("scope", epoch, realization, PLAN.removeprefix("sha256:")[:12])
        self.first = Outbox(stages[0].endpoint)

    async def begin(self) -> None:
        """Connect and activate."""
        ends = [stage.endpoint for stage in self.stages]
        for stage, following in zip(self.stages, [*ends[1:], None], strict=True):
            links = m.Connect(
                next_endpoint=following, first_endpoint=ends[0], coordinator_endpoint=self.inbox.endpoint
            )
            await stage.call(links)
        for stage in self.stages:
            await stage.call(m.Activate(epoch=self.address.epoch))

    def send(self, kind: K, payload: bytes = b"", *, position: int = 0, count: int = 0, sample: bool = False) -> None:
        """Send a frame to the first stage."""
        header = self.address.header(kind, 1, position=position, count=count, sample=sample)
        self.first.send(encode(header, payload))

    async def frames(self) -> list[Frame]:
        """Wait for something from the stages."""
        async with asyncio.timeout(20.0):
            while not (found := self.inbox.receive()):
                await asyncio.sleep(0.002)
        return found

    async def commit(self, tokens: list[int], end: int) -> None:
        """Take results of this address until so many are committed; those of another one are dropped."""
        while len(tokens) < end:
            for frame in await self.frames():
                ours = self.address.mismatch(frame.header) is None
                assert not ours or frame.header.kind in (K.OPENED, K.RESULT), bytes(frame.payload)
                if ours and frame.header.kind == K.RESULT and len(tokens) < end:
                    assert frame.header.position == len(PROMPT) + len(tokens)
                    tokens.append(msgspec.msgpack.decode(frame.payload, type=ResultBody).token)
                    self.send(K.CREDIT, position=frame.header.position)


async def started(index: int, realization: str) -> StageProcess:
    stage = StageProcess(f"{realization}/stage-{index}", f"node-{index}", NodeEnvelope(), lambda which, error: None)
    await stage.start(f"n{index}", "127.0.0.1")
    await stage.call(m.Materialize(assignment=assign(index), scope="scope", realization=realization))
    return stage


def test_a_lost_stage_is_replaced_and_the_answer_goes_on_where_it_was() -> None:
    async def story() -> None:
        inbox = Inbox("127.0.0.1")
        routes: list[Route] = []
        stages = list(await asyncio.gather(started(0, "r1"), started(1, "r1"), started(1, "r2")))
        first, lost, fresh = stages
        try:
            old = Route([first, lost], "r1", 1, inbox)
            routes.append(old)
            await old.begin()
            old.send(K.OPEN, terms_of(0))
            for start in range(0, len(PROMPT), 8):
                ids = PROMPT[start : start + 8]
                payload = b"".join(token.to_bytes(4, "little") for token in ids)
                last = start + len(ids) == len(PROMPT)
                old.send(K.INPUT, payload, position=start, count=len(ids), sample=last)
            tokens: list[int] = []
            await old.commit(tokens, COMMITTED)
            os.kill(lost.pid, signal.SIGKILL)
            await asyncio.wait_for(asyncio.shield(lost._exit), 5.0)
            with pytest.raises(StageLost, match="SIGKILL"):
                await lost.call(m.Report())

            for other in (assign(0, threads=2), assign(0, length=9)):
                with pytest.raises(RealizationFailed, match="computed in another way"):
                    await first.call(m.Adopt(assignment=other, scope="scope", realization="r2"))
            elsewhere = assign(0, root="/moved")  # what is held was read: where it was kept changes nothing
            adopted = await first.call(m.Adopt(assignment=elsewhere, scope="scope", realization="r2"))
            assert isinstance(adopted, m.Adopted)
            (held,) = adopted.sessions
            position = len(PROMPT) - 1 + COMMITTED
            assert (held.session, held.journal_from) == (1, 0)
            assert held.positions >= position
            old.send(K.CREDIT, position=position + 1)  # late, and of an epoch that is over
            new = Route([first, fresh], "r2", 2, inbox)
            routes.append(new)
            for stage, kept in ((first, position), (fresh, 0)):
                terms = terms_of(COMMITTED)
                answer = await stage.call(m.Hold(sessions=(m.SessionOrder(1, terms, kept, 0),)))
                assert isinstance(answer, m.Held)
                assert answer.sessions == (m.SessionHeld(1, kept, 0),)
            await new.begin()
            with pytest.raises(FabricError, match="not kept"):
                await first.call(m.Refill(session=1, first=0, end=position + 1))
            await first.call(m.Refill(session=1, first=0, end=position))
            payload = tokens[-1].to_bytes(4, "little")
            new.send(K.INPUT, payload, position=position, count=1, sample=True)
            await new.commit(tokens, TOKENS)
            expected = run_direct(null_executor(0, EDGES[-1]), PROMPT, max_tokens=TOKENS, chunk_positions=8)
            assert tuple(tokens) == expected.tokens
            report = await first.call(m.Report())
            assert isinstance(report, m.StageReport)
            assert dict(report.refusals).get("RETIRED_OR_SUPERSEDED_EPOCH") == 1
        finally:
            await asyncio.gather(*(stage.stop() for stage in stages))
            for route in routes:
                route.first.close()
            inbox.close()

    asyncio.run(story())
