"""Canonical bytes: exactly those that the library of RFC 8785 writes, for whatever a document can hold."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from inferswarm.documents import canonical_bytes
from inferswarm.errors import DocumentError
from inferswarm.resources.topology import load_topology

TOPOLOGIES = sorted((Path(__file__).resolve().parents[2] / "experiments" / "topologies").glob("*.toml"))
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**53) + 1, 2**53 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.sampled_from([0.0, -0.0, 1.0, 1, True, False, 0, 1e21, 1e-7, "x" * 500]),
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4),
    ),
    max_leaves=30,
)


@settings(deadline=None, max_examples=100)
@given(JSON)
def test_plain_data_has_the_library_s_bytes(data: object) -> None:
    assert canonical_bytes(data) == rfc8785.dumps(data)  # type: ignore[arg-type]


@pytest.mark.parametrize("path", TOPOLOGIES, ids=lambda path: path.stem)
def test_every_shipped_topology_has_the_library_s_bytes(path: Path) -> None:
    topology = load_topology(path)
    links = topology.graph.links
    graph = msgspec.structs.replace(topology.graph, links=links[:: 1 + len(links) // 2000])  # some of very many
    for document in (graph, list(topology.figures)):
        assert canonical_bytes(document) == rfc8785.dumps(msgspec.to_builtins(document))


def test_members_are_in_the_order_of_utf_16() -> None:
    """A character beyond the basic plane sorts before U+FB01 there, and after it by code point."""
    data = {"\ufb01": 1, "\U00010000": 2, "a": 3}
    assert canonical_bytes(data) == rfc8785.dumps(data) == '{"a":3,"\U00010000":2,"\ufb01":1}'.encode()


@pytest.mark.parametrize("bad", [math.nan, math.inf, 2**53, {1: 2}, "\ud800", [{"a": [2**60]}]])
def test_what_has_no_canonical_form_is_refused(bad: object) -> None:
    with pytest.raises(DocumentError, match="has no canonical form"):
        canonical_bytes(bad)
