"""What a campaign is: a closed set of arms, read from `campaign.toml`.

The file's exact bytes are what a request names, by their digest. Unknown keys, arms that wait for arms that are not
before them, and parameters that papermill would not pass as they are (anything but text, numbers and truths) are
refused with their place.
"""

from __future__ import annotations

import keyword
import tomllib
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import msgspec

from inferswarm.campaigns.layout import RESERVED_FILES
from inferswarm.campaigns.plain_files import read_plain
from inferswarm.campaigns.records import Parameter
from inferswarm.documents import Document, DocumentType, canonical_bytes
from inferswarm.errors import DocumentError, SpecError

Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,59}\Z")]
"""Of a campaign, an arm, a series: lowercase letters, digits and `-`, at most 60."""
FileName = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9_.-]{0,79}\.(json|jsonl|parquet|txt)\Z")]
"""Of a document that an arm writes: no folders."""
Text = Annotated[str, msgspec.Meta(pattern=r"\S")]
"""Not empty, and not blank."""
Edition = Annotated[int, msgspec.Meta(ge=1, le=9999)]
Extra = Literal["fabric", "run", "lab", "ray", "transformers", "viz"]
"""An optional part of the package, as `pyproject.toml` names it."""

RUN_PARAMETER = "run"
"""The first parameter of every arm's notebook: the run's directory. No campaign sets it."""


class Requirements(Document, frozen=True, kw_only=True):
    """What an arm needs of the machine. Where it is not there, nothing is started and the run is INCOMPLETE."""

    cpus: Annotated[int, msgspec.Meta(ge=1)] = 1
    memory_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """What must be available when the arm starts."""
    extras: tuple[Extra, ...] = ()
    files: tuple[Name, ...] = ()
    """Names of models that must be installed."""


class ArmSpec(Document, frozen=True, kw_only=True):
    """One arm: a notebook with parameters, and what must be true before and after it runs."""

    name: Name
    notebook: Text
    """Path below the project, with `/`."""
    deadline_seconds: Annotated[float, msgspec.Meta(gt=0)]
    after: tuple[Name, ...] = ()
    """Arms that must have passed (or been waived) in the same root and edition; they stand before this one."""
    produces: tuple[FileName, ...] = ()
    """Documents that it writes beside the samples, outputs and result; all of them, and no others."""
    requires: Requirements = Requirements()
    realizes: tuple[FileName, ...] = ()
    """Those of `produces` that are execution plans: their digests are what the stages must have reported. (A
    `resource_graph.json` and a `decision.json` that it produces are read too, and must agree with them.)"""
    parameters: tuple[Parameter, ...] = ()
    """In the order of the file; the type of the literal is the type of the parameter."""

    def parameter(self, name: str) -> Parameter | None:
        """Return the parameter of that name, or None."""
        return next((item for item in self.parameters if item.name == name), None)


class CampaignSpec(Document, frozen=True, kw_only=True):
    """One edition of a campaign."""

    campaign: Name
    edition: Edition
    edition_reason: Text
    """Why there is this edition: what was mended since the one before."""
    title: Text
    claim: Text
    arms: tuple[ArmSpec, ...]

    def arm(self, name: str) -> ArmSpec:
        """Return an arm. Raises SpecError for a name that is not one, naming those that are."""
        for arm in self.arms:
            if arm.name == name:
                return arm
        names = ", ".join(arm.name for arm in self.arms)
        raise SpecError(f"arm of campaign {self.campaign!r}", name, f"one of: {names}")


def read_campaign(path: Path) -> CampaignSpec:
    """Read a `campaign.toml`.

    Raises SpecError for a file that cannot be read; DocumentError for what `parse_campaign` refuses.
    """
    return parse_campaign(read_bytes(path, "campaign"), str(path))


def parse_campaign(data: bytes, source: str) -> CampaignSpec:
    """Return the campaign that the bytes of a `campaign.toml` say.

    Raises DocumentError naming `source` for what is not TOML, keys that are unknown, missing or of the wrong type,
    and arms that contradict each other.
    """
    fields = parse_toml(data, source)
    arms = fields.get("arms")
    for index, arm in enumerate(arms if isinstance(arms, list) else ()):
        if isinstance(arm, dict) and "parameters" in arm:
            arm["parameters"] = _parameters(arm["parameters"], f"{source}: $.arms[{index}].parameters")
    spec = convert_document(fields, CampaignSpec, source)
    canonical_bytes(spec)  # refuses integers that JSON cannot carry
    if problem := _contradiction(spec):
        raise DocumentError(source, problem)
    return spec


def parse_toml(data: bytes, source: str) -> dict[str, Any]:
    """Parse TOML in UTF-8. Raises DocumentError naming `source` for anything else."""
    try:
        return tomllib.loads(data.decode("utf-8"))
    # ValueError: what is not TOML, bytes that are not text, and integers of thousands of digits.
    except (ValueError, RecursionError) as error:
        raise DocumentError(source, f"is not TOML: {error}") from error


def convert_document(fields: Any, kind: type[DocumentType], source: str) -> DocumentType:
    """Make a document of plain data, strictly. Raises DocumentError naming `source` and the place of the fault."""
    try:
        return msgspec.convert(fields, kind, strict=True)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        name = getattr(kind, "__name__", str(kind))
        raise DocumentError(source, f"is not a {name}: {error}") from error


def read_bytes(path: Path, what: str) -> bytes:
    """Return a file's bytes. Raises SpecError, with `what` as the field, for one that cannot be read or is none."""
    try:
        return read_plain(path, follow=True)
    except OSError as error:
        raise SpecError(what, str(path), f"a file that can be read ({error.strerror})") from error


def same_parameters(first: tuple[Parameter, ...], second: tuple[Parameter, ...]) -> bool:
    """Return whether two lists hold the same names, types and values in the same order.

    JSON has one kind of number: 1.0 comes back as 1, and is the same. A truth is never a number.
    """
    return [(item.name, _kind(item.value), item.value) for item in first] == [
        (item.name, _kind(item.value), item.value) for item in second
    ]


def _kind(value: object) -> str:
    return "number" if type(value) in (int, float) else type(value).__name__


def _parameters(fields: Any, source: str) -> list[dict[str, Any]]:
    """Turn the table of an arm's parameters into a list, which a document can hold."""
    if not isinstance(fields, dict):
        raise DocumentError(source, "is not a table")
    for name, value in fields.items():
        if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_") or name == RUN_PARAMETER:
            raise DocumentError(source, f"{name!r} cannot be the name of a parameter")
        if type(value) not in (str, int, float, bool):
            kind = type(value).__name__
            raise DocumentError(source, f"{name} is of type {kind}; needed a text, an integer, a float or a truth")
    return [{"name": name, "value": value} for name, value in fields.items()]


def _contradiction(spec: CampaignSpec) -> str | None:
    """Return what is wrong with a campaign whose fields are all of the right form, or None."""
    if not spec.arms:
        return "has no arms"
    before: set[str] = set()
    for arm in spec.arms:
        if arm.name in before:
            return f"has the arm {arm.name!r} twice"
        if problem := _arm_contradiction(arm, before):
            return f"arm {arm.name!r}: {problem}"
        before.add(arm.name)
    return None


def _arm_contradiction(arm: ArmSpec, before: set[str]) -> str | None:
    if missing := [name for name in arm.after if name not in before]:
        return f"comes after {', '.join(missing)}, which must stand before it in the file"
    path = PurePosixPath(arm.notebook)
    if path.is_absolute() or ".." in path.parts or path.suffix != ".ipynb" or path.as_posix() != arm.notebook:
        return f"the notebook {arm.notebook!r} is not a plain path of an .ipynb below the project"
    if reserved := sorted(RESERVED_FILES.intersection(arm.produces)):
        return f"produces {', '.join(reserved)}, which every run has"
    for field, names in (("after", arm.after), ("produces", arm.produces), ("realizes", arm.realizes)):
        if len(set(names)) < len(names):
            return f"names one thing in {field!r} twice"
    if other := sorted(set(arm.realizes) - set(arm.produces)):
        return f"realizes {', '.join(other)}, which it does not produce"
    return None
