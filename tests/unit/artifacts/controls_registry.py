"""The table of negative controls, code by code, and what they have in common."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from inferswarm.artifacts.types import ParticipantRequirement, StoredBlob, StoredBlobs
from inferswarm.backends.required_bytes import open_required
from inferswarm.errors import ArtifactError
from tests.unit.artifacts.controls_world import World

replace = msgspec.structs.replace
Control = Callable[[World], None]
CONTROLS: dict[str, list[Control]] = {}
"""Code → the controls that must be refused with it."""
OTHER = "sha256:" + "c" * 64


def refused_with(code: str) -> Callable[[Control], Control]:
    """Enter a control into the table."""

    def add(control: Control) -> Control:
        CONTROLS.setdefault(code, []).append(control)
        return control

    return add


def raises(code: str, call: Callable[[], object]) -> ArtifactError:
    with pytest.raises(ArtifactError) as caught:
        call()
    assert caught.value.code == code, caught.value
    return caught.value


def unmoved(world: World, code: str, call: Callable[[], object]) -> ArtifactError:
    """Refuse before anybody is asked: no request reaches the origin, no peer gives anything, nothing is published."""
    world.server.clear()
    before = (world.held(world.amber), world.held(world.birch), world.served(world.amber).lines)
    error = raises(code, call)
    assert world.server.log == []
    assert (world.held(world.amber), world.held(world.birch), world.served(world.amber).lines) == before
    return error


def stored_requirement(world: World) -> ParticipantRequirement:
    """Return what stage-0 executes, read from birch's store, which holds it."""
    found, need = world.plan.of("stage-0"), world.needs()[0]
    orders = [world.from_origin(item) for item in found.artifacts]
    answer = world.acquire(world.birch, *orders, participant="stage-0")
    assert {outcome.how for outcome in answer.outcomes} <= {"acquired", "cache-hit"}
    blobs = tuple(StoredBlob(0, item.range, item.sha256) for item in found.artifacts)  # type: ignore[arg-type]
    return replace(need.requirement, stored=StoredBlobs(str(world.birch.root), blobs))


def read_all(requirement: ParticipantRequirement) -> int:
    """Read what a stage reads when it makes its states."""
    opened = open_required(requirement)
    try:
        for tensor in requirement.tensors:
            opened.read_into(tensor.file, tensor.range, bytearray(tensor.range.length))
        return opened.bytes_read
    finally:
        opened.close()
