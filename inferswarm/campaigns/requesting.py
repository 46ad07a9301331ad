"""The first half of a run's records: what was asked for, on the disk and in the ledger before anything starts."""

from __future__ import annotations

import secrets
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from inferswarm import __version__
from inferswarm.artifacts.assembly import sync_directory
from inferswarm.campaigns.acceptance import read_records
from inferswarm.campaigns.arm_files import write_whole
from inferswarm.campaigns.layout import (
    CAMPAIGN,
    EXPECTATIONS,
    NOTEBOOK,
    PACKAGE,
    REQUEST,
    run_directory,
)
from inferswarm.campaigns.package_tree import package_tree
from inferswarm.campaigns.preflight import Prepared, PreparedArm
from inferswarm.campaigns.records import SCHEMA, Request
from inferswarm.campaigns.repository import read_repository
from inferswarm.campaigns.standing import footing_of
from inferswarm.documents import digest_bytes, write_document
from inferswarm.errors import EvidenceError, SpecError

NONCE_BYTES = 16
"""128 random bits: two runs never share them."""
_NANOSECONDS = 1_000_000_000


class Requested(NamedTuple):
    """A run that is requested, and what is lacking of the arms before it."""

    directory: Path
    request: Request
    digest: str
    lacking: tuple[str, ...]


def request_run(prepared: Prepared, arm: PreparedArm, requested_at: int) -> Requested:
    """Write a run's request, with copies of all that it names, and its line in the ledger; all on the disk.

    `requested_at` is the time of day in nanoseconds. Raises SpecError when anything of it cannot be written, and
    EvidenceError when the ledger is broken; then there is no run.
    """
    ledger, spec = prepared.ledger, prepared.spec
    chain = ledger.read()
    waivers = read_records(ledger.root, spec.campaign, chain).waivers
    footing = footing_of(arm.spec, spec, chain.entries, waivers, requested_at)
    which = (spec.campaign, spec.edition, arm.spec.name)
    earlier = [
        entry
        for entry in chain.entries
        if entry.kind == "requested" and (entry.campaign, entry.edition, entry.arm) == which
    ]
    nonce = secrets.token_hex(NONCE_BYTES)
    time = datetime.fromtimestamp(requested_at // _NANOSECONDS, UTC).strftime("%Y%m%dT%H%M%SZ")
    package = package_tree()
    repository = read_repository(prepared.project)
    request = Request(
        schema=SCHEMA,
        campaign=spec.campaign,
        edition=spec.edition,
        arm=arm.spec.name,
        run_id=f"{arm.spec.name}-{time}-{nonce[:8]}",
        nonce=nonce,
        parameters=arm.spec.parameters,
        deadline_seconds=arm.spec.deadline_seconds,
        requested_at=str(requested_at),
        attempt=len(earlier) + 1,
        campaign_digest=digest_bytes(prepared.campaign),
        expectations_digest=digest_bytes(prepared.expectations),
        notebook_digest=digest_bytes(arm.notebook),
        package_digest=package.digest,
        package_version=__version__,
        commit=repository.commit,
        dirty=repository.dirty,
        predecessors=tuple(carriers[-1] for carriers in footing.carriers),
    )
    directory = run_directory(ledger.root, spec.campaign, request.run_id)
    data = write_document(request).encode()
    files = {
        CAMPAIGN: prepared.campaign,
        EXPECTATIONS: prepared.expectations,
        NOTEBOOK: arm.notebook,
        PACKAGE: write_document(package).encode(),
        REQUEST: data,
    }
    _write_directory(directory, files)
    try:
        ledger.append(
            "requested",
            campaign=spec.campaign,
            edition=spec.edition,
            arm=arm.spec.name,
            run_id=request.run_id,
            subject=digest_bytes(data),
            at=requested_at,
        )
    except (SpecError, EvidenceError):
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return Requested(directory, request, digest_bytes(data), footing.lacking)


def _write_directory(directory: Path, files: dict[str, bytes]) -> None:
    """Make a run's directory, which must not be there, and write files into it. Raises SpecError; then it is not."""
    try:
        directory.parent.mkdir(exist_ok=True)
        directory.mkdir()
    except OSError as error:
        raise SpecError("run directory", str(directory), f"a new one ({error.strerror})") from error
    try:
        for name, data in files.items():
            write_whole(directory / name, data)
        sync_directory(directory.parent)
        sync_directory(directory.parent.parent)
    except OSError as error:
        shutil.rmtree(directory, ignore_errors=True)
        raise SpecError("run directory", str(directory), f"room and leave to write ({error.strerror})") from error
