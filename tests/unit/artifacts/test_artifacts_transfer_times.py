"""Estimated seconds of an acquisition: known answers, and what holds for every set of links."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferswarm.artifacts.transfer_times import Demand, LinkSpeeds, Speed, estimate_seconds
from inferswarm.errors import SpecError

SOURCES = ("origin", "ann", "bob", "cat")
PARTICIPANTS = ("stage-0", "stage-1", "stage-2")
thorough = settings(max_examples=20, derandomize=True, deadline=None)


def exactly(speed):
    return Speed(speed, speed, speed)


def links(paths, inbound=None, outbound=None):
    return LinkSpeeds(
        paths={key: exactly(speed) for key, speed in paths.items()},
        inbound={key: exactly(speed) for key, speed in (inbound or {}).items()},
        outbound={key: exactly(speed) for key, speed in (outbound or {}).items()},
    )


def point(demands, speeds, after=None):
    return estimate_seconds(demands, speeds, after).point


@pytest.mark.parametrize(
    ("demands", "paths", "inbound", "outbound", "seconds"),
    [
        # One source: bytes over speed.
        ([("p", 100, ("a",))], {("a", "p"): 10}, {}, {}, 10),
        # Two sources at once carry as much as both paths.
        ([("p", 100, ("a", "b"))], {("a", "p"): 10, ("b", "p"): 15}, {"p": 100}, {}, 4),
        # The participant's link in is shared.
        ([("p", 100, ("a", "b"))], {("a", "p"): 10, ("b", "p"): 15}, {"p": 20}, {}, 5),
        ([("p", 50, ("a",)), ("p", 50, ("b",))], {("a", "p"): 10, ("b", "p"): 15}, {"p": 20}, {}, 5),
        # Unstated, it is as fast as the fastest path into it.
        ([("p", 90, ("a", "b"))], {("a", "p"): 10, ("b", "p"): 15}, {}, {}, 6),
        # A source's link out is shared by two participants, whatever their paths carry alone.
        ([("p", 60, ("a",)), ("q", 60, ("a",))], {("a", "p"): 10, ("a", "q"): 10}, {}, {"a": 12}, 10),
        ([("p", 60, ("a",)), ("q", 60, ("a",))], {("a", "p"): 10, ("a", "q"): 10}, {}, {}, 12),
        # Who can go elsewhere leaves the shared link to who cannot.
        (
            [("p", 60, ("a",)), ("q", 60, ("a", "b"))],
            {("a", "p"): 10, ("a", "q"): 10, ("b", "q"): 10},
            {},
            {},
            6,
        ),
    ],
)
def test_known_answers(demands, paths, inbound, outbound, seconds):
    found = point([Demand(*demand) for demand in demands], links(paths, inbound, outbound))
    assert found == pytest.approx(seconds, rel=1e-6)


def test_transforms_and_loading_follow_where_they_happen():
    speeds = links({("a", "p"): 10, ("a", "q"): 10})
    demands = [Demand("p", 100, ("a",))]
    assert point(demands, speeds, {"p": 3.0}) == pytest.approx(13)
    assert point(demands, speeds, {"p": 3.0, "q": 12.0}) == pytest.approx(13)
    assert point(demands, speeds, {"p": 3.0, "q": 20.0}) == pytest.approx(20)


def test_the_interval_goes_from_all_fast_to_all_slow():
    speeds = LinkSpeeds(paths={("a", "p"): Speed(5, 10, 20)})
    estimate = estimate_seconds([Demand("p", 100, ("a",))], speeds)
    assert estimate[:3] == pytest.approx((5, 10, 20))
    assert estimate.missing == ()


def test_a_path_that_was_not_measured_is_no_path():
    speeds = links({("a", "p"): 10})
    assert point([Demand("p", 100, ("a", "b"))], speeds) == pytest.approx(10)
    unknown = estimate_seconds([Demand("p", 100, ("a",)), Demand("p", 1, ("b",))], speeds)
    assert unknown == (None, None, None, ("b to p",))
    assert estimate_seconds([Demand("p", 1, ())], speeds).missing == ("no source to p",)


def test_nothing_to_move_takes_no_time():
    assert estimate_seconds([], links({})) == (0.0, 0.0, 0.0, ())
    assert estimate_seconds([Demand("p", 0, ("a",)), Demand("q", 0, ())], links({})) == (0.0, 0.0, 0.0, ())


@pytest.mark.parametrize(
    "speed", [(0, 1, 1), (-1, 1, 1), (2, 1, 3), (1, 2, 1), (math.nan, 1, 1), (1, 1, math.inf), (1, math.nan, 2)]
)
def test_a_speed_that_is_none_is_refused(speed):
    for field in ("paths", "inbound", "outbound"):
        key = ("a", "p") if field == "paths" else "p"
        with pytest.raises(SpecError, match="speed"):
            LinkSpeeds(**{"paths": {}, field: {key: Speed(*speed)}})


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
def test_seconds_and_bytes_that_are_none_are_refused(seconds):
    with pytest.raises(SpecError, match="after_seconds"):
        estimate_seconds([], links({}), {"p": seconds})
    with pytest.raises(SpecError, match="bytes"):
        estimate_seconds([Demand("p", -1, ("a",))], links({("a", "p"): 1}))


# -- for every set of links --

speed_values = st.floats(1e6, 1e9)


@st.composite
def worlds(draw):
    """Demands that all have at least one source with a measured path, and the links."""
    paths = {(source, who): draw(speed_values) for source in SOURCES for who in PARTICIPANTS}
    inbound = {who: draw(speed_values) for who in PARTICIPANTS if draw(st.booleans())}
    outbound = {source: draw(speed_values) for source in SOURCES if draw(st.booleans())}
    demands = draw(
        st.lists(
            st.tuples(
                st.sampled_from(PARTICIPANTS),
                st.integers(1, 10**10),
                st.lists(st.sampled_from(SOURCES), min_size=1, max_size=4, unique=True).map(tuple),
            ).map(lambda item: Demand(*item)),
            min_size=1,
            max_size=5,
        )
    )
    return demands, paths, inbound, outbound


@given(worlds(), st.sampled_from(SOURCES), st.data())
@thorough
def test_one_more_source_is_never_slower(world, source, data):
    demands, paths, inbound, outbound = world
    place = data.draw(st.integers(0, len(demands) - 1))
    more = [*demands]
    more[place] = more[place]._replace(sources=(*more[place].sources, source))
    speeds = links(paths, inbound, outbound)
    assert point(more, speeds) <= point(demands, speeds) * (1 + 1e-6)


@given(worlds(), st.integers(2, 1000))
@thorough
def test_only_the_ratio_of_bytes_and_speeds_counts(world, factor):
    demands, paths, inbound, outbound = world
    before = point(demands, links(paths, inbound, outbound))
    larger = [demand._replace(bytes=demand.bytes * factor) for demand in demands]
    assert point(larger, links(paths, inbound, outbound)) == pytest.approx(before * factor, rel=1e-6)
    faster = [{key: speed * factor for key, speed in table.items()} for table in (paths, inbound, outbound)]
    assert point(larger, links(*faster)) == pytest.approx(before, rel=1e-6)


@given(worlds())
@thorough
def test_the_time_lies_between_the_busiest_link_and_one_after_the_other(world):
    demands, paths, inbound, outbound = world
    speeds = links(paths, inbound, outbound)
    found = point(demands, speeds)
    one_by_one = sum(point([demand], speeds) for demand in demands)
    assert max(point([demand], speeds) for demand in demands) <= found * (1 + 1e-6)
    assert found <= one_by_one * (1 + 1e-6)
    serial = sum(demand.bytes / paths[demand.sources[0], demand.participant] for demand in demands)
    if not inbound and not outbound:
        assert found <= serial * (1 + 1e-6)
