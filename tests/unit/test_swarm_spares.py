"""A warm stage on each Node is paid for: what it takes is no plan's."""

from __future__ import annotations

from inferswarm.resources.types import observed
from inferswarm.swarm.reservations import Reservations, with_spares


def test_a_spare_is_reserved_as_everything_that_is_there_without_a_plan() -> None:
    measured = Reservations({"amber": observed(300, "measured")}, {"gpu": observed(50, "measured")}, 0)
    found = with_spares(measured)
    assert found.nodes["amber"].value == 600
    assert "spare" in found.nodes["amber"].detail
    assert found.accelerators == measured.accelerators


def test_what_participants_count_for_themselves_is_what_a_spare_takes_too() -> None:
    """Measured were 300 B with one empty stage; 200 B of them go off, since every participant counts them."""
    found = with_spares(Reservations({"amber": observed(100, "measured")}, {}, 200))
    assert found.nodes["amber"].value == 400, (
        "agent and one stage, and as much again, less what one participant counts"
    )


def test_what_was_not_measured_stays_unknown() -> None:
    assert with_spares(Reservations({}, {}, 0)).nodes == {}
