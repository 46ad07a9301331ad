"""The statement of a run, in the shape of in-toto: subjects by digest, and what a verifier found of them.

Tools that know nothing of InferSwarm can read it: an in-toto Statement v1 with the test-result predicate v0.1. A
result is PASSED for a PASS and FAILED for everything else. It repeats the ledger; it grants nothing by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Final, Literal

import msgspec

from inferswarm.campaigns import layout
from inferswarm.campaigns.bundle import Bundle
from inferswarm.campaigns.case import Case
from inferswarm.campaigns.findings import broken, compared, proven, state_of, unproven
from inferswarm.campaigns.laws import Finding, State
from inferswarm.campaigns.manifests import entries_of
from inferswarm.campaigns.records import Disposition
from inferswarm.campaigns.verdicts import DECISIVE_LAWS, RunVerdict, Verifier
from inferswarm.documents import Digest, Document, digest_bytes, read_document
from inferswarm.errors import DocumentError, EvidenceError

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "https://in-toto.io/attestation/test-result/v0.1"
Hex = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
LAW: Final = "statement"


class DigestSet(Document, frozen=True):
    """A digest as in-toto writes it: under its algorithm's name, in hexadecimal."""

    sha256: Hex


class ResourceDescriptor(Document, frozen=True):
    """A file by name and digest."""

    name: str
    digest: DigestSet


class RunFacts(Document, frozen=True, kw_only=True):
    """What InferSwarm adds to the predicate."""

    campaign: str
    edition: int
    arm: str
    run_id: str
    disposition: Disposition
    request_digest: Digest
    verifier: Verifier


class ResultPredicate(Document, frozen=True, kw_only=True, rename="camel"):
    """The predicate: which laws were proven, broken, or neither."""

    result: Literal["PASSED", "FAILED"]
    configuration: tuple[ResourceDescriptor, ...]
    passed_tests: tuple[str, ...]
    warned_tests: tuple[str, ...]
    failed_tests: tuple[str, ...]
    inferswarm: RunFacts


class Statement(Document, frozen=True, kw_only=True, rename="camel"):
    """`statement.json`: an in-toto Statement."""

    type_: Literal["https://in-toto.io/Statement/v1"] = msgspec.field(name="_type")
    subject: tuple[ResourceDescriptor, ...]
    predicate_type: Literal["https://in-toto.io/attestation/test-result/v0.1"]
    predicate: ResultPredicate


def make_statement(case: Case, verdict: RunVerdict, verifier: Verifier) -> Statement:
    """Return the statement of a run. Raises EvidenceError when its request or its manifest is not written."""
    bundle = case.run.bundle
    request, manifest = bundle.digest(layout.REQUEST), bundle.digest(layout.MANIFEST)
    if request is None or manifest is None:
        raise EvidenceError(f"{bundle.directory}: needs a request and a manifest before anything is said about it")
    passed, warned, failed = (
        _laws(verdict.findings, state) for state in (State.PROVEN, State.UNPROVEN, State.BROKEN)
    )
    return Statement(
        type_=STATEMENT_TYPE,
        subject=_subjects(case),
        predicate_type=PREDICATE_TYPE,
        predicate=ResultPredicate(
            result="PASSED" if verdict.disposition == "PASS" else "FAILED",
            configuration=_configuration(bundle),
            passed_tests=passed,
            warned_tests=warned,
            failed_tests=failed,
            inferswarm=RunFacts(
                campaign=verdict.campaign,
                edition=verdict.edition,
                arm=verdict.arm,
                run_id=verdict.run_id,
                disposition=verdict.disposition,
                request_digest=request,
                verifier=verifier,
            ),
        ),
    )


def check_statement(case: Case, findings: Sequence[Finding], recorded: Disposition | None) -> Iterator[Finding]:
    """Hold a run's statement against its files, the ledger, and what is found now: it claims no law too many."""
    bundle, request = case.run.bundle, case.run.request
    data = bundle.files.get(layout.STATEMENT)
    if data is None:
        if recorded is None:
            yield unproven(LAW, layout.STATEMENT, "a statement", "none: nobody concluded the run")
        else:
            yield broken(LAW, layout.STATEMENT, "a statement", "none")
        return
    try:
        statement = read_document(Statement, data, layout.STATEMENT)
    except DocumentError as error:
        yield broken(LAW, layout.STATEMENT, "a statement", error.reason)
        return
    yield _same(statement.subject, _subjects(case), "subject")
    predicate, facts = statement.predicate, statement.predicate.inferswarm
    if recorded is not None:  # None: whoever wrote it ended before the ledger had it
        yield compared(LAW, "disposition", recorded, facts.disposition)
    yield compared(LAW, "result", "PASSED" if facts.disposition == "PASS" else "FAILED", predicate.result)
    yield from _lists(predicate)
    if request is not None:
        parent = (request.package_version, request.package_digest)
        yield compared(LAW, "verifier", parent, (facts.verifier.version, facts.verifier.package_digest))
        needed = (request.campaign, request.edition, request.arm, request.run_id, bundle.digest(layout.REQUEST))
        found = (facts.campaign, facts.edition, facts.arm, facts.run_id, facts.request_digest)
        yield compared(LAW, "inferswarm", needed, found)
    yield _same(predicate.configuration, _configuration(bundle), "configuration")
    if recorded is None:
        yield unproven(LAW, layout.STATEMENT, "a statement that the ledger repeats", "nobody concluded the run")
        return
    proven_now = _laws(findings, State.PROVEN)
    if extra := sorted(set(predicate.passed_tests) - set(proven_now)):
        yield broken(LAW, "passedTests", "only what is proven", ", ".join(extra))


def _lists(predicate: ResultPredicate) -> Iterator[Finding]:
    """Every law that decides is in one of the lists, once; and what passed has nothing in the others."""
    lists = (predicate.passed_tests, predicate.warned_tests, predicate.failed_tests)
    told = [law for laws in lists for law in laws]
    if sorted(told) != sorted(DECISIVE_LAWS):
        odd = sorted({law for law in told if told.count(law) > 1} | (set(told) ^ set(DECISIVE_LAWS)))
        yield broken(LAW, "tests", "each law that decides in one list, once", f"otherwise: {', '.join(odd)}")
    if predicate.result == "PASSED" and (others := [*predicate.warned_tests, *predicate.failed_tests]):
        yield broken(LAW, "result", "FAILED, or every law passed", f"PASSED without {', '.join(others)}")


def _same(found: Sequence[ResourceDescriptor], needed: Sequence[ResourceDescriptor], path: str) -> Finding:
    if tuple(found) == tuple(needed):
        return proven(LAW, path, f"{len(needed)} files by their digests")
    differing = sorted({item.name for item in {*found} ^ {*needed}})
    return broken(
        LAW, path, f"{len(needed)} files by their digests", f"others: {', '.join(differing) or 'the order'}"
    )


def _configuration(bundle: Bundle) -> tuple[ResourceDescriptor, ...]:
    return tuple(_descriptor(name, digest) for name in layout.FROZEN_FILES if (digest := bundle.digest(name)))


def _subjects(case: Case) -> tuple[ResourceDescriptor, ...]:
    bundle = case.run.bundle
    files = [_descriptor(entry.path, entry.digest) for entry in entries_of(bundle)]
    if layout.MANIFEST in bundle.files:
        files.append(_descriptor(layout.MANIFEST, digest_bytes(bundle.files[layout.MANIFEST])))
    return tuple(files)


def _descriptor(name: str, found: str) -> ResourceDescriptor:
    return ResourceDescriptor(name, DigestSet(found.removeprefix("sha256:")))


def _laws(findings: Sequence[Finding], state: State) -> tuple[str, ...]:
    return tuple(law for law in DECISIVE_LAWS if state_of(findings, (law,)) is state)
