"""Which addresses a path takes: quickest at 4 KB, then at 64 KB; the others with the reason; never a mixture."""

from __future__ import annotations

import msgspec
import pytest

from inferswarm.evidence.facts import path_subject
from inferswarm.evidence.types import Observation, make_context
from inferswarm.strategies.overheads import Records
from inferswarm.strategies.paths import report_path
from tests.unit.strategies.test_strategies_economics import GRAPH, economics, path_record

SOURCE, TARGET = (node.id for node in GRAPH.nodes)
LOOPBACK, CABLE, RADIO = ("127.0.0.1", "127.0.0.1"), ("10.0.0.1", "10.0.0.2"), ("10.5.0.1", "10.5.0.2")


def over(
    addresses: tuple[str, str], latency: float, per_byte: float = 1e-9, spread: float = 0.01
) -> list[Observation]:
    """Return records of one pair at three sizes, with samples that spread around the formula."""
    found = []
    for size in (64, 4096, 65536):
        middle = latency + per_byte * size
        samples = tuple(middle * (1 + spread * number / 10) for number in range(-10, 11))
        record = path_record(SOURCE, TARGET, size, middle, addresses=addresses)
        found.append(msgspec.structs.replace(record, samples=samples))
    return found


def unreached(addresses: tuple[str, str], reason: str, taken_at_ns: str = "2") -> Observation:
    return Observation(
        subject=path_subject(SOURCE, TARGET, addresses),
        metric="path-unreached",
        unit="attempts",
        samples=(1.0,),
        context=make_context(
            transport="tcp", address_source=addresses[0], address_target=addresses[1], run_reason=reason
        ),
        protocol="path-unreached/1",
        taken_at_ns=taken_at_ns,
        producer="test",
    )


def verdicts(*records: Observation) -> list[tuple[tuple[str, str], bool, str]]:
    report = report_path(SOURCE, TARGET, "tcp", Records(records, None))
    return [(pair.addresses, pair.used, pair.reason) for pair in report.pairs]


@pytest.mark.parametrize(
    ("first", "second", "used", "reason"),
    [
        (over(CABLE, 100e-6), over(RADIO, 400e-6), CABLE, "median 300 µs slower at 4 KB"),
        (over(RADIO, 100e-6), over(CABLE, 400e-6), RADIO, "median 300 µs slower at 4 KB"),
        (over(CABLE, 100e-6), over(LOOPBACK, 400e-6), CABLE, "median 300 µs slower at 4 KB"),
        # alike at 4 KB within the noise, not at 64 KB
        (over(CABLE, 1e-3, 20e-9, 0.2), over(RADIO, 1.05e-3, 1e-9, 0.2), RADIO, "median 1.20 ms slower at 64 KB"),
        # alike at both: the addresses settle it, loopback first
        (over(CABLE, 99.9e-6), over(LOOPBACK, 100e-6), LOOPBACK, "no difference beyond the noise"),
        # quicker at 4 KB counts more than 64 KB
        (over(CABLE, 100e-6, 50e-9), over(RADIO, 600e-6, 1e-9), CABLE, "median 299 µs slower at 4 KB"),
    ],
)
def test_the_pair_that_is_expected_to_move_a_step_soonest_is_used(
    first: list[Observation], second: list[Observation], used: tuple[str, str], reason: str
) -> None:
    (best, is_used, no_reason), (_, other_used, why) = verdicts(*first, *second)
    assert (best, is_used, no_reason, other_used, why) == (used, True, "", False, reason)
    assert verdicts(*second, *first) == verdicts(*first, *second)


def test_a_pair_like_the_used_one_and_slower_than_a_third_names_the_third() -> None:
    # The used pair is level with the quickest because its samples vary; the loopback is not, and like the used one.
    wide, quick, slow = over(CABLE, 150e-6, spread=2.0), over(RADIO, 100e-6), over(LOOPBACK, 160e-6)
    assert verdicts(*wide, *quick, *slow) == [
        (CABLE, True, ""),
        (RADIO, False, "no difference beyond the noise"),
        (LOOPBACK, False, "median 60.0 µs slower at 4 KB than 10.5.0.1 → 10.5.0.2"),
    ]


def test_a_curve_is_made_of_the_best_pair_and_of_no_other() -> None:
    quick, slow = over(CABLE, 100e-6), over(RADIO, 400e-6)
    alone = [curve for curve in economics(quick).paths if curve.source == SOURCE]
    assert [curve for curve in economics(slow + quick).paths if curve.source == SOURCE] == alone
    assert alone[0].evidence_ids == tuple(sorted(record.id for record in quick))


def test_a_pair_that_is_not_reached_is_reported_and_counts_as_no_time() -> None:
    assert verdicts(*over(CABLE, 1e-4), unreached(RADIO, "connection refused")) == [
        (CABLE, True, ""),
        (RADIO, False, "connection refused"),
    ]
    (curve,) = economics([*over(CABLE, 1e-4), unreached(RADIO, "connection refused")]).paths
    assert len(curve.evidence_ids) == 3


def test_a_pair_that_failed_after_it_was_measured_is_not_used_any_more() -> None:
    quick = over(CABLE, 1e-4)
    assert verdicts(*quick, *over(RADIO, 4e-4), unreached(CABLE, "no route to host")) == [
        (RADIO, True, ""),
        (CABLE, False, "no route to host"),
    ]
    assert verdicts(*quick, unreached(CABLE, "no route to host", "0")) == [(CABLE, True, "")]
    missing = economics([*quick, unreached(CABLE, "no route to host")]).missing
    assert any(
        "no pair of addresses gets through (10.0.0.1 → 10.0.0.2: no route to host)" in text for text in missing
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"address_target": ""},
        {"address_source": "", "address_target": ""},
        {"address_source": "10.0.0.7"},
        {"address_source": "eth0"},
    ],
)
def test_a_record_that_does_not_state_its_addresses_makes_no_curve(changes: dict[str, str]) -> None:
    """Mutation: take the addresses from the subject when the context states none."""
    stated = {"address_source": CABLE[0], "address_target": CABLE[1], "transport": "tcp"} | changes
    bare = [
        msgspec.structs.replace(
            record,
            context=make_context(
                payload_bytes=record.context_value("payload.bytes") or "",
                **{key: value for key, value in stated.items() if value},
            ),
        )
        for record in over(CABLE, 1e-4)
    ]
    found = economics(bare)
    assert found.paths == ()
    assert sum("do not state the two addresses" in text for text in found.missing) == 1


def test_records_of_a_whole_path_are_refused_however_well_they_fit() -> None:
    whole = [msgspec.structs.replace(record, subject=path_subject(SOURCE, TARGET)) for record in over(CABLE, 1e-4)]
    assert economics(whole).paths == ()


def test_a_pair_whose_records_lack_a_size_says_so() -> None:
    without = [record for record in over(LOOPBACK, 1e-5) if record.context_value("payload.bytes") != "4096"]
    assert verdicts(*over(CABLE, 1e-4), *without) == [
        (CABLE, True, ""),
        (LOOPBACK, False, "4 KB: no message of this size was measured"),
    ]
