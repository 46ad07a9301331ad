"""The ways between real processes: cut without a word, hung up, or damaging a byte. Each answer is the right one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.null_swarm import NODE_NAMES, LongAnswer, expected, node_id
from tests.integration.relayed_swarm import Passage, RelayedSwarm

PROMPT = tuple(range(20))
NUM_TOKENS = 600
SILENT_SECONDS = 2.0
SAMPLE = (("stage to stage", "cut"), ("stage to stage", "damage"), ("last stage to Coordinator", "damage"))
WAYS = {
    "Coordinator to first stage": (0, 0),
    "last to first stage": (0, 1),
    "stage to stage": (1, 0),
    "last stage to Coordinator": (None, 0),
}
"""Whose inbox it leads to, by the place in the route, and which connection to it, in their order."""


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayedSwarm]:
    directory = tmp_path_factory.mktemp("swarm")
    with RelayedSwarm(directory, nodes=NODE_NAMES, silent_seconds=SILENT_SECONDS) as swarm:
        yield swarm


def passage(swarm: RelayedSwarm, way: str) -> Passage:
    """Return the connection of the epoch in force that is that way."""
    place, number = WAYS[way]
    if place is None:
        return swarm.relays[""].passages[-1]
    route = [name for name in swarm.relays if name.endswith(f"/stage-{place}")]
    return swarm.relays[route[-1]].passages[number]


@pytest.mark.parametrize(
    ("way", "what"),
    [
        *SAMPLE,
        *(
            pytest.param(way, what, marks=pytest.mark.slow)
            for way in WAYS
            for what in ("cut", "damage", "close")
            if (way, what) not in SAMPLE
        ),
    ],
)
def test_an_answer_does_not_notice_what_becomes_of_a_way(swarm: RelayedSwarm, way: str, what: str) -> None:
    """Mutation: let `DataPath.watch` do nothing, `Inbox._read` keep a connection after a damaged frame, or `_serve`
    watch nothing.
    """
    if swarm.status().epoch is None:
        swarm.realize(NODE_NAMES[:2], fallbacks=[("amber", "cedar")])
    epoch = swarm.status().epoch
    assert epoch is not None
    answer = LongAnswer(swarm, PROMPT, NUM_TOKENS)
    answer.wait_for(20, seed=20)
    getattr(passage(swarm, way), what)()
    record = answer.join(60.0).record
    wanted = expected(PROMPT, NUM_TOKENS)
    assert record.tokens == tuple(answer.tokens) == wanted.tokens
    assert record.logits_digests == wanted.logits_digests
    assert (swarm.status().epoch or 0) > epoch, "nothing happened to it"


@pytest.mark.slow
def test_an_answer_goes_on_over_other_nodes_when_a_way_stays_cut(swarm: RelayedSwarm) -> None:
    """It is tried again some times first: a way that was cut may be there again."""
    if swarm.status().epoch is None:
        swarm.realize(NODE_NAMES[:2], fallbacks=[("amber", "cedar")])
    answer = LongAnswer(swarm, PROMPT, NUM_TOKENS, patient=True)
    answer.wait_for(20, seed=21)
    swarm.unreachable.add("birch")
    passage(swarm, "stage to stage").cut()
    given = answer.join(120.0)
    assert given.record.tokens == tuple(answer.tokens) == expected(PROMPT, NUM_TOKENS).tokens
    assert given.reports[1].node_id == node_id("cedar")
