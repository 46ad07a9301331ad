"""Campaigns as lines of text: what they claim, which arms they have, what is expected, and what was attempted.

Dispositions here are those that the ledger records. Nothing is verified.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from inferswarm.campaigns.acceptance import read_records
from inferswarm.campaigns.expectations import Expectations, Judged, read_expectations
from inferswarm.campaigns.layout import CAMPAIGN, EXPECTATIONS, campaign_names, experiment_directory
from inferswarm.campaigns.ledger import Chain, Ledger
from inferswarm.campaigns.spec import ArmSpec, CampaignSpec, read_campaign
from inferswarm.campaigns.standing import GivenWaiver, standing_of


def list_lines(project: Path, evidence: Path, at: int) -> Iterator[str]:
    """Yield two lines for each campaign: its name with what its arms stand at, and what it claims.

    `at` is the time of day in nanoseconds, by which waivers expire. Raises DocumentError for a campaign that cannot
    be read, EvidenceError for a ledger that is broken.
    """
    chain = _chain(evidence)
    for name in campaign_names(project):
        spec = read_campaign(experiment_directory(project, name) / CAMPAIGN)
        waivers = read_records(evidence, name, chain).waivers
        states = [_standing(arm, spec, chain, waivers, at) for arm in spec.arms]
        yield f"{name} (edition {spec.edition}): {spec.title}; {', '.join(states)}"
        yield f"    {spec.claim}"


def show_lines(name: str, project: Path, evidence: Path, at: int) -> Iterator[str]:
    """Yield everything about one campaign. Raises as `list_lines` does, SpecError for a name that is none."""
    directory = experiment_directory(project, name)
    spec = read_campaign(directory / CAMPAIGN)
    expectations = read_expectations(directory / EXPECTATIONS)
    chain = _chain(evidence)
    waivers = read_records(evidence, name, chain).waivers
    yield f"{spec.title} ({spec.campaign}, edition {spec.edition}: {spec.edition_reason})"
    yield spec.claim
    for arm in spec.arms:
        yield ""
        yield _standing(arm, spec, chain, waivers, at)
        yield from _arm_lines(arm)
        yield from _expectation_lines(arm, expectations)
        yield from _attempt_lines(arm, spec, chain)


def _arm_lines(arm: ArmSpec) -> Iterator[str]:
    yield f"    {arm.notebook}, at most {arm.deadline_seconds:g} s"
    if arm.parameters:
        yield f"    parameters: {', '.join(f'{item.name} = {item.value!r}' for item in arm.parameters)}"
    if arm.after:
        yield f"    after: {', '.join(arm.after)}"
    needs = arm.requires
    wanted = [f"{needs.cpus} CPUs", f"{needs.memory_bytes:,} B of memory"]
    wanted += [f"extra {name}" for name in needs.extras] + [f"model {name}" for name in needs.files]
    yield f"    needs: {', '.join(wanted)}"
    if arm.produces:
        yield f"    produces: {', '.join(arm.produces)}"


def _expectation_lines(arm: ArmSpec, expectations: Expectations) -> Iterator[str]:
    own = {*Judged.__struct_fields__}
    for item in expectations.of_arm(arm.name):
        fields = msgspec.to_builtins(item)
        told = [f"{name} {_plain(value)}" for name, value in fields.items() if name not in own and value is not None]
        yield f"    expects ({item.gate}) {item.id}: {item.claim}"
        yield f"        {', '.join(told)}"


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(str(item) for item in value.values() if item is not None)
    return str(value)


def _attempt_lines(arm: ArmSpec, spec: CampaignSpec, chain: Chain) -> Iterator[str]:
    ends = {entry.run_id: entry.disposition for entry in chain.entries if entry.kind == "finished"}
    for entry in chain.entries:
        if entry.kind == "requested" and (entry.campaign, entry.arm) == (spec.campaign, arm.name):
            earlier = "" if entry.edition == spec.edition else f" (edition {entry.edition})"
            yield f"    {entry.run_id}: {ends.get(entry.run_id) or 'INCOMPLETE, never finished'}{earlier}"


def _standing(arm: ArmSpec, spec: CampaignSpec, chain: Chain, waivers: tuple[GivenWaiver, ...], at: int) -> str:
    standing = standing_of(arm.name, spec.campaign, spec.edition, chain.entries, waivers, at)
    return f"{arm.name} {standing.state if standing.attempts else 'never run'} ({standing.attempts} attempts)"


def _chain(evidence: Path) -> Chain:
    """Return the chain of an evidence root; an empty one where there is no root, which is not made."""
    return Ledger(evidence).read() if evidence.is_dir() else Chain((), (), None)
