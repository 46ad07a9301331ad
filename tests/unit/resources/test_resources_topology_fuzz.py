"""Whatever a topology file says, the answer is a sound graph or a refusal of the declared kinds, and nothing else."""

from __future__ import annotations

import copy
import tomllib
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferswarm.documents import read_document, write_document
from inferswarm.errors import DocumentError, SpecError
from inferswarm.resources.graph import SwarmGraph
from inferswarm.resources.topology import Topology, read_topology
from tests.unit.resources.topology_samples import CARD, CPU, LAN, MEMORY, link, node, to_toml, topology

PORT = '[[network.port]]\nnodes = ["a"]\nsend = "20 Mbit/s"\nreceive = "200 Mbit/s"\n'
SEGMENT = '\n[[segment]]\nname = "cable"\nkind = "ethernet"\nrate = "100 Mbit/s"\n'
SOUND: dict[str, Any] = tomllib.loads(
    topology(
        node("a", 'same_computer = "box"\n', MEMORY, CPU, CARD),
        node("b", "copies = 2\n", MEMORY, CPU),
        SEGMENT,
        link("a", "b-1", segments=["cable"], both_ways=True),
        LAN,
        PORT,
    )
)
ODD_TEXTS = st.sampled_from(
    [
        "",
        " ",
        "a",
        "b-1",
        "*",
        "**",
        "1 Gbit/s",
        "16 GiB",
        "0 B",
        "0 s",
        "1 us",
        "ram",
        "vram",
        "cable",
        "9" * 18 + " TB",
    ]
) | st.text(max_size=8)
ODD_VALUES = st.recursive(
    ODD_TEXTS
    | st.integers(-(2**70), 2**70)
    | st.booleans()
    | st.floats(allow_nan=True, allow_infinity=True)
    | st.just([]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of everything in nested data."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in items for place in places(item, (*path, key)))]


def changed(data: dict[str, Any], path: tuple[Any, ...], how: str, value: Any) -> dict[str, Any]:
    """Return a copy with one place replaced, removed, doubled, or given another key."""
    result = copy.deepcopy(data)
    if not path:
        return result | {"strange": value}
    owner: Any = result
    for key in path[:-1]:
        owner = owner[key]
    if how == "remove":
        del owner[path[-1]]
    elif how == "double" and isinstance(owner, list):
        owner.append(copy.deepcopy(owner[path[-1]]))
    elif how == "add" and isinstance(owner[path[-1]], dict):
        owner[path[-1]]["strange"] = value
    else:
        owner[path[-1]] = value
    return result


def judged(text: str) -> Topology | None:
    """Read a text: a topology that is sound and survives its document, or None for a refusal."""
    try:
        found = read_topology(text, "fuzz")
    except (DocumentError, SpecError):
        return None
    SwarmGraph(found.graph)
    assert read_document(Topology, write_document(found), "fuzz") == found
    return found


def test_the_sound_one_is_read() -> None:
    assert judged(to_toml(SOUND)) is not None


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_file_with_changes_is_read_or_refused(data: st.DataObject) -> None:
    file = SOUND
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(places(file)))
        how = data.draw(st.sampled_from(["replace", "remove", "double", "add"]))
        file = changed(file, path, how, data.draw(ODD_VALUES))
    judged(to_toml(file))


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200) | st.binary(max_size=200))
def test_any_text_is_refused(text: str | bytes) -> None:
    with pytest.raises(DocumentError, match="fuzz"):
        read_topology(text, "fuzz")


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(places(SOUND)), ODD_TEXTS)
def test_a_key_that_nobody_knows_is_never_passed_over(path: tuple[Any, ...], value: str) -> None:
    target: Any = SOUND
    for key in path:
        target = target[key]
    if isinstance(target, dict) and path[-1:] != ("arithmetic",):
        assert judged(to_toml(changed(SOUND, path, "add", value))) is None
