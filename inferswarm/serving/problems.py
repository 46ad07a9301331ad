"""What went wrong with a request, in OpenAI's shape: a status, and {"error": {message, type, param, code}}.

Everything that is raised on purpose has a place here; `problem_of` is the table. A message says what was wrong, what
was needed and what was there; it never holds a traceback.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from starlette.responses import Response

from inferswarm.errors import (
    AdmissionError,
    AuthorityUncertain,
    CommitRefused,
    EngineError,
    EnvelopeExceeded,
    InferSwarmError,
    SpecError,
    StageLost,
    WireError,
)

USER = "invalid_request_error"
SERVER = "server_error"
_UNAVAILABLE = (EngineError, AuthorityUncertain, EnvelopeExceeded, StageLost, CommitRefused)
_SAME_NAME = ("stop", "messages", "logit_bias")
"""Fields of the Coordinator's refusals that the request has under the same name, with or without an index."""


class Problem(NamedTuple):
    """Why there is no answer."""

    status: int
    message: str
    kind: str = USER
    """OpenAI's `type`."""
    param: str | None = None
    """The request's field that it is about."""
    code: str | None = None
    retry_after_seconds: int | None = None

    def body(self) -> bytes:
        """Return the JSON document."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})

    def response(self) -> Response:
        """Return the whole response, `Retry-After` included."""
        headers = {} if self.retry_after_seconds is None else {"retry-after": str(self.retry_after_seconds)}
        return Response(self.body(), self.status, headers, "application/json")


class Refusal(Exception):
    """A request that is not answered; `problem` is what the client is told."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.code)
        self.problem = problem


STOPPING = Problem(503, "the server is stopping; the answer was cancelled", SERVER, code="server_stopping")
UNEXPECTED = Problem(500, "an unexpected fault in the server; its log says where", SERVER, code="internal_error")


def bad_request(param: str | None, message: str, code: str | None = None) -> Refusal:
    """Return the refusal of what a client can put right itself."""
    return Refusal(Problem(400, message, param=param, code=code))


def busy(message: str, code: str, retry_after_seconds: int) -> Refusal:
    """Return the refusal of a request for which there is no room now."""
    return Refusal(Problem(429, message, "rate_limit_error", code=code, retry_after_seconds=retry_after_seconds))


def problem_of(error: InferSwarmError, *, is_chat: bool = True) -> Problem:
    """Return what a client is told of an error. `is_chat` says whether a prompt is called `messages` or `prompt`."""
    message = str(error)
    match error:
        case AdmissionError(field="sessions"):
            return Problem(429, message, "rate_limit_error", code="sessions_taken", retry_after_seconds=1)
        case AdmissionError(field="prompt tokens + max_tokens"):
            return Problem(400, message, param="messages" if is_chat else "prompt", code="context_length_exceeded")
        case SpecError():
            return Problem(400, message, param=_param(error.field, is_chat), code="invalid_value")
        case WireError(code="MALFORMED_MESSAGE"):
            return Problem(400, message, code="invalid_value")
        case CommitRefused():
            return Problem(503, message, SERVER, code=error.code.lower(), retry_after_seconds=1)
        case _ if isinstance(error, _UNAVAILABLE):
            return Problem(503, message, SERVER, code=_snake(type(error).__name__), retry_after_seconds=1)
        case _:
            return Problem(500, message, SERVER, code=_snake(type(error).__name__))


def _param(field: str, is_chat: bool) -> str | None:
    """Return a refused field as the request calls it; None where it has no such field."""
    if field.startswith("prompt"):
        return field.replace("prompt", "messages" if is_chat else "prompt", 1)
    if field == "max_tokens" or field.startswith(_SAME_NAME):
        return field
    return None


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
