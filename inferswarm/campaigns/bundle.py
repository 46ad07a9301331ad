"""A run as it lies on the disk: all its bytes, read once, and the records that they form.

Nothing here raises for what a directory holds. What is not there is None; what is there and is not what it must be is
a fault with its reason. Everything that judges a run reads it from here, so that all look at the same bytes.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

import polars as pl

from inferswarm.campaigns import layout
from inferswarm.campaigns.environment import Environment
from inferswarm.campaigns.expectations import Expectations, parse_expectations
from inferswarm.campaigns.package_tree import PackageTree
from inferswarm.campaigns.plain_files import read_plain
from inferswarm.campaigns.records import Manifest, Outcome, Request, Seal
from inferswarm.campaigns.results import Result
from inferswarm.campaigns.samples import Output, read_outputs, read_samples
from inferswarm.campaigns.spec import ArmSpec, CampaignSpec, parse_campaign
from inferswarm.documents import DocumentType, digest_bytes, read_document
from inferswarm.errors import DocumentError, SpecError

Read = TypeVar("Read")


class Bundle(NamedTuple):
    """The plain files of a run's directory with their bytes, and the names of what else is in it."""

    directory: Path
    files: Mapping[str, bytes]
    partials: tuple[str, ...]
    """Names of files that were not whole yet when their writer was killed. They say nothing, and are not read."""
    odd: tuple[str, ...]
    """Links, folders, sockets and files that cannot be read, each with what it is."""

    @property
    def campaign(self) -> str:
        """Return the campaign that the directory's place says."""
        return self.directory.parent.name

    @property
    def run_id(self) -> str:
        """Return the run that the directory's name says."""
        return self.directory.name

    def digest(self, name: str) -> str | None:
        """Return the digest of a file's exact bytes, or None where it is not there."""
        return digest_bytes(self.files[name]) if name in self.files else None


def read_bundle(directory: Path) -> Bundle:
    """Read a run's directory. Raises SpecError when it is not a directory that can be listed."""
    files: dict[str, bytes] = {}
    odd: list[str] = []
    partials: list[str] = []
    directory = directory.resolve()
    try:
        paths = sorted(directory.iterdir())
    except OSError as error:
        raise SpecError("run", str(directory), f"a directory that can be read ({error.strerror})") from error
    for path in paths:
        try:
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode) and layout.PARTIAL.fullmatch(path.name):
                partials.append(path.name)
            elif stat.S_ISREG(mode):
                files[path.name] = read_plain(path)
            else:
                odd.append(f"{path.name} ({_kind(mode)})")
        except OSError as error:
            odd.append(f"{path.name} ({error.strerror})")
    return Bundle(directory, files, tuple(partials), tuple(odd))


def _kind(mode: int) -> str:
    return "link" if stat.S_ISLNK(mode) else "folder" if stat.S_ISDIR(mode) else "no plain file"


class Run(NamedTuple):
    """The records of a run, as far as they can be read."""

    bundle: Bundle
    request: Request | None
    spec: CampaignSpec | None
    expectations: Expectations | None
    package: PackageTree | None
    outcome: Outcome | None
    seal: Seal | None
    parent_environment: Environment | None
    environment: Environment | None
    samples: pl.DataFrame | None
    outputs: tuple[Output, ...] | None
    result: Result | None
    manifest: Manifest | None
    faults: Mapping[str, str]
    """Of files that are there and cannot be read as what they must be: the reason."""

    @property
    def arm(self) -> ArmSpec | None:
        """Return what the run's own copy of the campaign says of its arm, or None where either is not known."""
        if self.spec is None or self.request is None:
            return None
        return next((arm for arm in self.spec.arms if arm.name == self.request.arm), None)

    @property
    def came_to_its_end(self) -> bool:
        """Return whether both witnesses say so: the process ended by itself with 0, and the seal is there."""
        outcome = self.outcome
        ended = outcome is not None and outcome.end == "exited" and outcome.exit_status == 0
        return ended and self.seal is not None


def read_run(directory: Path) -> Run:
    """Read a run. Raises SpecError when its directory cannot be listed; whatever is in it is a record or a fault."""
    bundle = read_bundle(directory)
    faults: dict[str, str] = {}

    def parsed(name: str, parse: Callable[[bytes], Read]) -> Read | None:
        if name not in bundle.files:
            return None
        try:
            return parse(bundle.files[name])
        except DocumentError as error:
            faults[name] = error.reason if error.source == name else str(error)
            return None

    def record(kind: type[DocumentType], name: str) -> DocumentType | None:
        return parsed(name, lambda data: read_document(kind, data, name))

    return Run(
        bundle=bundle,
        request=record(Request, layout.REQUEST),
        spec=parsed(layout.CAMPAIGN, lambda data: parse_campaign(data, layout.CAMPAIGN)),
        expectations=parsed(layout.EXPECTATIONS, lambda data: parse_expectations(data, layout.EXPECTATIONS)),
        package=record(PackageTree, layout.PACKAGE),
        outcome=record(Outcome, layout.OUTCOME),
        seal=record(Seal, layout.SEAL),
        parent_environment=record(Environment, layout.PARENT_ENVIRONMENT),
        environment=record(Environment, layout.ENVIRONMENT),
        samples=parsed(layout.SAMPLES, read_samples),
        outputs=parsed(layout.OUTPUTS, read_outputs),
        result=record(Result, layout.RESULT),
        manifest=record(Manifest, layout.MANIFEST),
        faults=faults,
    )
