"""What a workload asks for: its objective reads back as written, and nothing impossible is taken."""

from __future__ import annotations

import pytest

from inferswarm.documents import read_document, write_document
from inferswarm.errors import DocumentError, SpecError
from inferswarm.planner import Mix, Throughput, Workload
from inferswarm.units import parse_bytes


@pytest.mark.parametrize(
    "objective",
    [
        {},
        {"objective": Throughput(max_inter_token_seconds=0.5)},
        {"objective": Mix(request_weight=0.25, max_first_token_seconds=2.0)},
    ],
)
def test_every_objective_reads_back_as_written(objective):
    workload = Workload(concurrency=4, **objective)
    assert read_document(Workload, write_document(workload), "workload") == workload


def test_limits_are_those_of_the_objective():
    assert Workload().max_inter_token_seconds is None
    mixed = Workload(objective=Mix(request_weight=1, max_inter_token_seconds=0.5, max_first_token_seconds=2.0))
    assert (mixed.max_inter_token_seconds, mixed.max_first_token_seconds) == (0.5, 2.0)


@pytest.mark.parametrize(
    ("objective", "field"),
    [
        (Mix(request_weight=-0.1), "request_weight"),
        (Mix(request_weight=1.1), "request_weight"),
        (Mix(request_weight=0.5, max_inter_token_seconds=0.0), "max_inter_token_seconds"),
        (Throughput(max_first_token_seconds=-1.0), "max_first_token_seconds"),
    ],
)
def test_objectives_that_cannot_be_are_refused(objective, field):
    with pytest.raises(SpecError) as error:
        Workload(objective=objective)
    assert field in error.value.field


@pytest.mark.parametrize(
    "objective",
    ['{"kind":"mix"}', '{"kind":"latency"}', '{"kind":"throughput","request_weight":1}', '{"request_weight":1}'],
)
def test_an_objective_of_another_kind_or_shape_is_refused(objective):
    with pytest.raises(DocumentError):
        read_document(Workload, f'{{"objective":{objective}}}', "workload")


@pytest.mark.parametrize("text", ["9" * 400, "9" * 305 + "TB"])
def test_a_size_beyond_all_numbers_is_refused_and_not_written_out(text):
    with pytest.raises(SpecError) as error:
        parse_bytes(text, "memory")
    assert len(str(error.value)) < 120
