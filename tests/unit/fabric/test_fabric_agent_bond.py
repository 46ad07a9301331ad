"""What an agent does about its Coordinator, on a clock of the test's own."""

from __future__ import annotations

from inferswarm.fabric.agent_bond import BEATS_PER_LEASE, Bond, Due

LEASE, GRACE = 2.0, 20.0


def welcomed() -> Bond:
    bond = Bond(0.0, grace_seconds=GRACE)
    bond.welcomed(0.0, LEASE)
    return bond


def asked(bond: Bond, begin: float, end: float, step: float = 0.1) -> list[Due]:
    """Ask again and again, and return everything that was to be done."""
    times = [begin + step * index for index in range(round((end - begin) / step))]
    return [due for now in times if (due := bond.due(now)) is not Due.NOTHING]


def test_a_member_beats_so_many_times_in_a_lease_as_long_as_it_is_heard() -> None:
    bond = welcomed()
    beats = []
    for lease in range(10):
        bond.heard(lease * LEASE)
        beats += asked(bond, lease * LEASE, (lease + 1) * LEASE)
    assert set(beats) == {Due.BEAT}
    assert len(beats) == 10 * BEATS_PER_LEASE


def test_after_a_lease_without_a_word_it_asks_once_a_lease_to_join_and_keeps_what_it_has() -> None:
    bond = welcomed()
    asked(bond, 0.0, LEASE)
    assert asked(bond, LEASE + 0.05, LEASE + 0.05 + 5 * LEASE) == [Due.JOIN] * 5


def test_after_the_grace_it_gives_up_once_and_goes_on_asking() -> None:
    bond = welcomed()
    done = asked(bond, 0.0, GRACE + 10 * LEASE)
    assert done.count(Due.GIVE_UP) == 1
    assert done[-3:] == [Due.JOIN] * 3
    bond.welcomed(GRACE + 30.0, LEASE)
    done = asked(bond, GRACE + 30.0, 2 * GRACE + 31.0)
    assert done.count(Due.GIVE_UP) == 1, "it gives up again when it is left alone again"


def test_an_agent_that_was_stopped_itself_for_longer_than_the_grace_gives_up_at_once() -> None:
    bond = welcomed()
    assert bond.due(GRACE + 0.1) is Due.GIVE_UP


def test_who_is_asked_for_its_name_by_several_answers_once() -> None:
    bond = welcomed()
    assert bond.greeted(1.0)
    assert not bond.greeted(1.01)
    assert not bond.greeted(1.02)
    assert asked(bond, 1.05, 1.2 + LEASE) == [Due.JOIN], "an introduction that nobody answered is repeated"
    bond.welcomed(4.0, LEASE)
    assert bond.greeted(4.5)


def test_a_voided_one_waits_before_it_comes_back() -> None:
    bond = welcomed()
    bond.voided(1.0, 0.5)
    assert asked(bond, 1.0, 1.45) == []
    assert bond.due(1.5) is Due.JOIN


def test_without_a_connection_it_introduces_itself_as_soon_as_there_is_one() -> None:
    bond = welcomed()
    assert bond.due(0.1) is Due.BEAT
    bond.unsent(0.1)
    for look in range(10):
        assert bond.due(0.2 + 0.1 * look) is Due.JOIN
        bond.unsent(0.2 + 0.1 * look)
    assert bond.due(1.3) is Due.JOIN
    assert bond.due(1.4) is Due.NOTHING
