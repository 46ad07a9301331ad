"""Has Nodes get from peers what these decoded of the same bytes, where everything that decides its bits is the same.

After a Node holds what its participant needs, and before its stage makes states of it. Nothing depends on it: what is
not to be had, does not come in time or is altered is decoded as ever. A result is taken under a ticket like any bytes
and listed on arrival, which is to believe that the peer computed right: that two peers say different results of one
key is refused, and neither is taken.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from inferswarm.artifacts.identity import Transform
from inferswarm.artifacts.inventory import SourceIndex
from inferswarm.artifacts.source_choices import Choice, SourceFacts, Want
from inferswarm.artifacts.sources import USUAL_POLICY
from inferswarm.artifacts.sourcing import choose_sources
from inferswarm.artifacts.taxonomy import (
    IDENTITY_MISMATCH,
    INTEGRITY_MISMATCH,
    RECONCILIATION_MISMATCH,
    UNVERIFIED_READ,
)
from inferswarm.artifacts.transforms import ListedResult, artifact_of, result_bytes, transform_key
from inferswarm.artifacts.types import ParticipantRequirement, StoredBlobs
from inferswarm.backends.decoding_identity import decoding
from inferswarm.errors import AuthorityUncertain, InferSwarmError
from inferswarm.fabric import messages as m
from inferswarm.fabric.acquiring_orders import HeldArtifact, Terms, orders_of, shut_pairs
from inferswarm.fabric.acquisition_rounds import TICKET_MARGIN_SECONDS, OnAnswer, Parts
from inferswarm.fabric.bulk_guard import bulk_bytes
from inferswarm.strategies.problem import VALUE_BYTES

RESULT_SECONDS: Final = 30.0
"""So long results are waited for; what has not come by then is decoded. Decoding a Node's part takes seconds."""
ASK_SECONDS: Final = 2.0
"""For a courier to say which results it lists."""

_WRONG: Final = (INTEGRITY_MISMATCH, IDENTITY_MISMATCH, UNVERIFIED_READ)
"""Codes of a source that gave something else than it said."""


class Taker(NamedTuple):
    """A participant whose Node may use results, and what it holds for it."""

    participant: str
    node_id: str
    representation: str
    requirement: ParticipantRequirement
    held: tuple[HeldArtifact, ...]


class Lacked(NamedTuple):
    """What a Node could use of what peers list."""

    wants: list[Want]
    contradicted: list[str]
    """Keys of which peers say different results."""


def lacked_results(taker: Taker, own: m.ResultsReported, offers: Iterable[Iterable[ListedResult]]) -> Lacked:
    """Return the results that a Node lacks and peers list, as far as there is room for them beside what is there."""
    stored = taker.requirement.stored
    assert isinstance(stored, StoredBlobs), "what a Node holds was told"
    said: dict[str, set[tuple[str, int]]] = {}
    for listed in offers:
        for item in listed:
            said.setdefault(item.key, set()).add((item.sha256, item.length))
    sources = {item.sha256: replace(item.artifact, sha256=item.sha256) for item in taker.held}
    seen, room = {item.key for item in own.results}, own.room_bytes
    found = Lacked([], [])
    for record in taker.requirement.tensors:
        transform = decoding(record, stored, taker.representation, dict(own.surroundings))
        if transform is None or (key := transform_key(transform)) in seen or key not in said:
            continue
        seen.add(key)
        if len(said[key]) > 1:
            found.contradicted.append(key)
            continue
        ((sha256, length),) = said[key]
        content = math.prod(record.shape) * VALUE_BYTES[taker.representation]
        if length != result_bytes(transform, content) or (room is not None and length > room):
            continue
        room = None if room is None else room - length
        found.wants.append(
            Want(taker.participant, taker.node_id, artifact_of(sources[transform.source], transform, sha256, length))
        )
    return found


async def take_results(parts: Parts, takers: Sequence[Taker], couriers: Collection[str]) -> None:
    """Have the Nodes of takers get the results that they lack from others of `couriers`, Node ids.

    Raises ArtifactError for an answer that does not add up, AuthorityUncertain as the ledger does.
    """
    answers = await asyncio.gather(*(_report(parts, node_id) for node_id in couriers))
    reports = {node_id: answer for node_id, answer in zip(couriers, answers, strict=True) if answer is not None}
    wants: list[Want] = []
    for taker in takers:
        own = reports.get(taker.node_id)
        if own is None:
            continue
        offers = [report.results for node_id, report in reports.items() if node_id != taker.node_id]
        lacked = lacked_results(taker, own, offers)
        for key in lacked.contradicted:
            parts.refuse(
                RECONCILIATION_MISMATCH, f"peers say different results of the transform {key}: none is taken"
            )
        wants += lacked.wants
    if wants:
        await _take(parts, wants)


async def _report(parts: Parts, node_id: str) -> m.ResultsReported | None:
    answer = await _unless_it_fails(parts, node_id, m.ReportResults(), ASK_SECONDS)
    return answer if isinstance(answer, m.ResultsReported) and bulk_bytes(answer) == 0 else None


async def _take(parts: Parts, wants: list[Want]) -> None:
    generation, needed = parts.account.generation, parts.needed
    index = (await parts.look(generation, (), ())).sources
    shut = shut_pairs(wants, parts.records.shut_sources())
    wants = [want for want in wants if _is_offered(want, index, shut)]
    facts = SourceFacts(
        index=index,
        origin=None,
        seconds_per_byte={(source, node): seconds for source, node, seconds in needed.seconds_per_byte},
        excluded=shut,
    )
    plan = await asyncio.to_thread(choose_sources, wants, facts, USUAL_POLICY, generation)
    by_key = {(want.participant, want.artifact.id): want for want in wants}
    parts.account.declared(want.artifact for want in wants)
    parts.account.authorized(plan.choices)
    by_participant: dict[str, list[Choice]] = {}
    for choice in plan.choices:
        by_participant.setdefault(choice.participant, []).append(choice)
    await asyncio.gather(*(_get(parts, by_key, choices) for choices in by_participant.values()))
    parts.account.check()


async def _get(parts: Parts, wants: Mapping[tuple[str, str], Want], choices: Sequence[Choice]) -> None:
    """Have one Node get what was chosen for it, once."""
    participant, node_id = choices[0].participant, choices[0].node_id
    mine = [wants[participant, choice.artifact] for choice in choices]
    terms = Terms(parts.account.generation, int(time.time() + RESULT_SECONDS + TICKET_MARGIN_SECONDS))
    command = m.AcquireArtifacts(
        participant=participant,
        owner=parts.owner,
        orders=await asyncio.to_thread(orders_of, mine, choices, parts.booth, terms),
        strict=parts.needed.strict,
        deadline_seconds=RESULT_SECONDS,
        are_results=True,
    )
    broken: list[InferSwarmError] = []

    def on_answer(answer: m.Answer) -> None:
        if isinstance(answer, m.ArtifactsAcquired):
            try:
                parts.account.answered(participant, answer, are_results=True)
            except InferSwarmError as error:
                broken.append(error)

    answer = await _unless_it_fails(parts, node_id, command, RESULT_SECONDS + ASK_SECONDS, on_answer)
    for error in broken:
        raise error
    if isinstance(answer, m.ArtifactsAcquired):
        for want, choice, outcome in zip(mine, choices, answer.outcomes, strict=False):
            if outcome.side == "source" and choice.source is not None:
                _refuse(parts, want, choice.source.id, outcome)


def _refuse(parts: Parts, want: Want, source_id: str, outcome: m.AcquisitionOutcome) -> None:
    transform, sha256 = want.artifact.transform, want.artifact.sha256
    assert isinstance(transform, Transform)
    text = f"the result of {transform.id} from Node {parts.name_of(source_id)}: {outcome.reason}"
    parts.refuse(outcome.code, text)
    if outcome.code in _WRONG and isinstance(sha256, str):
        parts.records.shut(source_id, sha256, text)


async def _unless_it_fails(
    parts: Parts, node_id: str, command: m.CourierCommand, seconds: float, on_answer: OnAnswer | None = None
) -> m.Answer | None:
    """Return a courier's answer, None when it fails or does not come: decoding goes on without it."""
    try:
        return await asyncio.wait_for(parts.call(node_id, command, None, on_answer), seconds)
    except AuthorityUncertain:
        raise
    except (InferSwarmError, TimeoutError):
        return None


def _is_offered(want: Want, index: SourceIndex, shut: Collection[tuple[str, str]]) -> bool:
    """Return whether anybody may be asked for a result, the Node's own store included."""
    sha256, artifact = want.artifact.sha256, want.artifact
    assert isinstance(sha256, str), "the digest of a result is known"
    return any((source.id, artifact.id) not in shut for source in index.advertisers(sha256, artifact.length))
