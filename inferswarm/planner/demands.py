"""A policy in words: what the operator demands, one line each."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from inferswarm.planner.problem import Policy
from inferswarm.units import format_bytes, format_seconds


def demands_of(policy: Policy) -> tuple[str, ...]:
    """Return every demand of a policy for people; pins are not among them: a decision records them as overrides."""
    return tuple(_demands(policy))


def _demands(policy: Policy) -> Iterator[str]:
    if policy.representations:
        yield f"only in {', '.join(policy.representations)}"
    lists = (
        ("only on the Nodes {}", policy.approved_nodes),
        ("only on the machines {}", policy.approved_machines),
        ("only on the Compute Units {}", policy.approved_compute_units),
        ("not on the Nodes {}", policy.excluded_nodes or msgspec.UNSET),
        ("not on the Compute Units {}", policy.excluded_compute_units),
        ("not over Links of the kind {}", policy.excluded_link_kinds),
        ("not over the segments {}", policy.excluded_segments),
    )
    for text, names in lists:
        if not isinstance(names, msgspec.UnsetType):
            yield text.format(", ".join(names) or "(none)")
    if not isinstance(policy.reservations, msgspec.UnsetType):
        for item in policy.reservations:
            yield f"{format_bytes(item.bytes)} kept free on {item.node}"
    if policy.max_participants is not None:
        yield f"at most {_counted(policy.max_participants, 'participant')}"
    if not isinstance(policy.max_machines, msgspec.UnsetType):
        yield f"on at most {_counted(policy.max_machines, 'machine')}"
    if policy.min_tokens_per_second is not None:
        yield f"at least {policy.min_tokens_per_second:g} tokens/s for a session alone"
    if not isinstance(policy.max_first_token_seconds, msgspec.UnsetType):
        yield f"the first token within {format_seconds(policy.max_first_token_seconds)}"
    if not isinstance(policy.max_request_seconds, msgspec.UnsetType):
        yield f"a request within {format_seconds(policy.max_request_seconds)}"
    if policy.bit_exact_required:
        yield "only what an accepted record says to be bit-exact"
    if policy.mix_representations:
        yield "participants may compute in different representations"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
