"""Backends by name: loaded when asked for and not before."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from inferswarm.backends import registry
from inferswarm.backends.registry import (
    available_backends,
    keeps_states_apart,
    make_executor,
    representations_of,
)
from inferswarm.errors import SpecError
from inferswarm.strategies.problem import VALUE_BYTES
from tests.unit.backends.backends_support import assign, small_description


def test_every_backend_of_this_installation_is_available():
    assert [(status.name, status.available, status.reason) for status in available_backends()] == [
        ("torch", True, ""),
        ("reference", True, ""),
        ("transformers", True, ""),
        ("null", True, ""),
    ]


def test_a_missing_library_is_the_reason(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        registry.importlib.util, "find_spec", lambda name: None if name in ("torch", "gguf") else found(name)
    )
    statuses = {status.name: status for status in available_backends()}
    assert statuses["torch"] == ("torch", False, "not installed: torch, gguf")
    assert statuses["null"].available
    with pytest.raises(SpecError, match="torch, gguf, which are not installed"):
        make_executor(assign(small_description()))


def test_an_unknown_primitive_is_refused():
    with pytest.raises(SpecError, match="'jax'"):
        make_executor(assign(small_description(), primitive="jax"))


@pytest.mark.parametrize("primitive", ["torch", "reference"])
def test_an_unknown_representation_is_refused(primitive):
    with pytest.raises(SpecError, match="'int3'"):
        make_executor(assign(small_description(), primitive=primitive, representation="int3"))


@pytest.mark.parametrize("primitive", ["torch", "reference"])
def test_a_backend_computes_in_what_it_is_listed_with_and_in_nothing_else(primitive):
    for representation in VALUE_BYTES:
        assignment = assign(small_description(), primitive=primitive, representation=representation)
        if representation in representations_of(primitive):
            make_executor(assignment)
        else:
            with pytest.raises(SpecError, match="representation"):
                make_executor(assignment)


def test_nothing_is_known_of_an_unknown_primitive():
    for ask in (representations_of, keeps_states_apart):
        with pytest.raises(SpecError, match="'jax'"):
            ask("jax")


def test_asking_and_executing_nothing_loads_no_torch():
    code = """
import sys
import inferswarm.backends, inferswarm.backends.base, inferswarm.backends.partition, inferswarm.backends.direct
import inferswarm.backends.states, inferswarm.backends.probe, inferswarm.backends.sessions
import inferswarm.backends.assignment, inferswarm.backends.representing
from inferswarm.backends.registry import available_backends, make_executor
from tests.unit.backends.backends_support import assign, small_description
assert available_backends()[0].available
executor = make_executor(assign(small_description(), primitive="null"))
executor.materialize(lambda done, total: None)
print("torch" in sys.modules, "gguf" in sys.modules, any("libtorch" in line for line in open("/proc/self/maps")))
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["False", "True", "False"]
