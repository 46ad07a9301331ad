"""Negative controls: for every reason that bytes are refused for, attempts that must be refused with it.

Each goes the longest way that there is: a real origin over HTTP, couriers in processes of their own with real stores,
artifacts derived from a real plan. Each alters one thing, and shows that the unaltered attempt succeeds, so that it
was refused for just that. Asserted are the code, the bytes that moved, and that nothing was published. The controls
are in `controls_of_transfers` and `controls_of_records`.
"""

from __future__ import annotations

import pytest

from inferswarm.artifacts.byte_ledger import ByteLedger
from inferswarm.artifacts.taxonomy import REASON_CODES
from tests.unit.artifacts import controls_of_records, controls_of_transfers
from tests.unit.artifacts.controls_registry import CONTROLS
from tests.unit.artifacts.controls_world import open_world

MODULES = (controls_of_transfers, controls_of_records)
"""Importing them enters their controls into the table."""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with open_world(tmp_path_factory.mktemp("controls")) as opened:
        yield opened


def test_what_is_not_altered_is_accepted(world) -> None:
    """The baseline: all that a participant needs, from the origin, and then all of it from a peer."""
    found = world.plan.of("stage-2").artifacts
    for node, order in (
        (world.amber, world.from_origin),
        (world.birch, lambda item: world.from_peer(item, participant="stage-2")),
    ):
        answer = world.acquire(node, *map(order, found), participant="stage-2")
        assert {outcome.how for outcome in answer.outcomes} == {"acquired"}
        assert ByteLedger(answer.events).total("acquired") == sum(item.length for item in found)


@pytest.mark.parametrize(
    ("code", "control"),
    [(code, control) for code, controls in CONTROLS.items() for control in controls],
    ids=lambda item: item if isinstance(item, str) else item.__name__,
)
def test_a_control_is_refused_with_its_code(world, code, control) -> None:
    control(world)


def test_every_code_has_a_control() -> None:
    """A code without a control is a promise that nobody keeps."""
    assert set(CONTROLS) <= REASON_CODES
    missing = sorted(REASON_CODES - set(CONTROLS))
    total = sum(map(len, CONTROLS.values()))
    print(f"controls: {len(CONTROLS)} of {len(REASON_CODES)} codes, {total} attempts")
    assert not missing
