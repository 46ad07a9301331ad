"""What is refused before anything of a run is written: a campaign, its arms and the place of their evidence.

Everything that papermill would take without a word is refused here: names that the notebook does not have, values of
another type, tags that skip cells, lines that are no Python.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from inferswarm.campaigns.expectations import parse_expectations, refuse_mismatch
from inferswarm.campaigns.laws import State
from inferswarm.campaigns.layout import CAMPAIGN, EXPECTATIONS, campaign_names, experiment_directory
from inferswarm.campaigns.ledger import Ledger
from inferswarm.campaigns.notebooks import parameters_of, scan_source
from inferswarm.campaigns.requirements import missing_modules
from inferswarm.campaigns.spec import ArmSpec, CampaignSpec, parse_campaign, read_bytes
from inferswarm.errors import SpecError

MAX_SOCKET_PATH_BYTES = 80
"""Longest temporary directory: the path of a Unix socket has at most 107 bytes, with ours below it."""


class PreparedArm(NamedTuple):
    """An arm with the bytes of its notebook."""

    spec: ArmSpec
    notebook: bytes


class Prepared(NamedTuple):
    """A campaign that may run: what was read of it, once, and where its evidence goes."""

    project: Path
    ledger: Ledger
    spec: CampaignSpec
    campaign: bytes
    expectations: bytes
    arms: tuple[PreparedArm, ...]


def prepare_campaign(campaign: str, project: Path, evidence: Path, arms: Sequence[str] = ()) -> Prepared:
    """Read a campaign and the arms that are to run (none named: all), in the order of its file.

    Raises SpecError for an unknown campaign or arm, an arm whose notebook or parameters are not fit to run, packages
    that are not installed, and an evidence root that cannot be written; DocumentError for files that cannot be read
    as what they must be; EvidenceError for a ledger that is broken.
    """
    if missing := missing_modules("lab"):
        raise SpecError("packages", f"no {', '.join(missing)}", "the extra 'lab': pip install 'inferswarm[lab]'")
    spec, campaign_bytes, expectations_bytes = _read_campaign(campaign, project)
    chosen = [spec.arm(name) for name in arms] or list(spec.arms)
    prepared = tuple(prepare_arm(arm, project) for arm in spec.arms if arm in chosen)
    _refuse_temporary_directory()
    ledger = Ledger(evidence.resolve())
    _refuse_unwritable(ledger.root)
    ledger.read()
    return Prepared(project, ledger, spec, campaign_bytes, expectations_bytes, prepared)


def _read_campaign(campaign: str, project: Path) -> tuple[CampaignSpec, bytes, bytes]:
    directory = experiment_directory(project, campaign)
    path, expected = directory / CAMPAIGN, directory / EXPECTATIONS
    if not path.is_file():
        there = ", ".join(campaign_names(project)) or "none"
        raise SpecError("campaign", campaign, f"one that {project} has: {there}")
    campaign_bytes, expectations_bytes = read_bytes(path, "campaign"), read_bytes(expected, "expectations")
    spec = parse_campaign(campaign_bytes, str(path))
    if spec.campaign != campaign:
        raise SpecError("campaign", spec.campaign, f"the name of its folder, {campaign!r}")
    refuse_mismatch(spec, parse_expectations(expectations_bytes, str(expected)), str(expected))
    return spec, campaign_bytes, expectations_bytes


def prepare_arm(arm: ArmSpec, project: Path) -> PreparedArm:
    """Read an arm's notebook and hold it against its campaign.

    Raises SpecError when it is not fit to run, or its parameters are not those of the campaign by name and type.
    """
    path = project / arm.notebook
    if not path.resolve().is_relative_to(project.resolve()):
        raise SpecError(f"notebook of arm {arm.name!r}", arm.notebook, f"a file below {project}")
    notebook = read_bytes(path, f"notebook of arm {arm.name!r}")
    if faults := [item for item in scan_source(notebook) if item.state is not State.PROVEN]:
        first = faults[0]
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise SpecError(f"{arm.notebook}: {first.path}", f"{first.found}{more}", first.expected)
    declared = {item.name: type(item.value).__name__ for item in arm.parameters}
    there = {item.name: type(item.value).__name__ for item in parameters_of(notebook)}
    for name in sorted(declared.keys() ^ there.keys()):
        where = "the notebook" if name in declared else "the campaign"
        raise SpecError(f"parameter of arm {arm.name!r}", name, f"one that {where} has too")
    for name, kind in sorted(declared.items()):
        if there[name] != kind:
            raise SpecError(f"parameter {name!r} of arm {arm.name!r}", kind, f"the notebook's type, {there[name]}")
    return PreparedArm(arm, notebook)


def _refuse_unwritable(root: Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        raise SpecError("evidence root", str(root), f"a directory that can be written ({error.strerror})") from error


def _refuse_temporary_directory() -> None:
    directory = tempfile.gettempdir()
    if len(os.fsencode(directory)) > MAX_SOCKET_PATH_BYTES:
        needed = f"one of at most {MAX_SOCKET_PATH_BYTES} bytes, for the kernel's sockets (set TMPDIR)"
        raise SpecError("temporary directory", directory, needed)
