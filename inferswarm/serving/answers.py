"""Answering: a session's tokens become one body or a stream of events, and its end becomes the response's end.

An answer that cannot go on says so: as a status where nothing was sent yet, as an error event where a stream has
begun. Only a session that was completed gets a finish reason.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import abstractmethod

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from inferswarm.errors import InferSwarmError
from inferswarm.fabric import messages as m
from inferswarm.fabric.expecting import expect
from inferswarm.serving.bodies import Bodies, Usage
from inferswarm.serving.identity import Named
from inferswarm.serving.problems import STOPPING, UNEXPECTED, Problem, Refusal, problem_of
from inferswarm.serving.requests import Wanted
from inferswarm.serving.service import Running, Serving, tokens_of
from inferswarm.serving.streams import GOODBYE_SECONDS, EventStream, SlowReader, while_connected

ALIVE_SECONDS = 15.0
"""A stream without a token for so long gets a comment."""


class Answer(Response):
    """A response that computes while it is sent. It ends, with the session behind it, when its client goes away."""

    def __init__(self, serving: Serving, *, is_chat: bool) -> None:
        """`is_chat` says in which shape errors name the prompt."""
        super().__init__()
        self._serving = serving
        self._is_chat = is_chat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, as ASGI has it."""
        stream = EventStream(send, self._serving.settings.patience_seconds)
        work = self._answer_truthfully(stream, scope, receive, send)
        await while_connected(receive, work, self._serving.running)

    async def _answer_truthfully(self, stream: EventStream, scope: Scope, receive: Receive, send: Send) -> None:
        async def say(problem: Problem) -> None:
            if not stream.started:
                await problem.response()(scope, receive, send)
                return
            with contextlib.suppress(SlowReader):
                await stream.fail(problem)

        try:
            response = await self._answer(stream)
            if response is not None:
                await response(scope, receive, send)
        except SlowReader:
            pass  # there is nobody to tell
        except Refusal as refusal:
            await say(refusal.problem)
        except InferSwarmError as error:
            await say(problem_of(error, is_chat=self._is_chat))
        except BaseException as error:
            problem = STOPPING if isinstance(error, asyncio.CancelledError) else UNEXPECTED
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GOODBYE_SECONDS):
                    await say(problem)  # reaches nobody where the client has gone
            raise

    @abstractmethod
    async def _answer(self, stream: EventStream) -> Response | None:
        """Send everything over `stream`, or return the response instead. Raises what there is to be told."""


def _bodies(serving: Serving, running: Running, wanted: Wanted) -> Bodies:
    admitted = running.admitted
    return Bodies(
        serving.names.name(admitted.session, is_chat=wanted.is_chat),
        serving.settings.model,
        f"{admitted.plan_digest.removeprefix('sha256:')[:12]}-e{admitted.epoch}",
        is_chat=wanted.is_chat,
        texts=serving.texts,
        include_usage=wanted.include_usage,
    )


class Completion(Answer):
    """The answer to a chat or a completion request."""

    def __init__(self, serving: Serving, wanted: Wanted) -> None:
        """Answer what is wanted."""
        super().__init__(serving, is_chat=wanted.is_chat)
        self._wanted = wanted

    async def _answer(self, stream: EventStream) -> Response | None:
        if self._wanted.stream:
            await self._stream(stream)
            return None
        return await self._whole()

    async def _whole(self) -> Response:
        tokens: list[m.TokenCommitted] = []
        async with self._serving.session(self._wanted.question) as running:
            async with contextlib.aclosing(tokens_of(running.asking, ALIVE_SECONDS)) as committed:
                async for token in committed:
                    if token is not None:
                        self._serving.readiness.note_forward(running.admitted.epoch)
                        tokens.append(token)
            generated = expect(m.Generated, running.asking.answer, "an answer")
        bodies = _bodies(self._serving, running, self._wanted)
        usage = Usage(running.admitted.prompt_tokens, len(generated.record.tokens))
        body = bodies.whole(generated.text, tokens, generated.finish_reason, usage)
        return Response(msgspec.json.encode(body), media_type="application/json")

    async def _stream(self, stream: EventStream) -> None:
        with_logprobs = self._wanted.question.sampling.logprobs is not None
        async with self._serving.session(self._wanted.question) as running:
            bodies = _bodies(self._serving, running, self._wanted)
            await stream.start()
            if (opening := bodies.opening()) is not None:
                await stream.event(opening)
            async with contextlib.aclosing(tokens_of(running.asking, ALIVE_SECONDS)) as committed:
                async for token in committed:
                    if token is None:
                        await stream.alive()
                        continue
                    self._serving.readiness.note_forward(running.admitted.epoch)
                    if token.text or with_logprobs:
                        await stream.event(bodies.piece(token.text, (token,)), token.position)
            generated = expect(m.Generated, running.asking.answer, "an answer")
        await stream.event(bodies.closing(generated.finish_reason))
        if self._wanted.include_usage:
            usage = Usage(running.admitted.prompt_tokens, len(generated.record.tokens))
            await stream.event(bodies.usage(usage))
        await stream.done()


class SessionEvents(Answer):
    """A session's committed tokens from a position on, from the ledger, then as they come."""

    def __init__(self, serving: Serving, name: str, named: Named, from_position: int) -> None:
        """`name` is what the answer was called, `named` what that stands for."""
        super().__init__(serving, is_chat=named.is_chat)
        self._name = name
        self._session = named.session
        self._from_position = from_position

    async def _answer(self, stream: EventStream) -> Response | None:
        model = self._serving.settings.model
        bodies = Bodies(self._name, model, None, is_chat=self._is_chat, texts=self._serving.texts)
        async with self._serving.following(self._session, self._from_position) as asking:
            await stream.start()
            async with contextlib.aclosing(tokens_of(asking, ALIVE_SECONDS)) as committed:
                async for token in committed:
                    if token is None:
                        await stream.alive()
                        continue
                    about = {"session": {"position": token.position, "token": token.token}}
                    await stream.event(bodies.piece(token.text, (token,)) | about, token.position)
            record = expect(m.SessionRecord, asking.answer, "a session's record")
        if record.state != "COMPLETED":
            kept = f"{len(record.tokens)} committed tokens are kept"
            message = f"the session ended as {record.state}: {record.reason}; {kept}"
            await stream.fail(Problem(503, message, "server_error", code=f"session_{record.state.lower()}"))
            return None
        await stream.event(bodies.closing(record.reason))
        await stream.event(bodies.usage(Usage(len(record.prompt_ids), len(record.tokens))))
        await stream.done()
        return None
