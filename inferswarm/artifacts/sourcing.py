"""Who serves what: for every missing artifact one source, with the reason, from what is known and nothing else.

The order is: verified on the Node itself, then peers, then the origin. Peers in good standing share a participant's
artifacts so that their estimated finishing times are even; a slow source is asked last and stays allowed; a pair of
source and artifact that failed is out for this plan. Pure and deterministic: the order of arguments changes nothing.
Planning never sees this: what a Node happens to hold decides where bytes come from, not what a plan may be.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec
from msgspec.structs import replace

from inferswarm.artifacts.identity import Artifact
from inferswarm.artifacts.inventory import SourceIndex
from inferswarm.artifacts.source_choices import (
    Choice,
    PassedOver,
    SourceFacts,
    SourcingPlan,
    Want,
)
from inferswarm.artifacts.sources import ORIGIN, Source, SourcePolicy, is_remote_first
from inferswarm.artifacts.taxonomy import RECONCILIATION_MISMATCH, SOURCE_UNAVAILABLE
from inferswarm.errors import ArtifactError


def choose_sources(wants: Iterable[Want], facts: SourceFacts, policy: SourcePolicy, generation: int) -> SourcingPlan:
    """Choose one source for every artifact that is wanted.

    Raises ArtifactError `SOURCE_OBJECT_UNAVAILABLE` naming the first artifact that no source may serve, with the
    reason for each source.
    """
    queue, excluded = _Queue(facts), frozenset(facts.excluded)

    def freedom(want: Want) -> tuple[int, int, str, str]:
        usable, _ = _remote(want, _advertisers(want.artifact, facts.index), facts, queue, excluded)
        return (len(usable), -want.artifact.length, want.artifact.id, want.participant)

    # Those with the fewest sources first, then the largest: what is left can even out what these left uneven.
    choices = [_choose(want, facts, policy, queue, excluded, 1) for want in sorted(wants, key=freedom)]
    return SourcingPlan(generation=generation, policy=policy, choices=_in_order(choices))


def choose_again(plan: SourcingPlan, failed: Choice, why: str, want: Want, facts: SourceFacts) -> SourcingPlan:
    """Return the plan with another source for an artifact whose attempt failed.

    The failed pair is out for the rest of the plan, and the new choice is an attempt of its own, to be authorized
    anew; all other choices stay. Raises ArtifactError: `RECONCILIATION_MISMATCH` when the attempt is none of the
    plan's, `SOURCE_OBJECT_UNAVAILABLE` as `choose_sources`.
    """
    key = (failed.participant, failed.node_id, failed.artifact)
    if failed not in plan.choices or key != (want.participant, want.node_id, want.artifact.id):
        raise ArtifactError(
            RECONCILIATION_MISMATCH,
            failed.artifact,
            f"attempt {failed.attempt} of {failed.participant} is none of generation {plan.generation}",
        )
    out = (failed.node_id if failed.source is None else failed.source.id, failed.artifact)
    others = [choice for choice in plan.choices if choice != failed]
    queue = _Queue(facts)
    for choice in others:
        if choice.source is not None:
            queue.add(choice.source.id, choice.node_id, choice.length)
    pairs = frozenset((*facts.excluded, *plan.failed, out))
    chosen = _choose(want, facts, plan.policy, queue, pairs, failed.attempt + 1)
    chosen = replace(chosen, reason=f"{chosen.reason}; attempt {failed.attempt} from {out[0]} failed: {why}")
    return replace(plan, choices=_in_order([*others, chosen]), failed=(*plan.failed, out))


class _Queue:
    """When each source will be done with what it was given so far, in seconds from now."""

    def __init__(self, facts: SourceFacts) -> None:
        self._facts = facts
        self._slowest = max(facts.seconds_per_byte.values(), default=1.0)
        self._busy: dict[str, float] = {}
        for source, num_bytes in facts.assigned_bytes.items():
            out = [seconds for (start, _), seconds in facts.seconds_per_byte.items() if start == source]
            self._busy[source] = num_bytes * min(out, default=self._slowest)

    def is_measured(self, source: str, node: str) -> bool:
        return (source, node) in self._facts.seconds_per_byte

    def done(self, source: str, node: str, length: int) -> float:
        """Return when the source would be done; a path that was not measured counts as the slowest that was."""
        pace = self._facts.seconds_per_byte.get((source, node), self._slowest)
        return self._busy.get(source, 0.0) + length * pace

    def add(self, source: str, node: str, length: int) -> None:
        self._busy[source] = self.done(source, node, length)


def _choose(
    want: Want,
    facts: SourceFacts,
    policy: SourcePolicy,
    queue: _Queue,
    excluded: Collection[tuple[str, str]],
    attempt: int,
) -> Choice:
    artifact, node = want.artifact, want.node_id
    advertisers = _advertisers(artifact, facts.index)
    local = any(source.id == node for source in advertisers) and (node, artifact.id) not in excluded
    usable, passed = _remote(want, advertisers, facts, queue, excluded)
    source: Source | None = None
    seconds: float | None = 0.0
    if local and policy != "REQUIRE_REMOTE_AUTHORIZED" and not (is_remote_first(policy) and usable):
        reason = "verified on the Node itself"
        passed += [PassedOver(other.id, "not needed: verified on the Node itself") for other in usable]
    elif usable and policy != "REQUIRE_LOCAL_VERIFIED":
        source, *others = usable
        reason = _why(source, node, others, facts, queue)
        passed += [PassedOver(other.id, f"{source.id} comes first: {reason}") for other in others]
        if local:
            passed.append(PassedOver(node, f"the policy is {policy}"))
        queue.add(source.id, node, artifact.length)
        seconds = queue.done(source.id, node, 0) if queue.is_measured(source.id, node) else None
    else:
        passed += [PassedOver(other.id, f"the policy is {policy}") for other in usable]
        if local:
            passed.append(PassedOver(node, f"the policy is {policy}"))
        tried = "; ".join(f"{item.source_id}: {item.reason}" for item in passed) or "nobody advertises it"
        raise ArtifactError(
            SOURCE_UNAVAILABLE,
            artifact.id,
            f"no source may serve these {artifact.length:,} B to {want.participant} under {policy}: {tried}",
        )
    return Choice(
        participant=want.participant,
        node_id=node,
        artifact=artifact.id,
        length=artifact.length,
        source=source,
        attempt=attempt,
        seconds=seconds,
        reason=reason,
        passed_over=tuple(sorted(passed, key=lambda item: item.source_id)),
    )


def _remote(
    want: Want,
    advertisers: tuple[Source, ...],
    facts: SourceFacts,
    queue: _Queue,
    excluded: Collection[tuple[str, str]],
) -> tuple[list[Source], list[PassedOver]]:
    """Return the sources elsewhere that may serve an artifact, best first, and those that may not."""
    artifact, passed = want.artifact, []
    candidates = [source for source in advertisers if source.id != want.node_id]
    if facts.origin is None:
        passed.append(PassedOver(ORIGIN, "it may not be asked"))
    elif artifact.kind == "transform":
        passed.append(PassedOver(ORIGIN, "it has what this was made from, not this"))
    else:
        candidates.append(facts.origin)
    for source in candidates:
        if (source.id, artifact.id) in excluded:
            passed.append(PassedOver(source.id, "excluded for this artifact: it failed, or is quarantined"))
    usable = [source for source in candidates if (source.id, artifact.id) not in excluded]
    usable.sort(
        key=lambda source: (
            source.id in facts.slow,
            source.id == ORIGIN,
            queue.done(source.id, want.node_id, artifact.length),
            source,
        )
    )
    return usable, passed


def _why(source: Source, node: str, others: list[Source], facts: SourceFacts, queue: _Queue) -> str:
    kind = "the origin" if source.id == ORIGIN else "a peer"
    standing = f"{kind} that is slow" if source.id in facts.slow else kind
    if not others:
        return f"{standing}, the only source that may serve it"
    if source.id != ORIGIN and all(other.id == ORIGIN or other.id in facts.slow for other in others):
        return f"{standing}, before the origin and slow sources"
    path = "by measured path" if queue.is_measured(source.id, node) else "its path not measured, taken as the slowest"
    return f"{standing}, done first by load and path ({path})"


def _advertisers(artifact: Artifact, index: SourceIndex) -> tuple[Source, ...]:
    if isinstance(artifact.sha256, msgspec.UnsetType):
        return ()
    return index.advertisers(artifact.sha256, artifact.length)


def _in_order(choices: Iterable[Choice]) -> tuple[Choice, ...]:
    return tuple(sorted(choices, key=lambda choice: (choice.participant, choice.node_id, choice.artifact)))
