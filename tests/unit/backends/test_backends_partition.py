"""What a partition says of representations: nothing where there is one, a map of all units where not."""

from __future__ import annotations

import msgspec
import pytest

from inferswarm.backends.base import UnitThreads
from inferswarm.backends.partition import (
    Partition,
    Step,
    UnitRepresentation,
    first_difference,
    kernels_by_unit,
    merge_representations,
    mixture_name,
)
from inferswarm.documents import canonical_bytes, digest, read_document
from inferswarm.errors import DocumentError

MAP = (UnitRepresentation(0, 3, "bf16"), UnitRepresentation(3, 6, "fp32"))
PURE = Partition(
    primitive="torch",
    representation="bf16",
    kernel="k",
    threads=(UnitThreads(0, 6, 1),),
    session_positions=40,
    steps=(Step(0, 16),),
)


def mixed(*spans: UnitRepresentation) -> Partition:
    return msgspec.structs.replace(PURE, representation=mixture_name(spans), representations=spans)


def test_a_partition_of_one_representation_is_written_as_ever() -> None:
    assert canonical_bytes(PURE) == (
        b'{"document":"inferswarm.partition/2","kernel":"k","primitive":"torch","representation":"bf16",'
        b'"session_positions":40,"steps":[{"count":16,"start":0}],'
        b'"threads":[{"end_unit":6,"first_unit":0,"threads":1}]}'
    )


def test_a_map_survives_a_round_trip() -> None:
    partition = mixed(*MAP)
    assert read_document(Partition, canonical_bytes(partition), "test") == partition
    assert digest(partition) != digest(mixed(UnitRepresentation(0, 4, "bf16"), UnitRepresentation(4, 6, "fp32")))


def test_neighbors_of_one_representation_are_one_run() -> None:
    cut = (*(UnitRepresentation(unit, unit + 1, "bf16") for unit in range(3)), UnitRepresentation(3, 6, "fp32"))
    assert merge_representations(cut) == MAP
    apart = (UnitRepresentation(0, 1, "bf16"), UnitRepresentation(2, 3, "bf16"))
    assert merge_representations(apart) == apart


@pytest.mark.parametrize(
    "spans",
    [
        (UnitRepresentation(0, 6, "bf16"),),
        (UnitRepresentation(0, 3, "bf16"), UnitRepresentation(3, 6, "bf16")),
        (UnitRepresentation(0, 3, "bf16"), UnitRepresentation(4, 6, "fp32")),
        (UnitRepresentation(1, 3, "bf16"), UnitRepresentation(3, 6, "fp32")),
        (UnitRepresentation(0, 3, "bf16"), UnitRepresentation(2, 6, "fp32")),
        (UnitRepresentation(0, 3, "bf16"), UnitRepresentation(3, 3, "fp32")),
    ],
    ids=str,
)
def test_a_map_that_is_none_is_refused(spans: tuple[UnitRepresentation, ...]) -> None:
    with pytest.raises(ValueError, match="representations"):
        mixed(*spans)


def test_a_map_under_another_name_is_refused() -> None:
    fields = {**msgspec.to_builtins(mixed(*MAP)), "representation": "bf16"}
    with pytest.raises(DocumentError, match="representation 'bf16' of bf16 in units 0 to 2, fp32 in units 3 to 5"):
        read_document(Partition, canonical_bytes(fields), "test")


def test_kernels_are_named_with_their_units_where_they_differ() -> None:
    assert kernels_by_unit([(0, 3, "a"), (3, 6, "a")]) == "a"
    by_unit = kernels_by_unit([(0, 2, "a"), (2, 3, "a"), (3, 6, "b")])
    assert by_unit == kernels_by_unit([(0, 3, "a"), (3, 6, "b")]) == "units 0 to 2: a | units 3 to 5: b"
    assert by_unit != kernels_by_unit([(0, 3, "b"), (3, 6, "a")])


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (PURE, None),
        (mixed(*MAP), ("representation", "bf16", "bf16 in units 0 to 2, fp32 in units 3 to 5")),
        (msgspec.structs.replace(PURE, kernel="l", primitive="null"), ("primitive", "torch", "null")),
        (msgspec.structs.replace(PURE, kernel="l"), ("kernel", "k", "l")),
    ],
    ids=["equal", "representations", "primitive first", "kernel"],
)
def test_the_first_difference_is_named(other: Partition, expected: tuple[str, str, str] | None) -> None:
    assert first_difference(PURE, other) == expected
