"""How people say something about a campaign: accept its runs, waive an arm, authorize something.

Each is one record, made only where what it rests on is there, sound and newest. Whether the author may say so is not
known here: the package has no accounts.
"""

from __future__ import annotations

import time
from pathlib import Path

from inferswarm.campaigns.acceptance import Saying, accept, not_carried, read_records, write_record
from inferswarm.campaigns.laws import State
from inferswarm.campaigns.laws_of_roots import current_spec
from inferswarm.campaigns.ledger import Ledger
from inferswarm.campaigns.records import SCHEMA, Acceptance, Authorization, Waiver
from inferswarm.campaigns.verify import verify_root
from inferswarm.errors import EvidenceError, SpecError


def saying(author: str, reason: str) -> Saying:
    """Return who says something, and why, now."""
    return Saying(author, reason, str(time.time_ns()))


def accept_campaign(root: Path, campaign: str, project: Path | None, said: Saying) -> str:
    """Accept the newest edition of a campaign as its runs are; return the record's digest.

    Raises EvidenceError when any record of it is broken, or the ledger goes on meanwhile; SpecError when there are no
    runs, or something is missing from what is said.
    """
    verdict = verify_root(root / campaign, project, now=int(said.at))
    if not verdict.is_sound:
        first = next(
            item
            for item in (*verdict.findings, *(item for run in verdict.runs for item in run.findings))
            if item.state is State.BROKEN
        )
        where = f"{first.law}: {first.path}: needed {first.expected}, found {first.found}"
        raise EvidenceError(f"{root / campaign}: a record is broken, so nothing is accepted: {where}")
    (found,) = verdict.campaigns
    if not any(arm.attempts for arm in found.arms):
        raise SpecError("campaign to accept", campaign, "one whose newest edition has runs")
    ledger = Ledger(root)
    with ledger.held() as chain:
        if chain.head != verdict.head:
            raise EvidenceError(f"{root}: the ledger went on while it was verified; accept again")
        waivers = read_records(root, campaign, chain).waivers
        arms = [arm.arm for arm in found.arms]
        return write_record(ledger, accept(chain, waivers, arms, campaign=campaign, edition=found.edition, said=said))


def waive_arm(root: Path, campaign: str, arm: str, project: Path, expires_at: int, said: Saying) -> str:
    """Waive an arm of the project's edition of a campaign until a time in nanoseconds; return the record's digest.

    Raises SpecError for a campaign or an arm that is not there, or when something is missing from what is said;
    EvidenceError when the ledger is broken.
    """
    spec = current_spec(project, campaign)
    if spec is None:
        raise SpecError("campaign", campaign, f"one that can be read below {project / 'experiments'}")
    waiver = Waiver(
        schema=SCHEMA,
        campaign=campaign,
        edition=spec.edition,
        arm=spec.arm(arm).name,
        reason=said.reason,
        author=said.author,
        at=said.at,
        expires_at=str(expires_at),
    )
    return write_record(Ledger(root), waiver)


def authorize(root: Path, campaign: str, acceptance: str, expires_at: int, said: Saying) -> str:
    """Allow what `said.reason` says, on the strength of an acceptance by its digest; return the record's digest.

    Raises SpecError when there is no such acceptance, or any of its arms neither passed nor is waived for as long;
    EvidenceError when the ledger is broken.
    """
    ledger = Ledger(root)
    chain = ledger.read()
    there = read_records(root, campaign, chain)
    records = there.by_digest
    accepted = records.get(acceptance)
    if not isinstance(accepted, Acceptance):
        known = [digest for digest, record in records.items() if isinstance(record, Acceptance)]
        raise SpecError("acceptance", acceptance, f"one of: {', '.join(known) or 'none is there'}")
    authorization = Authorization(
        schema=SCHEMA,
        campaign=campaign,
        edition=accepted.edition,
        acceptance=acceptance,
        allows=said.reason,
        author=said.author,
        at=said.at,
        expires_at=str(expires_at),
    )
    if reason := not_carried(authorization, accepted, chain.entries, there.waivers):
        wanted = "an acceptance whose arms all passed or are waived, for as long as something is allowed"
        raise SpecError("authorization", reason, wanted)
    return write_record(ledger, authorization)
