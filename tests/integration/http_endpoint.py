"""An endpoint in this process, in a thread of its own, over any swarm's Coordinator."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from types import TracebackType
from typing import Any

from openai import OpenAI

from inferswarm.fabric.async_client import AsyncClient
from inferswarm.fabric.client import Client
from inferswarm.serving.bodies import TokenBytes
from inferswarm.serving.server import Endpoint, bind, url_of
from inferswarm.serving.service import Serving, ServingSettings
from tests.unit.fabric.processes import wait_until


class ServedSwarm:
    """Serves until the end of a `with`. `settings.model` is the model's name; `wait` waits until it is ready."""

    def __init__(
        self,
        client: Client,
        settings: ServingSettings,
        *,
        scope: str = "test",
        texts: TokenBytes | None = None,
        wait: bool = True,
    ) -> None:
        self.settings = settings
        self._listener = bind("127.0.0.1", 0)
        self.url = url_of(self._listener)
        self.serving: Serving | None = None
        self._wait = wait
        self._ready = threading.Event()
        self._clients = contextlib.ExitStack()

        def open_serving() -> Serving:
            self.serving = Serving(AsyncClient(client.credentials), settings, scope, texts)
            return self.serving

        self._endpoint = Endpoint(self._listener, open_serving)
        self._thread = threading.Thread(target=self._endpoint.run, args=(self._ready.set,))

    def openai(self) -> OpenAI:
        """Return the official client, without retries; it is closed at the end."""
        client = OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=30.0)
        return self._clients.enter_context(client)

    def connect(self) -> http.client.HTTPConnection:
        """Return a plain connection."""
        return http.client.HTTPConnection(*self.address, timeout=30.0)

    def get(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:
        """Return status and JSON body of a GET."""
        with contextlib.closing(self.connect()) as connection:
            connection.request("GET", path, headers=headers or {})
            response = connection.getresponse()
            return response.status, json.loads(response.read())

    def post(self, path: str, body: object, **headers: str) -> tuple[int, dict[str, Any], dict[str, str]]:
        """Return status, JSON body and headers of a POST."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        with contextlib.closing(self.connect()) as connection:
            connection.request("POST", path, data, {"content-type": "application/json", **headers})
            response = connection.getresponse()
            return response.status, json.loads(response.read()), dict(response.getheaders())

    def events(self, path: str, **headers: str) -> list[tuple[int | None, Any]]:
        """Return the events of a GET: (id, JSON body or text)."""
        with contextlib.closing(self.connect()) as connection:
            connection.request("GET", path, headers=headers)
            return read_events(connection.getresponse().read().decode())

    def __enter__(self) -> ServedSwarm:
        self.address = self._listener.getsockname()[:2]
        self._thread.start()
        assert wait_until(self._listens, 20.0), f"nothing listens at {self.url}"
        if self._wait:
            assert self._ready.wait(20.0), self.serving and self.serving.readiness.verdict()
        return self

    def _listens(self) -> bool:
        """Whether connections are taken; the address is bound before its server runs."""
        try:
            with contextlib.closing(self.connect()) as connection:
                connection.connect()
        except ConnectionRefusedError:
            return False
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._clients.close()

    def stop(self) -> None:
        """Ask the endpoint for its end, and wait for it."""
        self._endpoint.stop()
        self._thread.join(20.0)
        assert not self._thread.is_alive()


def read_events(text: str) -> list[tuple[int | None, Any]]:
    """Return (id, data) of each server-sent event; data that is JSON is decoded."""
    found: list[tuple[int | None, Any]] = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "data" in fields:
            data = fields["data"]
            position = int(fields["id"]) if "id" in fields else None
            found.append((position, data if data == "[DONE]" else json.loads(data)))
    return found
