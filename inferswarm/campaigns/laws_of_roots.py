"""The laws between runs: nothing else in a root, no request without its run, one edition one text, and no drift."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from inferswarm.campaigns import layout
from inferswarm.campaigns.bundle import Run
from inferswarm.campaigns.findings import broken, proven, unproven
from inferswarm.campaigns.laws import Finding
from inferswarm.campaigns.ledger import Chain
from inferswarm.campaigns.plain_files import read_plain
from inferswarm.campaigns.spec import CampaignSpec, parse_campaign
from inferswarm.documents import digest_bytes
from inferswarm.errors import DocumentError

ROOT_FILES: Final = frozenset({layout.LEDGER, layout.LEDGER_LOCK, "README.md"})
"""What a root may hold beside its campaigns."""
RAISE: Final = "raise the edition in campaign.toml and expectations.toml, and say why"


def check_places(root: Path, campaign: str = "") -> Iterator[Finding]:
    """A root holds campaigns and its ledger, a campaign holds runs and records: nothing else, and no links."""
    law = "arms-closed"
    for path in sorted(root.iterdir()):
        if campaign and path.name != campaign:
            continue
        if path.is_symlink() or not (path.is_dir() or (path.name in ROOT_FILES and path.is_file())):
            yield broken(law, path.name, "campaigns and the ledger, no links", "something else")
        elif path.is_dir():
            for item in sorted(path.iterdir()):
                yield from _place(item, f"{path.name}/{item.name}")


def _place(item: Path, path: str) -> Iterator[Finding]:
    law, wanted = "arms-closed", "runs and records, no links"
    is_folder = item.is_dir() and not item.is_symlink()
    if is_folder and layout.PARTIAL.fullmatch(item.name):
        yield unproven(law, path, wanted, "a request whose writer was killed: it was never made, and says nothing")
    elif not is_folder or not (item.name == layout.RECORDS or layout.RUN_ID.fullmatch(item.name)):
        yield broken(law, path, wanted, "something else")


def check_requests(campaign: str, chain: Chain, runs: Sequence[Run]) -> Iterator[Finding]:
    """Every line of the ledger that is about a run of this campaign has its run here."""
    there = {run.bundle.run_id for run in runs}
    for entry in chain.entries:
        if entry.campaign == campaign and entry.run_id and entry.run_id not in there:
            path = f"{layout.LEDGER}:{entry.sequence + 1}"
            yield broken("ledger-run", path, f"the run {campaign}/{entry.run_id}", "no such directory")


def check_editions(runs: Sequence[Run]) -> Iterator[Finding]:
    """All runs of one edition froze the same campaign and expectations, and those of one arm the same notebook.

    No two runs have one nonce: one of them would be a copy of the other.
    """
    nonces: dict[str, str] = {}
    first: dict[tuple[str, ...], tuple[str, str]] = {}
    for run in sorted(runs, key=_requested_at):
        request = run.request
        if request is None:
            continue
        if (owner := nonces.setdefault(request.nonce, request.run_id)) != request.run_id:
            path = f"{request.campaign}/{request.run_id}/{layout.REQUEST}"
            yield broken("request", path, "a nonce of its own", f"that of {owner}")
        edition = str(request.edition)
        for law, key, found in (
            ("expectations-unchanged", (edition, layout.CAMPAIGN), request.campaign_digest),
            ("expectations-unchanged", (edition, layout.EXPECTATIONS), request.expectations_digest),
            ("notebook-source", (edition, layout.NOTEBOOK, request.arm), request.notebook_digest),
        ):
            earlier, needed = first.setdefault(key, (request.run_id, found))
            if found != needed:
                path = f"{request.campaign}/{request.run_id}/{key[1]}"
                yield broken(law, path, f"{needed}, as in {earlier} of edition {edition}", f"{found}: {RAISE}")


def _requested_at(run: Run) -> int:
    return 0 if run.request is None else int(run.request.requested_at)


def current_spec(project: Path, campaign: str) -> CampaignSpec | None:
    """Return a campaign as the project has it now, or None where it is not there or cannot be read."""
    path = layout.experiment_directory(project, campaign) / layout.CAMPAIGN
    try:
        return parse_campaign(read_plain(path), layout.CAMPAIGN)
    except (OSError, DocumentError):
        return None


def check_drift(project: Path, campaign: str, runs: Sequence[Run]) -> Iterator[Finding]:
    """The project's campaign, expectations and notebooks are those of the runs of its edition."""
    law, folder = "expectations-unchanged", layout.experiment_directory(project, campaign)
    spec = current_spec(project, campaign)
    requests = [run.request for run in runs if run.request is not None]
    if not requests:
        return
    if spec is None or spec.campaign != campaign:
        yield broken(law, f"experiments/{campaign}/{layout.CAMPAIGN}", f"the campaign {campaign}", "none to be read")
        return
    if (newest := max(request.edition for request in requests)) > spec.edition:
        path = f"experiments/{campaign}/{layout.CAMPAIGN}"
        yield broken(law, path, f"edition {newest} or later, which has runs", f"edition {spec.edition}")
    for request in requests:
        if request.edition != spec.edition:
            continue
        for name, needed in (
            (layout.CAMPAIGN, request.campaign_digest),
            (layout.EXPECTATIONS, request.expectations_digest),
        ):
            yield _unchanged(law, folder / name, f"experiments/{campaign}/{name}", needed, request.run_id)
        arm = next((item for item in spec.arms if item.name == request.arm), None)
        if arm is not None:
            notebook = project / arm.notebook
            yield _unchanged("notebook-source", notebook, arm.notebook, request.notebook_digest, request.run_id)


def _unchanged(law: str, file: Path, path: str, needed: str, run_id: str) -> Finding:
    try:
        found = digest_bytes(read_plain(file))
    except OSError as error:
        return broken(law, path, f"{needed}, as in {run_id}", f"no file that can be read ({error.strerror})")
    if found == needed:
        return proven(law, path, f"{needed}, as in {run_id}")
    return broken(law, path, f"{needed}, as in {run_id}", f"{found}: {RAISE}")
