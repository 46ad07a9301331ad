"""The routes: chat and completions, models, sessions' events, health and readiness."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from fastapi import Depends, FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from inferswarm.serving.answers import Completion, SessionEvents
from inferswarm.serving.problems import UNEXPECTED, Problem, Refusal, bad_request
from inferswarm.serving.requests import read_request
from inferswarm.serving.service import Serving

MAX_BODY_BYTES = 8 * 2**20
"""A longer request is refused before it is read: no context holds so much text."""
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""What a request on the loopback interface may call this machine."""


def make_app(open_serving: Callable[[], Serving], *, loopback: bool = True) -> FastAPI:
    """Return the application; `open_serving` is called in its event loop when it starts.

    With `loopback`, requests that name another machine are refused: a web page that has a name of its own lead to
    this one cannot use it.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        serving = open_serving()
        app.state.serving = serving
        watch = asyncio.create_task(serving.readiness.run())
        try:
            yield
        finally:
            watch.cancel()
            await asyncio.wait({watch})
            serving.client.close()

    dependencies = [Depends(_refuse_other_names)] if loopback else []
    app = FastAPI(lifespan=lifespan, dependencies=dependencies, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(Refusal, _refused)
    app.add_exception_handler(HTTPException, _not_found)
    app.add_exception_handler(Exception, _unexpected)
    app.add_api_route("/v1/chat/completions", _chat, methods=["POST"])
    app.add_api_route("/v1/completions", _completion, methods=["POST"])
    app.add_api_route("/v1/models", _models)
    app.add_api_route("/v1/models/{model:path}", _model)
    app.add_api_route("/v1/sessions/{name}/events", _session_events)
    app.add_api_route("/healthz", _healthz)
    app.add_api_route("/readyz", _readyz)
    return app


def _serving(request: Request) -> Serving:
    serving: Serving = request.app.state.serving
    return serving


# -- requests for answers --


async def _chat(request: Request) -> Response:
    return await _complete(request, is_chat=True)


async def _completion(request: Request) -> Response:
    return await _complete(request, is_chat=False)


async def _complete(request: Request, *, is_chat: bool) -> Response:
    serving = _serving(request)
    wanted = read_request(await _document(request), serving.settings.model, is_chat=is_chat)
    return Completion(serving, wanted)


async def _document(request: Request) -> object:
    """Read a request's body as JSON. Raises Refusal for what is too long, is none, or does not say so."""
    kind = request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != "application/json":
        # Browsers ask before they send this type across sites, and nobody here says yes.
        message = f"the content type is {kind or 'missing'}; needed: application/json"
        raise Refusal(Problem(415, message, code="unsupported_media_type"))
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise Refusal(Problem(413, f"the request is longer than {MAX_BODY_BYTES:,} B", code="request_too_large"))
    try:
        return msgspec.json.decode(bytes(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(None, f"the request's body is not JSON: {error}", "invalid_json") from error


async def _session_events(request: Request, name: str) -> Response:
    serving = _serving(request)
    named = serving.names.read(name)
    if named is None:
        raise Refusal(Problem(404, "no answer of this server has that id", param="id", code="session_not_found"))
    return SessionEvents(serving, name, named, _from_position(request))


def _from_position(request: Request) -> int:
    """Return the first position to send: what `from` says, or the one behind the last event that the client has."""
    text, last = request.query_params.get("from"), request.headers.get("last-event-id")
    given = last if text is None else text
    if given is None:
        return 0
    if not (given.isascii() and given.isdecimal() and len(given) <= 15):
        param = "from" if text is not None else "Last-Event-ID"
        raise bad_request(param, f"{param}: found {given!r:.40}, needed a position, 0 or more", "invalid_value")
    return int(given) if text is not None else int(given) + 1


# -- what there is, and how it is --


def _described(serving: Serving) -> dict[str, Any]:
    settings = serving.settings
    return {
        "id": settings.model,
        "object": "model",
        "created": serving.created,
        "owned_by": "inferswarm",
        "max_model_len": settings.max_positions,
    }


async def _models(request: Request) -> Response:
    return _json({"object": "list", "data": [_described(_serving(request))]})


async def _model(request: Request, model: str) -> Response:
    serving = _serving(request)
    if model != serving.settings.model:
        message = f"the model {model!r} is not served here; this server has {serving.settings.model!r}"
        raise Refusal(Problem(404, message, param="model", code="model_not_found"))
    return _json(_described(serving))


async def _healthz() -> Response:
    return _json({"alive": True})


async def _readyz(request: Request) -> Response:
    verdict = _serving(request).readiness.verdict()
    return _json(verdict._asdict(), 200 if verdict.ready else 503)


def _json(body: dict[str, Any], status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")


# -- what goes wrong --


async def _refuse_other_names(request: Request) -> None:
    name = request.headers.get("host", "")
    bare = name if name.endswith("]") else name.rpartition(":")[0] or name
    if bare.lower() not in LOOPBACK_NAMES:
        message = f"this server listens on the loopback interface and is not called {bare!r:.80}"
        raise Refusal(Problem(421, message, code="misdirected_request"))


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return error.problem.response()


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    response = Problem(error.status_code, message, code="unknown_url").response()
    response.headers.update(error.headers or {})
    return response


async def _unexpected(request: Request, error: Exception) -> Response:
    return UNEXPECTED.response()
