"""What a verification comes to: of a run, of a campaign's edition, of a whole root. And who says so.

The verifier is named by its version and the digest of its own source, so that a verdict can be held against it.
"""

from __future__ import annotations

from typing import Final, Literal

from inferswarm import __version__
from inferswarm.campaigns.findings import state_of
from inferswarm.campaigns.laws import LAWS, Finding, State
from inferswarm.campaigns.package_tree import package_tree
from inferswarm.campaigns.records import Disposition, End
from inferswarm.campaigns.standing import ArmState
from inferswarm.documents import Digest, Document

LATER_LAWS: Final = frozenset({"statement", "signature", "disposition-recorded", "acceptance"})
"""Laws of what is written once the disposition is known, so that they cannot be part of it."""
DECISIVE_LAWS: Final = tuple(law for law, group in LAWS.items() if group != "provenance" and law not in LATER_LAWS)
"""What every run must have proven to be a PASS, here and wherever it is verified later."""
RECORD_LAWS: Final = frozenset(
    {
        "ledger-chain",
        "ledger-run",
        "manifest",
        "file-digest",
        "request",
        "arms-closed",
        "expectations-unchanged",
        "statement",
        "signature",
        "disposition-recorded",
        "acceptance",
        "expectations-committed",
        "package-at-commit",
    }
)
"""Laws that an honest record of any run keeps, of a failed one too: where one is broken, something was altered."""
CampaignState = Literal["PASS", "FAIL", "INCOMPLETE", "WAIVED"]


class Verifier(Document, frozen=True, kw_only=True):
    """Who verified."""

    version: str
    package_digest: Digest


class RunVerdict(Document, frozen=True, kw_only=True):
    """What one run comes to. Identity is as the records say; empty where they do not."""

    campaign: str
    edition: int
    arm: str
    run_id: str
    attempt: int
    disposition: Disposition
    """As computed now, from the run's own files and the ledger before it."""
    recorded: Disposition | None
    """As the ledger says; None where nobody concluded the run."""
    correctness: State
    performance: State
    provenance: State
    is_sound: bool
    """No law that an honest record keeps is broken."""
    commit: str
    is_dirty: bool
    package_digest: str
    seconds: float | None
    findings: tuple[Finding, ...]


class ArmVerdict(Document, frozen=True, kw_only=True):
    """What all attempts of an arm come to; `without_waiver` is what it would be if nobody had waived anything."""

    arm: str
    state: ArmState
    without_waiver: Disposition
    attempts: int
    carriers: tuple[str, ...]


class CampaignVerdict(Document, frozen=True, kw_only=True):
    """What the newest edition of a campaign comes to: every arm of its closed set, run or not."""

    campaign: str
    edition: int
    title: str
    claim: str
    state: CampaignState
    arms: tuple[ArmVerdict, ...]
    earlier_editions: tuple[int, ...]
    accepted: tuple[Digest, ...]
    authorizations: tuple[str, ...]
    """What is allowed on the strength of an acceptance, and has not expired."""


class RootVerdict(Document, frozen=True, kw_only=True):
    """What everything under one path comes to."""

    verifier: Verifier
    root: str
    head: Digest
    is_sound: bool
    is_provenance_proven: bool
    campaigns: tuple[CampaignVerdict, ...]
    runs: tuple[RunVerdict, ...]
    findings: tuple[Finding, ...]
    """Of what belongs to no single run."""


def this_verifier() -> Verifier:
    """Return who verifies here. Raises EvidenceError when the package's source cannot be read."""
    return Verifier(version=__version__, package_digest=package_tree().digest)


def disposition_of(findings: tuple[Finding, ...], end: End | None) -> Disposition:
    """Return what a run comes to: FAIL by anything broken, PASS by everything proven, and nothing else is a PASS."""
    state = state_of(findings, DECISIVE_LAWS)
    if state is State.BROKEN:
        return "FAIL"
    if end == "blocked":
        return "BLOCKED"
    return "PASS" if state is State.PROVEN else "INCOMPLETE"


def are_sound(findings: tuple[Finding, ...]) -> bool:
    """Return whether no finding says that a record was altered."""
    return not any(finding.state is State.BROKEN and finding.law in RECORD_LAWS for finding in findings)


def campaign_state(arms: tuple[ArmVerdict, ...], is_sound: bool) -> CampaignState:
    """Return what a closed set of arms comes to. Nothing unsound is a PASS, and neither is an empty set."""
    states = [arm.state for arm in arms]
    if "FAIL" in states:
        return "FAIL"
    if not is_sound or not states or set(states) - {"PASS", "WAIVED"}:
        return "INCOMPLETE"
    return "WAIVED" if "WAIVED" in states else "PASS"
