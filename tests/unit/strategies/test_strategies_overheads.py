"""What a step costs beside its units: part of a plan's first unit and, after a pause, of the paths of split plans."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from inferswarm.evidence.types import Observation, make_context
from inferswarm.planner.economics import Economics, PathCurve, ServiceCurve
from inferswarm.strategies.economics import make_economics
from tests.unit.strategies.test_strategies_economics import (
    GRAPH,
    OTHER_UNIT,
    SHAPE,
    UNIT,
    path_record,
    unit_record,
    with_context,
)

BLOCK, TABLE = 1e-3, 2e-5
NUM_UNITS = 12
STEP_OVERHEAD, STEP_WAKING, PASS_WAKING = 1e-4, 6e-4, 9e-4
MESSAGE, OPENING, SERVING = 2e-4, 1.5e-3, 2.5e-4
PAUSE = "0.008"


def steps(subject: str, threads: int) -> list[Observation]:
    """Records of one Compute Unit: units of 1 ms, an overhead of 0.1 ms, and 0.6 or 0.9 ms after a pause."""
    places: dict[str, Any] = {"subject": subject, "threads": threads}
    records = []
    for cost_class, seconds in (("block", BLOCK), ("embedding", TABLE)):
        for phase, positions in (("step", 1), ("first-pass", 8), ("first-pass", 64)):
            more = {"num_units": NUM_UNITS, "pause_seconds": "0", **places}
            records.append(unit_record(cost_class, phase, positions, seconds, **more))
            records.append(
                unit_record(cost_class, phase, positions, STEP_OVERHEAD, metric="step-overhead-seconds", **more)
            )
    for phase, positions, waking in (("step", 1, STEP_WAKING), ("first-pass", 8, PASS_WAKING)):
        more = {"num_units": NUM_UNITS, "pause_seconds": PAUSE, **places}
        slower = (waking - STEP_OVERHEAD) / NUM_UNITS
        records.append(unit_record("block", phase, positions, BLOCK + slower, **more))
        records.append(unit_record("block", phase, positions, STEP_OVERHEAD, metric="step-overhead-seconds", **more))
    return records


def messages() -> list[Observation]:
    first, second = (node.id for node in GRAPH.nodes)
    return [
        path_record(*pair, size, MESSAGE + size * 1e-9)
        for pair in ((first, second), (second, first))
        for size in (64, 65536)
    ]


def serving() -> list[Observation]:
    """Records of what the swarm itself adds to a request and to a token."""
    return [
        Observation(
            subject=unit.node_id,
            metric=metric,
            unit="s",
            samples=(seconds,) * 8,
            context=make_context(backend="null"),
            protocol="null-requests/1",
            taken_at_ns="1",
            producer="test",
        )
        for unit in (UNIT, OTHER_UNIT)
        for metric, seconds in (("request-opening-seconds", OPENING), ("token-serving-seconds", SERVING))
    ]


def everything() -> list[Observation]:
    return steps(UNIT.id, UNIT.threads) + steps(OTHER_UNIT.id, OTHER_UNIT.threads) + messages() + serving()


def economics(records: list[Observation]) -> Economics:
    return make_economics(("block", "embedding"), SHAPE, GRAPH, records, representations=("fp32",))


def service(found: Economics, cost_class: str, phase: str) -> ServiceCurve:
    return next(
        curve
        for curve in found.services
        if (curve.compute_unit_id, curve.cost_class, curve.phase) == (UNIT.id, cost_class, phase)
    )


def path_to(found: Economics, node: str) -> PathCurve:
    return next(curve for curve in found.paths if curve.target == node)


def test_the_first_unit_carries_what_every_step_chunk_and_request_costs_beside_the_units() -> None:
    found = economics(everything())
    assert found.missing == ()
    assert service(found, "embedding", "step").seconds(1, 0) == pytest.approx(TABLE + STEP_OVERHEAD + SERVING)
    assert service(found, "embedding", "first-pass").seconds(8, 0) == pytest.approx(TABLE + STEP_OVERHEAD)
    assert service(found, "embedding", "opening").seconds(1, 0) == pytest.approx(OPENING + PASS_WAKING)


def test_without_requests_that_were_measured_a_token_has_no_price_and_the_reason_is_there() -> None:
    found = economics([record for record in everything() if record.subject not in (UNIT.node_id,)])
    lacking = [reason for reason in found.missing if UNIT.id in reason]
    assert len(lacking) == 2
    assert all("-seconds" in reason for reason in lacking)
    assert not [curve for curve in found.services if (curve.compute_unit_id, curve.phase) == (UNIT.id, "opening")]


def test_blocks_are_priced_as_they_are_without_a_pause() -> None:
    found = economics(everything())
    for phase in ("step", "first-pass"):
        assert service(found, "block", phase).seconds(1, 0) == pytest.approx(BLOCK)


def test_a_path_carries_what_waking_costs_the_participant_it_leads_to() -> None:
    slower = [
        msgspec.structs.replace(record, samples=tuple(sample + 1e-3 for sample in record.samples))
        if record.context_value("pause.seconds") == PAUSE and record.metric == "step-overhead-seconds"
        else record
        for record in steps(UNIT.id, UNIT.threads)
    ]
    found = economics(slower + steps(OTHER_UNIT.id, OTHER_UNIT.threads) + messages())
    assert path_to(found, UNIT.node_id).latency_seconds == pytest.approx(MESSAGE + STEP_WAKING + 1e-3)
    assert path_to(found, OTHER_UNIT.node_id).latency_seconds == pytest.approx(MESSAGE + STEP_WAKING)


def test_a_path_says_what_the_first_chunk_of_a_request_costs_more_than_a_step() -> None:
    found = economics(everything())
    assert path_to(found, UNIT.node_id).opening_seconds == pytest.approx(PASS_WAKING - STEP_WAKING)
    without = [
        record
        for record in everything()
        if record.context_value("pause.seconds") != PAUSE or record.context_value("phase") != "first-pass"
    ]
    assert economics(without).paths == ()
    assert any("nobody knows what a first-pass after a pause costs" in text for text in economics(without).missing)


def test_the_records_of_a_pause_are_named_by_the_path() -> None:
    records = everything()
    names = set(path_to(economics(records), UNIT.node_id).evidence_ids)
    paused = {
        record.id
        for record in records
        if record.subject == UNIT.id
        and record.context_value("pause.seconds") == PAUSE
        and record.context_value("phase") == "step"
    }
    assert paused
    assert paused <= names


def test_a_step_that_was_faster_after_a_pause_costs_nothing_more() -> None:
    quick = [
        msgspec.structs.replace(record, samples=tuple(sample / 2 for sample in record.samples))
        if record.context_value("pause.seconds") == PAUSE
        else record
        for record in everything()
    ]
    assert path_to(economics(quick), UNIT.node_id).latency_seconds == pytest.approx(MESSAGE)


def test_without_records_of_a_pause_no_request_and_no_path_is_priced() -> None:
    found = economics([record for record in everything() if record.context_value("pause.seconds") != PAUSE])
    assert found.paths == ()
    assert {(curve.cost_class, curve.phase) for curve in found.services} == {
        ("block", "first-pass"),
        ("block", "step"),
        ("embedding", "first-pass"),
        ("embedding", "step"),
    }
    assert any("step-overhead-seconds after a pause" in text and f"({UNIT.id})" in text for text in found.missing)


def test_a_pause_without_the_record_of_its_units_tells_nothing() -> None:
    lonely = [
        record
        for record in everything()
        if record.context_value("pause.seconds") != PAUSE or record.metric != "unit-seconds"
    ]
    assert economics(lonely).paths == ()
    assert any("has no record of its units beside it" in text for text in economics(lonely).missing)


@pytest.mark.parametrize("stated", ["soon", "-1", "nan", "61"])
def test_a_pause_that_is_no_time_is_refused(stated: str) -> None:
    found = economics([with_context("pause.seconds", stated)(record) for record in everything()])
    assert found.services == ()
    assert any(f"states pause.seconds as {stated!r}" in text for text in found.missing)


def test_the_spread_of_waking_is_in_the_bounds_of_the_path() -> None:
    uneven = [
        msgspec.structs.replace(record, samples=(1e-4, 2e-4, 4e-4, 8e-4, 3e-3))
        if record.context_value("pause.seconds") == PAUSE and record.metric == "step-overhead-seconds"
        else record
        for record in everything()
    ]
    steady, spread = (path_to(economics(records), UNIT.node_id) for records in (everything(), uneven))
    assert spread.high > 1.5 > steady.high
    assert spread.low < steady.low
