"""The second half of a run's records: what the parent saw, the manifest, and what a verifier makes of it all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from inferswarm.campaigns.acceptance import read_records
from inferswarm.campaigns.arm_files import write_whole
from inferswarm.campaigns.bundle import read_run
from inferswarm.campaigns.case import make_case
from inferswarm.campaigns.environment import Environment
from inferswarm.campaigns.judging_runs import judge_run
from inferswarm.campaigns.laws import Finding, State
from inferswarm.campaigns.layout import EXECUTED, MANIFEST, OUTCOME, PARENT_ENVIRONMENT, PARTIAL, STATEMENT
from inferswarm.campaigns.manifests import write_manifest
from inferswarm.campaigns.preflight import Prepared
from inferswarm.campaigns.provenance import Provenance
from inferswarm.campaigns.records import SCHEMA, Disposition, Outcome
from inferswarm.campaigns.requesting import Requested
from inferswarm.campaigns.signatures import SignatureChecker
from inferswarm.campaigns.statements import make_statement
from inferswarm.campaigns.verdicts import DECISIVE_LAWS, RunVerdict, Verifier
from inferswarm.campaigns.watching import Clock, Ended
from inferswarm.documents import digest_bytes, write_document

MOST_REASONS = 5


class Concluded(NamedTuple):
    """What a run came to, with every finding."""

    disposition: Disposition
    findings: tuple[Finding, ...]
    reasons: tuple[str, ...]


def conclude(
    prepared: Prepared, requested: Requested, environment: Environment, ended: Ended, clock: Clock
) -> Concluded:
    """Write what is left of a run's records, have it judged, and enter that in the ledger.

    `environment` is the parent's, from its own memory: the run could write where the file lies.
    """
    directory, request = requested.directory, requested.request
    removed = _remove_odd(directory)
    reasons = [ended.reason, f"removed {', '.join(removed)}: no plain files" if removed else ""]
    ran_in = write_document(environment).encode()
    write_whole(directory / PARENT_ENVIRONMENT, ran_in)
    if ended.executed is not None:
        write_whole(directory / EXECUTED, ended.executed)
    outcome = Outcome(
        schema=SCHEMA,
        run_id=request.run_id,
        nonce=request.nonce,
        request_digest=requested.digest,
        end=ended.end,
        exit_status=ended.exit_status,
        signal=ended.signal,
        started_at=str(ended.started_at),
        ended_at=str(ended.ended_at),
        seconds=ended.seconds,
        kernel_pid=ended.kernel_pid,
        survivors=ended.survivors,
        parent_environment_digest=digest_bytes(ran_in),
        reason="; ".join(filter(None, reasons)),
    )
    write_whole(directory / OUTCOME, write_document(outcome).encode())
    write_manifest(directory, request)
    finishing_at = clock.time_ns()
    ledger = prepared.ledger
    chain = ledger.read()
    waivers = read_records(ledger.root, request.campaign, chain).waivers
    case = make_case(read_run(directory), chain, waivers, finishing_at)
    verdict = judge_run(case, Provenance(None, "not asked before the end"), SignatureChecker())
    verifier = Verifier(version=request.package_version, package_digest=request.package_digest)
    statement = make_statement(case, verdict, verifier)
    write_whole(directory / STATEMENT, write_document(statement).encode())
    ledger.append(
        "finished",
        campaign=request.campaign,
        edition=request.edition,
        arm=request.arm,
        run_id=request.run_id,
        subject=digest_bytes((directory / MANIFEST).read_bytes()),
        disposition=verdict.disposition,
        at=finishing_at,
    )
    return Concluded(verdict.disposition, verdict.findings, tuple(_reasons(verdict, ended)))


def _remove_odd(directory: Path) -> list[str]:
    """Remove what a kernel was writing when it was killed, and all but plain files; return what those were."""
    removed = []
    for path in sorted(directory.iterdir()):
        is_plain = path.is_file() and not path.is_symlink()
        if is_plain and not PARTIAL.fullmatch(path.name):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
        if not is_plain:
            removed.append(path.name)
    return removed


def _reasons(verdict: RunVerdict, ended: Ended) -> Iterator[str]:
    """Yield why a run is no PASS, in few lines: how the process ended, and the first laws that are not proven."""
    if verdict.disposition == "PASS":
        return
    if ended.reason:
        yield ended.reason
    states = (State.BROKEN,) if verdict.disposition == "FAIL" else (State.BROKEN, State.UNPROVEN)
    found = [
        item for state in states for item in verdict.findings if item.state is state and item.law in DECISIVE_LAWS
    ]
    for item in found[:MOST_REASONS]:
        yield f"{item.law} {item.state}: {item.path}: needed {item.expected}, found {item.found}"
    if len(found) > MOST_REASONS:
        yield f"and {len(found) - MOST_REASONS} more findings: inferswarm verify names them all"
