"""Models by address on the command line: looked at from their headers, over a real server."""

from __future__ import annotations

import numpy as np
import pytest

from inferswarm.artifacts.taxonomy import SOURCE_UNAVAILABLE
from inferswarm.backends.states import FileTensors, assigned_states
from inferswarm.documents import read_document
from inferswarm.errors import ArtifactError
from inferswarm.strategies.inspection import Inspection
from inferswarm.swarm import Model
from tests.models import write_small_llama
from tests.origin_server import Fault, serve_origin


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "served"
    folder.mkdir()
    factors = np.linspace(1, 8, 16, dtype=np.float32)
    more = {"encoding": "F32", "extra_tensors": {"rope_freqs.weight": factors}}
    write_small_llama(folder / "small.gguf", hidden=128, vocab=2048, **more)
    with serve_origin(folder) as served:
        yield served


def test_a_model_is_inspected_by_address_and_the_bytes_that_it_took_are_said(cli, server, tmp_path):
    uri = server.url("small.gguf")
    length = (tmp_path / "served" / "small.gguf").stat().st_size
    done = cli("model", "inspect", uri, "--json")
    assert (done.status, done.err) == (0, "")
    inspection = read_document(Inspection, done.out, "standard output")
    assert (inspection.name, inspection.path, inspection.backend) == ("small", uri, "torch")
    assert [(file.uri, file.length) for file in inspection.files] == [(uri, length)]
    assert inspection.fetched is not None
    assert (inspection.fetched.received, inspection.fetched.of) == (server.bytes_sent(), length)
    assert inspection.fetched.received < length / 10
    local = read_document(
        Inspection, cli("model", "inspect", str(tmp_path / "served" / "small.gguf"), "--json").out, "local"
    )
    assert (inspection.units, inspection.text, local.fetched) == (local.units, local.text, None)

    shown = cli("model", "inspect", uri)
    assert shown.status == 0
    # A byte each for opening the file and for opening it again for the factors of positions, which are 16 numbers.
    assert f"fetched             66 B of {length:,} B: texts and headers that were not kept\n" in shown.out
    assert uri in shown.out


def test_an_address_that_cannot_be_read_is_one_line(cli, server):
    done = cli("model", "inspect", server.url("other.gguf"))
    assert (done.status, done.out) == (1, "")
    uri = server.url("other.gguf")
    assert (
        done.err == f"inferswarm: ArtifactError: SOURCE_OBJECT_UNAVAILABLE: {uri}: answered 404: nothing is there\n"
    )
    server.inject("small.gguf", Fault(status=401))
    done = cli("model", "inspect", server.url("small.gguf"))
    assert done.err.startswith("inferswarm: ArtifactError: SOURCE_UNAUTHORIZED: ")
    done = cli("model", "inspect", server.url("small.gguf"), "--fetch", "whole")
    assert done.err.startswith("inferswarm: SpecError: fetch: found 'whole', needed headers for an address")


def test_tensors_of_a_remote_model_are_not_looked_for_among_local_files(server):
    model = Model(server.url("small.gguf"))
    num_units = model.description.num_blocks + 2
    requirement = model.opened.requirement(model.opened.problem(), "one", 0, num_units)
    with pytest.raises(ArtifactError, match="acquired first") as caught:
        FileTensors(requirement, assigned_states(model.description, 0, num_units))
    assert (caught.value.code, caught.value.subject) == (SOURCE_UNAVAILABLE, server.url("small.gguf"))
