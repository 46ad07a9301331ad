"""All laws of one run, in their order, and what the run comes to by them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from inferswarm.campaigns import layout
from inferswarm.campaigns.case import Case
from inferswarm.campaigns.findings import compared, in_order, legible, state_of, unproven
from inferswarm.campaigns.laws import LAWS, Finding, State
from inferswarm.campaigns.laws_of_files import (
    check_file_digests,
    check_files_closed,
    check_ledger_chain,
    check_ledger_run,
    check_manifest,
    check_schema,
)
from inferswarm.campaigns.laws_of_plans import check_plans
from inferswarm.campaigns.laws_of_requests import (
    check_arms_closed,
    check_chronology,
    check_expectations,
    check_request,
)
from inferswarm.campaigns.laws_of_results import check_identity, check_results
from inferswarm.campaigns.laws_of_witnesses import (
    check_background,
    check_environment,
    check_notebook,
    check_outcome,
    check_predecessors,
    check_seal,
    check_witnesses,
)
from inferswarm.campaigns.provenance import Provenance
from inferswarm.campaigns.records import Disposition
from inferswarm.campaigns.signatures import SignatureChecker
from inferswarm.campaigns.statements import check_statement
from inferswarm.campaigns.verdicts import RunVerdict, are_sound, disposition_of

CHECKS: Final[tuple[Callable[[Case], Iterator[Finding]], ...]] = (
    check_ledger_chain,
    check_ledger_run,
    check_manifest,
    check_files_closed,
    check_file_digests,
    check_schema,
    check_request,
    check_arms_closed,
    check_expectations,
    check_chronology,
    check_outcome,
    check_seal,
    check_witnesses,
    check_notebook,
    check_background,
    check_environment,
    check_predecessors,
    check_plans,
    check_identity,
    check_results,
)
HALF_LAWS: Final = frozenset(
    {
        "files-closed",
        "schema",
        "seal",
        "witnesses-agree",
        "notebook-scan",
        "notebook-source",
        "parameters",
        "background-failures",
        "environment",
        "plan-realized",
        "samples",
        "summaries-recomputed",
    }
)
"""Laws of what a process that did not come to its end leaves half: there they are unproven, not broken.

Not so for what the parent writes itself: it writes each file whole or not at all.
"""


def judge_run(case: Case, provenance: Provenance, signatures: SignatureChecker) -> RunVerdict:
    """Apply every law to a run. Never raises for what the run holds.

    With `case.finishing_at`, as its parent does, what is written only after the disposition is left out.
    """
    findings = tuple(finding for check in CHECKS for finding in check(case))
    outcome, request = case.run.outcome, case.run.request
    if not case.run.came_to_its_end:
        findings = tuple(map(_half, findings))
    disposition = disposition_of(findings, None if outcome is None else outcome.end)
    recorded = case.finished[0].disposition if len(case.finished) == 1 else None
    if case.finishing_at is None:
        findings += tuple(check_statement(case, findings, recorded))
        findings += tuple(signatures.check(case.run.bundle))
        findings += (_recorded(disposition, recorded),)
        findings += tuple(provenance.check(case.run))
    findings = in_order(findings)
    return RunVerdict(
        campaign=legible(case.run.bundle.campaign),
        edition=0 if request is None else request.edition,
        arm="" if request is None else legible(request.arm),
        run_id=case.run.bundle.run_id,
        attempt=0 if request is None else request.attempt,
        disposition=disposition,
        recorded=recorded,
        correctness=_group(findings, "correctness"),
        performance=_group(findings, "performance"),
        provenance=_group(findings, "provenance"),
        is_sound=are_sound(findings),
        commit="" if request is None else legible(request.commit),
        is_dirty=request is None or request.dirty,
        package_digest="" if request is None else request.package_digest,
        seconds=None if outcome is None else outcome.seconds,
        findings=findings,
    )


def _half(finding: Finding) -> Finding:
    is_of_parent = finding.path in (*layout.PARENT_FILES, layout.MANIFEST)
    if finding.state is not State.BROKEN or finding.law not in HALF_LAWS or is_of_parent:
        return finding
    found = f"{finding.found} (the run did not come to its end)"
    return msgspec.structs.replace(finding, state=State.UNPROVEN, found=found)


def _recorded(disposition: Disposition, recorded: Disposition | None) -> Finding:
    law = "disposition-recorded"
    if recorded is None:
        return unproven(law, layout.LEDGER, disposition, "none: nobody concluded the run")
    return compared(law, layout.LEDGER, disposition, recorded)


def _group(findings: tuple[Finding, ...], group: str) -> State:
    return state_of(findings, (law for law, of in LAWS.items() if of == group))
