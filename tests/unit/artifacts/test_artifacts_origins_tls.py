"""An origin behind https whose certificate an authority of the operator's own has signed: trusted where that is said.

Certificates are made by the command `openssl` while the test runs. Processes of their own are told of the authority,
or not, by the variable that everybody uses for it.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferswarm.artifacts.sources import ORIGIN, Source
from inferswarm.artifacts.taxonomy import SOURCE_UNAVAILABLE
from inferswarm.fabric import messages as m
from inferswarm.fabric.courier_process import CourierProcess
from tests.models import write_small_llama
from tests.origin_server import OriginServer, serve_origin
from tests.unit.artifacts.store_samples import artifact, sample_bytes

WHOLE = sample_bytes(700_000)
TRUST = "SSL_CERT_FILE"
KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Path:
    """A folder with an authority, and with a certificate of this machine's loopback address that it signed."""
    folder = tmp_path_factory.mktemp("authority")
    own = ("-x509", "-keyout", "own.key", "-out", "own.pem", "-subj", "/CN=an authority of a test")
    signed = ("-x509", "-keyout", "server.key", "-out", "server.pem", "-subj", "/CN=an origin of a test")
    by = ("-CA", "own.pem", "-CAkey", "own.key", "-addext", "subjectAltName=IP:127.0.0.1")
    for command in ((*own,), (*signed, *by, "-addext", "basicConstraints=critical,CA:FALSE")):
        subprocess.run(["openssl", "req", *KEY, *command], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def server(authority, tmp_path_factory) -> Iterator[OriginServer]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "model").write_bytes(WHOLE)
    write_small_llama(folder / "small.gguf", seed=1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority / "server.pem", authority / "server.key")
    with serve_origin(folder, context) as running:
        yield running


def acquired_by_a_courier(server: OriginServer, root: Path) -> m.ArtifactsAcquired:
    async def acquire() -> m.Answer:
        set_up = m.CourierSetUp(
            node_id="node-amber", address="127.0.0.1", root=str(root), quota_bytes=None, scope="tls", token="a token"
        )
        courier = CourierProcess(set_up, "amber")
        item = artifact(WHOLE, 1000, 600_000, uri=server.url("model"), version=None)
        order = m.AcquisitionOrder(artifact=item, source=Source(id=ORIGIN, endpoint=server.url("model")))
        command = m.AcquireArtifacts(
            participant="stage-0", owner="plan", orders=(order,), strict=True, deadline_seconds=20.0
        )
        try:
            await courier.start()
            return await courier.call(command)
        finally:
            await courier.stop()

    answer = asyncio.run(acquire())
    assert isinstance(answer, m.ArtifactsAcquired)
    return answer


def test_a_courier_trusts_the_authority_that_its_environment_names_and_no_other(
    server, authority, tmp_path, monkeypatch
) -> None:
    monkeypatch.delenv(TRUST, raising=False)
    (refused,) = acquired_by_a_courier(server, tmp_path / "without").outcomes
    assert (refused.how, refused.code, refused.side) == ("failed", SOURCE_UNAVAILABLE, "source")
    assert "certificate does not hold" in refused.reason
    assert server.url("model") in refused.reason
    assert server.log == []  # nobody was asked anything

    monkeypatch.setenv(TRUST, str(authority / "own.pem"))
    (taken,) = acquired_by_a_courier(server, tmp_path / "with").outcomes
    assert (taken.how, taken.transferred_bytes) == ("acquired", 599_000)
    assert server.bytes_sent("model") == 599_001  # with the look at its length


@pytest.mark.parametrize("trusts", [True, False])
def test_a_model_is_opened_over_https_under_the_same_rule(server, authority, tmp_path, trusts) -> None:
    environment = {name: value for name, value in os.environ.items() if name != TRUST}
    environment |= {"XDG_CACHE_HOME": str(tmp_path)} | ({TRUST: str(authority / "own.pem")} if trusts else {})
    command = [sys.executable, "-m", "inferswarm", "model", "publish", server.url("small.gguf")]
    command += ["--output", str(tmp_path / "manifest.json")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode == 0) is trusts, done.stderr
    assert (tmp_path / "manifest.json").is_file() is trusts
    if not trusts:
        assert "certificate does not hold" in done.stderr
        assert "small.gguf" in done.stderr
