"""What a campaign's edition comes to: its closed set of arms, each with all of its attempts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from inferswarm.campaigns.acceptance import CARRYING, LAW, SaidRecords, record_name
from inferswarm.campaigns.bundle import Run
from inferswarm.campaigns.findings import broken, legible
from inferswarm.campaigns.laws import Finding
from inferswarm.campaigns.laws_of_roots import current_spec
from inferswarm.campaigns.layout import RECORDS
from inferswarm.campaigns.ledger import Chain
from inferswarm.campaigns.records import Acceptance, Authorization, LedgerEntry, Waiver
from inferswarm.campaigns.spec import CampaignSpec
from inferswarm.campaigns.standing import standing_of
from inferswarm.campaigns.verdicts import ArmVerdict, CampaignVerdict, RunVerdict, campaign_state


def judge_campaign(
    campaign: str,
    runs: Sequence[Run],
    verdicts: Sequence[RunVerdict],
    chain: Chain,
    said: SaidRecords,
    project: Path | None,
    is_sound: bool,
    at: int,
) -> CampaignVerdict:
    """Return what the newest edition of a campaign comes to at a time of day in nanoseconds.

    Newest is that of the project, where it has the campaign, else that of the runs; earlier ones never count. Where
    no campaign can be read, there are no arms, and nothing passes.
    """
    specs = _editions(campaign, runs, project)
    editions = {entry.edition for entry in chain.entries if entry.campaign == campaign} | set(specs)
    edition = max(editions, default=0)
    spec: CampaignSpec | None = specs.get(edition)
    entries = _as_judged(chain.entries, verdicts)
    arms = []
    for arm in () if spec is None else spec.arms:
        standing = standing_of(arm.name, campaign, edition, entries, said.waivers, at)
        arms.append(
            ArmVerdict(
                arm=arm.name,
                state=standing.state,
                without_waiver=standing.without_waiver,
                attempts=standing.attempts,
                carriers=standing.carriers,
            )
        )
    carries = is_sound and bool(arms) and all(arm.state in CARRYING for arm in arms)
    records = [(digest, item) for digest, item in said.by_digest.items() if item.edition == edition]
    return CampaignVerdict(
        campaign=legible(campaign),
        edition=edition,
        title="" if spec is None else spec.title,
        claim="" if spec is None else spec.claim,
        state=campaign_state(tuple(arms), is_sound),
        arms=tuple(arms),
        earlier_editions=tuple(sorted(editions - {edition})),
        accepted=tuple(digest for digest, item in records if isinstance(item, Acceptance)),
        authorizations=tuple(
            item.allows
            for _, item in records
            if isinstance(item, Authorization) and int(item.at) <= at < int(item.expires_at) and carries
        ),
    )


def check_arms(campaign: str, runs: Sequence[Run], said: SaidRecords, project: Path | None) -> Iterator[Finding]:
    """An acceptance says what became of every arm of its edition and of no other; a waiver is of one of them."""
    specs = _editions(campaign, runs, project)
    for digest, item in said.by_digest.items():
        path = f"{campaign}/{RECORDS}/{record_name(digest)}"
        spec = specs.get(item.edition)
        arms = None if spec is None else [arm.name for arm in spec.arms]
        if isinstance(item, Acceptance):
            accepted = [disposition.arm for disposition in item.dispositions]
            if accepted != arms:
                wanted = f"the arms of edition {item.edition}: {', '.join(arms or ['no campaign of it is here'])}"
                yield broken(LAW, path, wanted, ", ".join(accepted) or "none")
        elif isinstance(item, Waiver) and arms is not None and item.arm not in arms:
            yield broken(LAW, path, f"an arm of edition {item.edition}: {', '.join(arms)}", item.arm)


def _editions(campaign: str, runs: Sequence[Run], project: Path | None) -> dict[int, CampaignSpec]:
    """Return every edition of a campaign that is known: by its runs, or the project's own."""
    specs = {run.spec.edition: run.spec for run in runs if run.spec is not None and _is_of(run, campaign)}
    current = None if project is None else current_spec(project, campaign)
    if current is not None:
        specs.setdefault(current.edition, current)
    return specs


def _is_of(run: Run, campaign: str) -> bool:
    """Return whether a run's copy of its campaign is the one that its request names."""
    assert run.spec is not None
    return run.request is not None and (
        (run.spec.campaign, run.spec.edition) == (campaign, run.request.edition) == (campaign, run.spec.edition)
    )


def _as_judged(entries: Sequence[LedgerEntry], verdicts: Sequence[RunVerdict]) -> list[LedgerEntry]:
    """Return the ledger's lines with what the runs came to on being judged again, in place of what was recorded.

    A run that nobody concluded is no PASS; where its files show a FAIL it is one, as if its last line were there.
    """
    judged = {verdict.run_id: verdict.disposition for verdict in verdicts}
    finished = {entry.run_id for entry in entries if entry.kind == "finished"}
    lines = []
    for entry in entries:
        is_open = entry.kind == "requested" and entry.run_id not in finished
        if entry.kind == "finished":
            now = judged.get(entry.run_id, "INCOMPLETE")
            # A recorded FAIL stays one: else losing a run that failed would leave the arm to those that passed.
            lines.append(msgspec.structs.replace(entry, disposition="FAIL" if entry.disposition == "FAIL" else now))
        else:
            lines.append(entry)
        if is_open and judged.get(entry.run_id) == "FAIL":
            lines.append(msgspec.structs.replace(entry, kind="finished", disposition="FAIL"))
    return lines
