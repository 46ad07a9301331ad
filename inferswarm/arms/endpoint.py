"""The HTTP endpoint over a running swarm's Coordinator, and one plain client of it."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from inferswarm.arms.answers import keep_rows, rows_of
from inferswarm.campaigns.arm import Arm
from inferswarm.errors import EngineError
from inferswarm.fabric.text_side import TextSide
from inferswarm.serving.server import Endpoint, bind
from inferswarm.serving.service import Serving, ServingSettings
from inferswarm.swarm import Generation, Model, Service

READY_SECONDS = 30.0
"""In which an endpoint must say that it is ready; it proves a forward pass through all stages first."""
ANSWER_SECONDS = 60.0
ADDRESS = "127.0.0.1"


class HttpAnswer(NamedTuple):
    """What came back over HTTP: the text, why it ended, and the session in the Coordinator's ledger."""

    text: str
    finish_reason: str
    session: int
    prompt_tokens: int
    completion_tokens: int


class HttpEndpoint:
    """A served model at a port of this machine."""

    def __init__(self, port: int, model: str) -> None:
        """Made by `serve_http`."""
        self.port = port
        self._model = model

    def complete(self, prompt_ids: tuple[int, ...], max_tokens: int) -> HttpAnswer:
        """Ask for a completion of token ids, the most likely token each time; one JSON answer."""
        with self._posted(prompt_ids, max_tokens, stream=False) as response:
            body = json.loads(response.read())
        (choice,) = body["choices"]
        usage = body["usage"]
        return HttpAnswer(
            choice["text"],
            choice["finish_reason"],
            session_of(body["id"]),
            usage["prompt_tokens"],
            usage["completion_tokens"],
        )

    def stream(self, prompt_ids: tuple[int, ...], max_tokens: int) -> HttpAnswer:
        """Ask for the same as a stream of events, and put the pieces together."""
        texts, reasons, names = [], [], set()
        with self._posted(prompt_ids, max_tokens, stream=True) as response:
            for event in _events(response):
                names.add(event["id"])
                for choice in event["choices"]:
                    texts.append(choice["text"])
                    reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
        (name,), (reason,) = names, reasons
        return HttpAnswer("".join(texts), reason, session_of(name), len(prompt_ids), 0)

    @contextlib.contextmanager
    def _posted(
        self, prompt_ids: tuple[int, ...], max_tokens: int, *, stream: bool
    ) -> Iterator[http.client.HTTPResponse]:
        body = {"model": self._model, "prompt": prompt_ids, "max_tokens": max_tokens}
        body |= {"temperature": 0, "stream": stream}
        connection = http.client.HTTPConnection(ADDRESS, self.port, timeout=ANSWER_SECONDS)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            response = connection.getresponse()
            if response.status != 200:
                raise EngineError("endpoint", f"status {response.status}: {response.read().decode()}")
            yield response
        finally:
            connection.close()


def compare_http(
    arm: Arm, service: Service, endpoint: HttpEndpoint, prompt_ids: tuple[int, ...], max_tokens: int, key: str
) -> Generation:
    """Ask the same over HTTP, as a stream over HTTP, and by the service's own call, and keep all three.

    Outputs `http`, `http-stream` and `service`, each from the ledger's record of its session. Series:
    `text-differing` (characters of the text over HTTP that are not those of the service's), `tokens-counted` and
    `tokens-recorded` (what the answer over HTTP says of its length, and the ledger). Returns the service's answer.
    """
    whole, streamed = endpoint.complete(prompt_ids, max_tokens), endpoint.stream(prompt_ids, max_tokens)
    own = service.generate(prompt_ids, max_tokens=max_tokens)
    for condition, told in (("http", whole), ("http-stream", streamed)):
        record = service.record(told.session)
        representation = service.plan.representation
        keep_rows(arm, rows_of(record), condition=condition, key=key, representation=representation)
        pairs = zip(told.text, own.text, strict=False)
        differing = sum(a != b for a, b in pairs) + abs(len(told.text) - len(own.text))
        arm.sample("text-differing", differing, "characters", condition=condition, key=key)
    arm.sample("tokens-counted", whole.completion_tokens, "tokens", key=key)
    arm.sample("tokens-recorded", len(service.record(whole.session).tokens), "tokens", key=key)
    keep_rows(arm, rows_of(own.record), condition="service", key=key, representation=service.plan.representation)
    return own


def session_of(name: str) -> int:
    """Return the session's number in the name of an answer, `cmpl-SCOPE-SESSION-TAG`.

    >>> session_of("cmpl-local-1f-12-0123456789abcdef")
    12
    """
    return int(name.split("-")[-2])


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    for line in response:
        kind, _, text = line.decode().strip().partition(": ")
        if kind == "data" and text != "[DONE]":
            yield json.loads(text)


@contextlib.contextmanager
def serve_http(service: Service, model: Model, scope: str) -> Iterator[HttpEndpoint]:
    """Answer over HTTP for a service until the end of the block. Raises EngineError when it does not get ready."""
    settings = ServingSettings(model.name, service.plan.max_positions, service.plan.sessions)
    texts = TextSide(str(model.path))
    listener = bind(ADDRESS, 0)
    endpoint = Endpoint(listener, lambda: Serving(service.connect(), settings, scope, texts))
    ready = threading.Event()
    thread = threading.Thread(target=endpoint.run, args=(ready.set,), name="endpoint")
    thread.start()
    try:
        if not ready.wait(READY_SECONDS):
            raise EngineError("endpoint", f"was not ready within {READY_SECONDS:.0f} s")
        yield HttpEndpoint(listener.getsockname()[1], model.name)
    finally:
        endpoint.stop()
        thread.join(READY_SECONDS)
