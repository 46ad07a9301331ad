"""The first half of a run's records: what was asked for, on the disk and in the ledger before anything starts."""

from __future__ import annotations

import os
import secrets
import shutil
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
    PARTIAL,
    REQUEST,
    partial_name,
    run_directory,
    run_id_of,
)
from inferswarm.campaigns.ledger import Chain, num_requests
from inferswarm.campaigns.package_tree import PackageTree, package_tree
from inferswarm.campaigns.preflight import Prepared, PreparedArm
from inferswarm.campaigns.records import SCHEMA, Request
from inferswarm.campaigns.repository import Repository, read_repository
from inferswarm.campaigns.standing import Footing, footing_of
from inferswarm.documents import digest_bytes, write_document
from inferswarm.errors import EvidenceError, SpecError

NONCE_BYTES = 16
"""128 random bits: two runs never share them."""


class Requested(NamedTuple):
    """A run that is requested, and what is lacking of the arms before it."""

    directory: Path
    request: Request
    digest: str
    lacking: tuple[str, ...]


def request_run(prepared: Prepared, arm: PreparedArm, requested_at: int) -> Requested:
    """Write a run's request, with copies of all that it names, and its line in the ledger; all on the disk.

    `requested_at` is the time of day in nanoseconds. The ledger is held meanwhile, so that a request counts every
    attempt before it. Raises SpecError when anything of it cannot be written, and EvidenceError when the ledger is
    broken; then there is no run.
    """
    package, repository = package_tree(), read_repository(prepared.project)
    frozen = {
        CAMPAIGN: prepared.campaign,
        EXPECTATIONS: prepared.expectations,
        NOTEBOOK: arm.notebook,
        PACKAGE: write_document(package).encode(),
    }
    with prepared.ledger.held() as chain:
        waivers = read_records(prepared.ledger.root, prepared.spec.campaign, chain).waivers
        footing = footing_of(arm.spec, prepared.spec, chain.entries, waivers, requested_at)
        request = _request(prepared, arm, chain, footing, package, repository, requested_at)
        data = write_document(request).encode()
        directory = run_directory(prepared.ledger.root, request.campaign, request.run_id)
        _write_directory(directory, {**frozen, REQUEST: data})
        try:
            prepared.ledger.append(
                "requested",
                campaign=request.campaign,
                edition=request.edition,
                arm=request.arm,
                run_id=request.run_id,
                subject=digest_bytes(data),
                at=requested_at,
            )
        except (SpecError, EvidenceError):
            shutil.rmtree(directory, ignore_errors=True)
            raise
    return Requested(directory, request, digest_bytes(data), footing.lacking)


def _request(
    prepared: Prepared,
    arm: PreparedArm,
    chain: Chain,
    footing: Footing,
    package: PackageTree,
    repository: Repository,
    requested_at: int,
) -> Request:
    spec = prepared.spec
    nonce = secrets.token_hex(NONCE_BYTES)
    return Request(
        schema=SCHEMA,
        campaign=spec.campaign,
        edition=spec.edition,
        arm=arm.spec.name,
        run_id=run_id_of(arm.spec.name, requested_at, nonce),
        nonce=nonce,
        parameters=arm.spec.parameters,
        deadline_seconds=arm.spec.deadline_seconds,
        requested_at=str(requested_at),
        attempt=num_requests(chain.entries, spec.campaign, spec.edition, arm.spec.name) + 1,
        campaign_digest=digest_bytes(prepared.campaign),
        expectations_digest=digest_bytes(prepared.expectations),
        notebook_digest=digest_bytes(arm.notebook),
        package_digest=package.digest,
        package_version=__version__,
        commit=repository.commit,
        dirty=repository.dirty,
        predecessors=footing.named,
    )


def _write_directory(directory: Path, files: dict[str, bytes]) -> None:
    """Make a run's directory with its files: whole, or not under its name. Raises SpecError; then it is not there.

    Whoever writes here holds the ledger. What others left half when they were killed was never requested, and goes.
    """
    made = directory.with_name(partial_name(directory.name))
    try:
        directory.parent.mkdir(exist_ok=True)
        for left in directory.parent.iterdir():
            if PARTIAL.fullmatch(left.name) and left.is_dir() and not left.is_symlink():
                shutil.rmtree(left)
        made.mkdir()
    except OSError as error:
        raise SpecError("run directory", str(directory), f"a new one ({error.strerror})") from error
    try:
        for name, data in files.items():
            write_whole(made / name, data)
        os.rename(made, directory)
        sync_directory(directory.parent)
        sync_directory(directory.parent.parent)
    except OSError as error:
        shutil.rmtree(made, ignore_errors=True)
        shutil.rmtree(directory, ignore_errors=True)
        raise SpecError("run directory", str(directory), f"room and leave to write ({error.strerror})") from error
