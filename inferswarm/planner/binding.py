"""What keeps each rejected family from being chosen, resource by resource and in numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from inferswarm.documents import Document
from inferswarm.planner.memory import memory_violation
from inferswarm.planner.plan import CandidateFamily, Decision, ExecutionPlan
from inferswarm.units import format_bytes, format_seconds

Kind = Literal["memory", "time", "technical", "policy", "integrity", "evidence"]


class Binding(Document, frozen=True, kw_only=True):
    """One constraint that binds on one resource. `needed` and `there` are bytes of memory or seconds of a request.

    For `time`, `needed` is what the part takes and `there` what it may take for the family to be as good as the
    chosen plan, all else as it is; below 0 means that not even no time would be enough. Other kinds have no numbers
    but those in the text.
    """

    kind: Kind
    resource: str
    text: str
    needed: float | None = None
    there: float | None = None


def bindings(decision: Decision, family: CandidateFamily) -> tuple[Binding, ...]:
    """Return what binds for one family of a decision, what weighs most first; nothing for the chosen family."""
    if family.status == "RANKED":
        return () if decision.plan is None or family.best is None else _slow_parts(decision.plan, family.best)
    if family.status == "TECHNICALLY_INFEASIBLE":
        return tuple(_technical(family))
    kinds: dict[str, Kind] = {"POLICY_EXCLUDED": "policy", "INTEGRITY_EXCLUDED": "integrity"}
    kind = kinds.get(family.status, "evidence")
    where = " + ".join(family.node_names)
    return tuple(Binding(kind=kind, resource=where, text=reason) for reason in family.reasons)


def _technical(family: CandidateFamily) -> Iterator[Binding]:
    in_numbers = set()
    for account in family.memory:
        if account.fits:
            continue
        violation = memory_violation(account, family.representation)
        in_numbers.add(str(violation))
        available = account.available_bytes
        have = "an unknown amount" if available is None else format_bytes(available)
        yield Binding(
            kind="memory",
            resource=violation.resource,
            text=f"{account.node_name} needs {format_bytes(account.needed_bytes)} and has {have}",
            needed=float(account.needed_bytes),
            there=None if available is None else float(available),
        )
    where = " + ".join(family.node_names)
    for reason in family.reasons:
        if reason not in in_numbers:
            yield Binding(kind="technical", resource=where, text=reason)


def _slow_parts(chosen: ExecutionPlan, best: ExecutionPlan) -> tuple[Binding, ...]:
    """Return what each stage and path of a slower plan takes, and what it may take to match the chosen one.

    Where throughput is the objective, nothing: its value is no sum of parts.
    """
    mine, theirs = best.prediction, chosen.prediction
    if mine is None or theirs is None or not isinstance(mine.throughput, msgspec.UnsetType):
        return ()
    behind = mine.request.point - theirs.request.point
    if behind <= 0:
        return ()
    taken: dict[str, float] = {}
    for term in mine.terms:
        taken[term.subject] = taken.get(term.subject, 0.0) + term.seconds
    names = {placement.participant: placement.node_name for placement in best.placements}
    found = []
    for subject, seconds in sorted(taken.items(), key=lambda item: (-item[1], item[0])):
        where = " → ".join(names.get(part, part) for part in subject.split(" → "))
        left = seconds - behind
        enough = f"at most {format_seconds(left)} would do" if left > 0 else "not even none would do"
        text = f"{where} takes {format_seconds(seconds)} of {format_seconds(mine.request.point)}; {enough}"
        found.append(Binding(kind="time", resource=where, text=text, needed=seconds, there=left))
    return tuple(found)
