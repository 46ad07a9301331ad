"""The laws of a run's files: in the ledger, in the manifest, whole, no others, and readable as what they must be."""

from __future__ import annotations

from collections.abc import Iterator

from inferswarm.campaigns import layout
from inferswarm.campaigns.case import Case
from inferswarm.campaigns.findings import broken, compared, proven, unproven
from inferswarm.campaigns.journal import JOURNAL
from inferswarm.campaigns.laws import Finding
from inferswarm.campaigns.ledger import Chain
from inferswarm.campaigns.manifests import entries_of
from inferswarm.campaigns.records import SCHEMA, LedgerEntry
from inferswarm.documents import read_json
from inferswarm.errors import DocumentError


def check_ledger_chain(case: Case) -> Iterator[Finding]:
    """The ledger's chain holds to its last line."""
    yield chain_finding(case.chain)


def chain_finding(chain: Chain, root: str = "") -> Finding:
    """Return whether a chain holds to its last line; `root` is the name of its root, where that is to be said."""
    if chain.broken:
        line, expected, found = chain.broken
        return broken("ledger-chain", f"{layout.LEDGER}:{line}", expected, found)
    if not chain.entries:
        return unproven(
            "ledger-chain", layout.LEDGER, "a ledger", f"no line yet in {root}" if root else "no line yet"
        )
    return proven("ledger-chain", layout.LEDGER, f"{len(chain.entries)} lines, head {chain.head}")


def check_ledger_run(case: Case) -> Iterator[Finding]:
    """The ledger has one request and one end of this run, and they name the bytes that are here."""
    law, bundle = "ledger-run", case.run.bundle
    wanted = "one line for the request"
    if not case.requested and not case.finished and case.holds_only_what_was_frozen:
        yield unproven(law, bundle.run_id, wanted, "none, and nothing was started")
        return
    if len(case.requested) != 1:
        yield broken(law, bundle.run_id, wanted, f"{len(case.requested)} lines")
        return
    (requested,) = case.requested
    yield from _names(case, requested)
    yield compared(law, layout.REQUEST, requested.subject, bundle.digest(layout.REQUEST))
    if len(case.finished) > 1:
        yield broken(law, bundle.run_id, "one line for the end", f"{len(case.finished)} lines")
    for finished in case.finished[:1]:
        yield from _names(case, finished)
        if finished.sequence < requested.sequence:
            yield broken(law, bundle.run_id, "an end after the request", "an end before the request")
        yield compared(law, layout.MANIFEST, finished.subject, bundle.digest(layout.MANIFEST))
        if case.finishing_at is not None:
            yield broken(law, bundle.run_id, "a run that is not finished yet", "an end in the ledger")
    if not case.finished and case.finishing_at is None:
        yield unproven(law, bundle.run_id, "a line for the end", "none: nobody concluded the run")


def _names(case: Case, entry: LedgerEntry) -> Iterator[Finding]:
    request = case.run.request
    found = None if request is None else (request.campaign, request.edition, request.arm)
    path = f"{layout.LEDGER}:{entry.sequence + 1}"
    yield compared("ledger-run", path, (entry.campaign, entry.edition, entry.arm), found)


def check_manifest(case: Case) -> Iterator[Finding]:
    """The manifest is of this run and lists every file that is here, once, and no file that it must not."""
    law, bundle, manifest = "manifest", case.run.bundle, case.run.manifest
    for odd in bundle.odd:
        yield broken(law, odd, "plain files only", odd)
    for name in bundle.partials:
        if case.finished:
            yield broken(law, name, "every file listed", "a file that is not whole, in a run that was concluded")
        else:
            yield unproven(law, name, "files that are whole", "one that its writer did not end: it says nothing")
    if manifest is None:
        fault = case.run.faults.get(layout.MANIFEST)
        if fault is not None or case.finished:
            yield broken(law, layout.MANIFEST, "a manifest", fault or "none")
        else:
            yield unproven(law, layout.MANIFEST, "a manifest", "none: nobody concluded the run")
        return
    request = case.run.request
    arm = None if request is None else request.arm
    needed = (SCHEMA, bundle.campaign, arm, bundle.run_id)
    yield compared(law, layout.MANIFEST, needed, (manifest.schema, manifest.campaign, manifest.arm, manifest.run_id))
    listed = [entry.path for entry in manifest.files]
    if listed != sorted(set(listed)):
        yield broken(law, layout.MANIFEST, "each path once, in their order", "another order, or a path twice")
    for name in sorted(set(bundle.files) - set(listed) - set(layout.UNLISTED_FILES)):
        yield broken(law, name, "every file listed", "a file that the manifest does not list")
    for name in sorted(set(listed) & set(layout.UNLISTED_FILES)):
        yield broken(law, name, "a file that a manifest can list", "one that is written after it")


def check_file_digests(case: Case) -> Iterator[Finding]:
    """Every file that the manifest lists has its length and its digest."""
    law, manifest = "file-digest", case.run.manifest
    if manifest is None:
        yield unproven(law, layout.MANIFEST, "files as the manifest lists them", "no manifest")
        return
    there = {entry.path: entry for entry in entries_of(case.run.bundle)}
    wrong = [entry for entry in manifest.files if there.get(entry.path) != entry]
    for entry in wrong:
        found = there.get(entry.path)
        shown = "no file" if found is None else f"{found.bytes} B, {found.digest}"
        yield broken(law, entry.path, f"{entry.bytes} B, {entry.digest}", shown)
    if not wrong:
        yield proven(law, layout.MANIFEST, f"{len(manifest.files)} files with their digests")


def check_files_closed(case: Case) -> Iterator[Finding]:
    """The files are those that the arm's campaign says a run has: all of them, and no others."""
    law, run = "files-closed", case.run
    arm = run.arm
    if arm is None:
        yield unproven(law, layout.CAMPAIGN, "what the arm produces", "the arm is not known")
        return
    needed = set(layout.PARENT_FILES)
    if case.was_started:
        needed |= {*layout.KERNEL_FILES, *layout.ARM_FILES, *arm.produces}
    allowed = needed | set(layout.UNLISTED_FILES) | (set() if run.came_to_its_end else {JOURNAL})
    there = set(run.bundle.files)
    for name in sorted(there - allowed):
        yield broken(law, name, "only files that the campaign names", "another file")
    for name in sorted(needed - there):
        yield unproven(law, name, "every file that the campaign names", "no such file")
    if needed <= there <= allowed:
        yield proven(law, run.bundle.run_id, f"the {len(needed)} files of such a run")


def check_schema(case: Case) -> Iterator[Finding]:
    """Everything that is here can be read, strictly, as what it must be, and is of the version that is known."""
    law, run = "schema", case.run
    faults = dict(run.faults)
    for name in () if run.arm is None else run.arm.produces:
        if name.endswith(".json") and name in run.bundle.files:
            try:
                read_json(run.bundle.files[name], name)
            except DocumentError as error:
                faults[name] = error.reason
    records = {
        layout.REQUEST: run.request,
        layout.PACKAGE: run.package,
        layout.OUTCOME: run.outcome,
        layout.SEAL: run.seal,
        layout.MANIFEST: run.manifest,
        layout.RESULT: run.result,
        layout.ENVIRONMENT: run.environment,
        layout.PARENT_ENVIRONMENT: run.parent_environment,
    }
    versions = {name: record.schema for name, record in records.items() if record is not None}
    faults |= {name: f"schema {schema}, needed {SCHEMA}" for name, schema in versions.items() if schema != SCHEMA}
    for name, fault in sorted(faults.items()):
        yield broken(law, name, "a record of its kind, read strictly", fault)
    if not faults:
        yield proven(law, run.bundle.run_id, f"{len(versions)} records as their schemas say")
