"""Verifying evidence: one run, one campaign, or a whole root. Needs the base install only.

Everything is computed again from what lies there. Missing, unreadable and unknown are never proof; a verdict names
every law that was looked at, what it needed and what was there, and who looked.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from inferswarm.campaigns.acceptance import read_records
from inferswarm.campaigns.bundle import Run, read_run
from inferswarm.campaigns.campaign_verdicts import check_arms, judge_campaign
from inferswarm.campaigns.case import make_case
from inferswarm.campaigns.committed_ledgers import check_kept_lines
from inferswarm.campaigns.findings import in_order, legible
from inferswarm.campaigns.git_objects import GitObjects
from inferswarm.campaigns.judging_runs import judge_run
from inferswarm.campaigns.laws import Finding, State
from inferswarm.campaigns.laws_of_files import chain_finding
from inferswarm.campaigns.laws_of_roots import check_drift, check_editions, check_places, check_requests
from inferswarm.campaigns.layout import EXPERIMENTS, LEDGER, RECORDS, REQUEST, RUN_ID, ledger_path
from inferswarm.campaigns.ledger import Break, Chain, ledger_bytes, read_chain
from inferswarm.campaigns.ledger_lock import LockHeldError
from inferswarm.campaigns.provenance import Provenance
from inferswarm.campaigns.signatures import SignatureChecker
from inferswarm.campaigns.verdicts import RootVerdict, RunVerdict, this_verifier
from inferswarm.errors import EvidenceError, SpecError

CHAIN: Final = "ledger-chain"
NOT_ASKED = Provenance(None, "no repository was asked")


class Scope(NamedTuple):
    """What a path means: its evidence root, and what of it is asked for (empty: everything)."""

    root: Path
    campaign: str = ""
    run_id: str = ""


def scope_of(path: Path) -> Scope:
    """Return what a path means: a root, a campaign of one, or a run. What lies there decides, not the ledger alone.

    Raises SpecError for a path that is neither.
    """
    path = path.resolve()
    if ledger_path(path).exists():
        return Scope(path)
    if (path / REQUEST).exists() or (RUN_ID.fullmatch(path.name) and path.is_dir()):
        return Scope(path.parent.parent, path.parent.name, path.name)
    if path.is_dir() and (ledger_path(path.parent).exists() or _holds_runs(path)):
        return Scope(path.parent, path.name)
    if path.is_dir() and any(_holds_runs(folder) for folder in path.iterdir()):
        return Scope(path)
    raise SpecError("evidence", str(path), f"an evidence root (with {LEDGER}), a campaign or a run of one")


def _holds_runs(folder: Path) -> bool:
    return folder.is_dir() and any(
        item.name == RECORDS or RUN_ID.fullmatch(item.name) is not None for item in folder.iterdir()
    )


def verify_run(directory: Path) -> RunVerdict:
    """Return what one run comes to by its own records and the ledger, without a repository or keys.

    Raises SpecError when the directory cannot be read.
    """
    run = read_run(directory)
    root = run.bundle.directory.parent.parent
    chain = ledger_of(root).chain
    waivers = read_records(root, run.bundle.campaign, chain).waivers
    return judge_run(make_case(run, chain, waivers), NOT_ASKED, SignatureChecker())


class ReadLedger(NamedTuple):
    """A ledger's bytes, and the chain that they hold: one reading, while others may write."""

    data: bytes
    chain: Chain


def ledger_of(root: Path) -> ReadLedger:
    """Return what the ledger of a root holds; one that cannot be read has no bytes, and is broken in its first line.

    Raises LockHeldError when a writer holds it and does not go on.
    """
    try:
        data = ledger_bytes(root)
    except LockHeldError:
        raise
    except EvidenceError as error:
        return ReadLedger(b"", Chain((), (), Break(1, "a ledger", str(error))))
    return ReadLedger(data, read_chain(data, LEDGER))


def verify_root(
    path: Path, project: Path | None, *, public_keys: Sequence[bytes] = (), now: int | None = None
) -> RootVerdict:
    """Return what everything at a path comes to: a root, one campaign or one run of it.

    `project` is where the campaigns and the repository are; without one (None, or a folder without campaigns)
    provenance is unproven and drift is not looked for. `now` (nanoseconds since 1970) is when waivers and
    authorizations must be in force. Raises SpecError for a path that is no evidence, and for unusable keys;
    EvidenceError for a folder that cannot be listed.
    """
    signatures = SignatureChecker(public_keys)
    try:
        return _verify_path(path, project, signatures, now)
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read: {error}") from error


def _verify_path(path: Path, project: Path | None, signatures: SignatureChecker, now: int | None) -> RootVerdict:
    scope = scope_of(path)
    if project is None or not (project / EXPERIMENTS).is_dir():
        reason = "no project was given" if project is None else f"{project} has no {EXPERIMENTS}/"
        return _verify(scope, None, Provenance(None, reason), None, signatures, now)
    try:
        objects = GitObjects(project)
    except EvidenceError as error:
        return _verify(scope, project, Provenance(None, str(error)), None, signatures, now)
    with objects:
        return _verify(scope, project, Provenance(objects, ""), objects, signatures, now)


def project_of(path: Path) -> Path | None:
    """Return the nearest folder above a path that has campaigns, or None: the project that its evidence may be of."""
    return next((folder for folder in path.resolve().parents if (folder / EXPERIMENTS).is_dir()), None)


def _verify(
    scope: Scope,
    project: Path | None,
    provenance: Provenance,
    objects: GitObjects | None,
    signatures: SignatureChecker,
    now: int | None,
) -> RootVerdict:
    data, chain = ledger_of(scope.root)
    findings = [chain_finding(chain, legible(scope.root.name)), *check_places(scope.root, scope.campaign)]
    if objects is not None:
        findings.extend(check_kept_lines(scope.root, data, objects))
    of_root = tuple(findings)
    campaigns, verdicts = [], []
    for campaign in _campaigns(scope, chain):
        said = read_records(scope.root, campaign, chain)
        runs = _runs(scope, campaign)
        of_campaign = [judge_run(make_case(run, chain, said.waivers), provenance, signatures) for run in runs]
        of_all = [*said.findings]
        if not scope.run_id:
            of_all += [*check_requests(campaign, chain, runs), *check_editions(runs)]
            of_all += check_arms(campaign, runs, said, project)
        if project is not None:
            of_all += check_drift(project, campaign, runs)
        findings.extend(of_all)
        verdicts.extend(of_campaign)
        if not scope.run_id:
            is_sound = _is_sound((*of_root, *of_all), of_campaign)
            at = time.time_ns() if now is None else now
            campaigns.append(judge_campaign(campaign, runs, of_campaign, chain, said, project, is_sound, at))
    return RootVerdict(
        verifier=this_verifier(),
        root=legible(scope.root.name),
        head=chain.head,
        is_sound=_is_sound(findings, verdicts),
        is_provenance_proven=not any(item.law == CHAIN and item.state is State.UNPROVEN for item in findings)
        and all(verdict.provenance is State.PROVEN for verdict in verdicts if verdict.disposition == "PASS"),
        campaigns=tuple(campaigns),
        runs=tuple(verdicts),
        findings=in_order(findings),
    )


def _is_sound(findings: Iterable[Finding], verdicts: Iterable[RunVerdict]) -> bool:
    return all(finding.state is not State.BROKEN for finding in findings) and all(run.is_sound for run in verdicts)


def _campaigns(scope: Scope, chain: Chain) -> list[str]:
    if scope.campaign:
        return [scope.campaign]
    folders = {path.name for path in scope.root.iterdir() if path.is_dir() and not path.is_symlink()}
    return sorted(folders | {entry.campaign for entry in chain.entries})


def _runs(scope: Scope, campaign: str) -> list[Run]:
    folder = scope.root / campaign
    if not folder.is_dir():
        return []
    names = [scope.run_id] if scope.run_id else sorted(path.name for path in folder.iterdir() if path.is_dir())
    return [read_run(folder / name) for name in names if RUN_ID.fullmatch(name)]
