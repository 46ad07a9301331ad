"""Errors arrive on the other side of a process boundary as what they were."""

from __future__ import annotations

import msgspec
import pytest

from inferswarm import errors
from inferswarm.errors import InferSwarmError, Violation
from inferswarm.fabric.faults import Fault, RemoteFault, to_error, to_fault

SAMPLES: list[InferSwarmError] = [
    errors.InferSwarmError("something"),
    errors.DocumentError("plan.json", "is not JSON"),
    errors.SpecError("threads", 0, "at least 1"),
    errors.AdmissionError("prompt", "nothing", "a text"),
    errors.DiscoveryError("cpuinfo", "cannot be read"),
    errors.MeasurementError("no echo"),
    errors.ModelError("model.gguf", "ends early"),
    errors.UnsupportedModel("model.gguf", "architecture", "mamba", "llama"),
    errors.ArtifactError("DIGEST_MISMATCH", "block.3", "other bytes"),
    errors.StoreRefused("SOURCE_OBJECT_UNAVAILABLE", "/store", "no space", 10, 3),
    errors.EvidenceError("altered"),
    errors.InfeasiblePlan(
        "no plan",
        [
            Violation("amber RAM", "peak", 2e9, 1e9, "B"),
            Violation("birch RAM", "peak", 2e9, None, "B", "never measured"),
        ],
    ),
    errors.InfeasiblePlan("no plan", missing=["decode steps: drifted", "paths"]),
    errors.InfeasiblePlan("no plan, for no reason"),
    errors.FabricError("no stage"),
    errors.EngineError("coordinator", "ended"),
    errors.EnvelopeExceeded("amber", "cgroup-v1", 300, "stage-0 needed more"),
    errors.RealizationFailed("amber", "stage-0 holds another"),
    errors.StageLost("amber", "stage-0", "killed by SIGKILL", 12),
    errors.StageLost("amber", "stage-0", "killed by SIGKILL"),
    errors.AuthorityUncertain("two claims"),
    errors.CommitRefused("SESSION_MISMATCH", "session 9"),
    errors.WireError("CHECKSUM_MISMATCH", "over 12 B"),
    errors.ReplayDiverged(17, "token 3 instead of 4"),
]


def across(error: InferSwarmError) -> InferSwarmError:
    """Send an error as bytes and rebuild it."""
    return to_error(msgspec.msgpack.decode(msgspec.msgpack.encode(to_fault(error)), type=Fault))


def all_errors(kind: type[InferSwarmError] = InferSwarmError) -> set[type[InferSwarmError]]:
    """Return a class of the tree and everything below it that `errors` defines."""
    found = {kind} if kind.__module__ == errors.__name__ else set()
    return found.union(*(all_errors(child) for child in kind.__subclasses__()))


def test_every_class_of_the_tree_has_a_sample() -> None:
    assert {type(sample) for sample in SAMPLES} == all_errors()


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_an_error_keeps_type_text_and_fields(sample: InferSwarmError) -> None:
    arrived = across(sample)
    assert type(arrived) is type(sample)
    assert str(arrived) == str(sample)
    assert vars(arrived) == vars(sample)
    assert vars(across(arrived)) == vars(sample)


@pytest.mark.parametrize(
    ("value", "arrives"),
    [
        (None, None),
        (True, True),
        (3, 3),
        (2**63, 2**63),
        (2**64, str(2**64)),
        (-(2**70), str(-(2**70))),
        (0.5, 0.5),
        ("text", "text"),
        (b"\xff", "b'\\xff'"),
        ((1, 2), "(1, 2)"),
        ({"a": 1}, "{'a': 1}"),
    ],
    ids=repr,
)
def test_what_was_found_arrives_as_a_value_or_as_its_text(value: object, arrives: object) -> None:
    arrived = across(errors.SpecError("field", value, "another"))
    assert isinstance(arrived, errors.SpecError)
    assert arrived.found == arrives
    assert type(arrived.found) is type(arrives)


def test_an_error_of_an_unknown_kind_is_still_one_of_ours() -> None:
    arrived = to_error(Fault("NewerError", "something new", {"code": 1}))
    assert type(arrived) is RemoteFault
    assert isinstance(arrived, errors.FabricError)
    assert str(arrived) == "NewerError: something new"


def test_a_name_that_is_no_error_class_is_not_called() -> None:
    for name in ("Violation", "Sequence", "NamedTuple", "__name__"):
        assert type(to_error(Fault(name, "text", {}))) is RemoteFault
