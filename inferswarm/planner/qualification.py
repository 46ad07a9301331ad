"""What was proved of executions that are like a plan's, as a policy of correctness asks for it.

A record says how far executions of one *subject* agree with their reference: of which problem, by which primitive, in
which representation, by which makes of participants. It covers a plan when the subject is the plan's and each
participant is of one of those makes. Nothing stands in for a record: one about something else, one without a final
verdict, one that nobody accepted and one that no longer applies prove nothing. What lacks one is not distrusted,
only not used where exactness is demanded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from inferswarm.documents import Document
from inferswarm.planner.problem import Implementation, PlanningProblem
from inferswarm.planner.sites import Site

Verdict = Literal[
    "MATCHED_ACCEPTED_QUALIFICATION_RECORD",
    "NO_ACCEPTED_QUALIFICATION_EVIDENCE",
    "QUALIFICATION_SUBJECT_MISMATCH",
    "QUALIFICATION_NOT_TERMINAL_PASS",
]
"""What one record, or all of them, say of a plan."""


class QualifiedMake(Document, frozen=True, kw_only=True):
    """What of a participant decides how it rounds: what it computes in, and all that is declared of its hardware."""

    representation: str
    kind: str
    threads: int
    capabilities: tuple[str, ...]
    """All tags of the Compute Unit, in any order."""

    @property
    def key(self) -> tuple[str, str, int, frozenset[str]]:
        """The make, whatever the order of its tags."""
        return self.representation, self.kind, self.threads, frozenset(self.capabilities)


class QualificationRecord(
    Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.qualification-record/1"
):
    """One accepted or refused verdict about one subject. Raises ValueError for a record without makes or evidence."""

    id: str
    problem_id: str
    strategy: str
    comparator: str
    chunk_positions: int
    primitive: str
    representation: str
    """As a plan says it: one representation, or the name of a mixture."""
    makes: tuple[QualifiedMake, ...]
    """The claim is about any legal split over participants of these makes."""
    agreement: Literal["bit-exact", "numerical", "semantic"]
    disposition: Literal["PASS", "FAIL", "BLOCKED", "INCOMPLETE", "INSUFFICIENT_EVIDENCE"]
    accepted: bool
    """Somebody with the right to do so accepted the verdict; observing it does not."""
    use_state: Literal["applicable", "stale", "degraded", "suspended", "invalid"] = "applicable"
    evidence_ids: tuple[str, ...]

    def __post_init__(self) -> None:
        """Refuse a record that is about nothing, or that rests on nothing."""
        super().__post_init__()
        if not self.makes:
            raise ValueError(f"qualification record {self.id} names no make")
        if not self.evidence_ids:
            raise ValueError(f"qualification record {self.id} names no evidence")

    def judge(self, problem: PlanningProblem, implementation: Implementation, sites: Iterable[Site]) -> Verdict:
        """Say what the record tells of bit-exactness of plans of one implementation over these sites."""
        mine = (
            self.problem_id,
            self.strategy,
            self.comparator,
            self.chunk_positions,
            self.primitive,
            self.representation,
        )
        theirs = (
            problem.id,
            problem.strategy,
            problem.comparator,
            problem.chunk_positions,
            implementation.primitive,
            implementation.representation,
        )
        covered = {make.key for make in self.makes}
        if mine != theirs or self.agreement != "bit-exact":
            return "QUALIFICATION_SUBJECT_MISMATCH"
        if any(make.key not in covered for site in sites for make in makes_of(problem, implementation, site)):
            return "QUALIFICATION_SUBJECT_MISMATCH"
        if self.disposition != "PASS":
            return "QUALIFICATION_NOT_TERMINAL_PASS"
        if not self.accepted or self.use_state != "applicable":
            return "NO_ACCEPTED_QUALIFICATION_EVIDENCE"
        return "MATCHED_ACCEPTED_QUALIFICATION_RECORD"


def representations_of(problem: PlanningProblem, name: str) -> tuple[str, ...]:
    """Return what the participants of a plan may compute in: one representation, or those of the mixture so named."""
    mixtures = () if isinstance(problem.mixtures, msgspec.UnsetType) else problem.mixtures
    return next((mixture.representations for mixture in mixtures if mixture.name == name), (name,))


def makes_of(problem: PlanningProblem, implementation: Implementation, site: Site) -> tuple[QualifiedMake, ...]:
    """Return every make that a participant on a site may be of: one for each representation it may compute in."""
    unit = site.compute_unit
    return tuple(
        QualifiedMake(
            representation=representation,
            kind=unit.kind,
            threads=unit.threads,
            capabilities=tuple(sorted(unit.capabilities)),
        )
        for representation in representations_of(problem, implementation.representation)
    )


def exactness_objections(
    records: tuple[QualificationRecord, ...],
    problem: PlanningProblem,
    implementation: Implementation,
    sites: tuple[Site, ...],
) -> tuple[str, ...]:
    """Return the ids of the records of the same subject that did not pass and are about any of these sites."""
    return tuple(
        record.id
        for record in records
        if any(record.judge(problem, implementation, (site,)) == "QUALIFICATION_NOT_TERMINAL_PASS" for site in sites)
    )


def exactness_refusal(
    records: tuple[QualificationRecord, ...],
    problem: PlanningProblem,
    implementation: Implementation,
    sites: tuple[Site, ...],
) -> str | None:
    """Return why no plan over these sites is known to be bit-exact, or None where an accepted record says it is.

    A record of the same subject that did not pass, about any of these sites, speaks against one that did.
    """
    failed = exactness_objections(records, problem, implementation, sites)
    verdicts = {record.id: record.judge(problem, implementation, sites) for record in records}
    verdicts |= dict.fromkeys(failed, "QUALIFICATION_NOT_TERMINAL_PASS")
    if "MATCHED_ACCEPTED_QUALIFICATION_RECORD" in verdicts.values() and not failed:
        return None
    makes = dict.fromkeys(
        f"{site.compute_unit.kind} of {site.compute_unit.threads} threads"
        if site.compute_unit.threads > 1
        else site.compute_unit.kind
        for site in sites
    )
    what = f"{implementation.primitive} in {implementation.representation} on {' + '.join(makes)}"
    there = "there are none"
    if verdicts:
        there = "; ".join(f"{name}: {verdict}" for name, verdict in sorted(verdicts.items()))
    return (
        f"policy: NO_ACCEPTED_QUALIFICATION_EVIDENCE: bit-exactness is required, and no accepted record says it of "
        f"{what} (records: {there})"
    )
