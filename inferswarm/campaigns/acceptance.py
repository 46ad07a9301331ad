"""What people say about runs: acceptances, waivers and authorizations, each a record of its own and a ledger line.

None of them changes what a run came to. A record lies in its campaign's `records` under its digest, so that no
two can have one name, and the ledger says when it was made.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from inferswarm.artifacts.assembly import sync_directory
from inferswarm.campaigns.arm_files import write_whole
from inferswarm.campaigns.findings import broken, proven, unproven
from inferswarm.campaigns.laws import Finding
from inferswarm.campaigns.layout import LEDGER, PARTIAL, RECORDS, partial_name, records_directory
from inferswarm.campaigns.ledger import Chain, EntryKind, Ledger, latest, lies_ahead
from inferswarm.campaigns.plain_files import read_plain
from inferswarm.campaigns.records import (
    SCHEMA,
    Acceptance,
    ArmDisposition,
    Authorization,
    LedgerEntry,
    Waiver,
)
from inferswarm.campaigns.standing import GivenWaiver, standing_of
from inferswarm.documents import digest_bytes, read_document, write_document
from inferswarm.errors import DocumentError, EvidenceError, SpecError

Said = Acceptance | Waiver | Authorization
KINDS: Final[dict[EntryKind, type[Said]]] = {
    "accepted": Acceptance,
    "waived": Waiver,
    "authorized": Authorization,
}
"""Which record each kind of ledger line is about."""
LAW: Final = "acceptance"
CARRYING: Final = ("PASS", "WAIVED")
"""What every arm of an acceptance must be before anything can be authorized on the strength of it."""


class SaidRecords(NamedTuple):
    """The records of one campaign by their digests, and what the law finds of each."""

    by_digest: dict[str, Said]
    waivers: tuple[GivenWaiver, ...]
    findings: tuple[Finding, ...]


def write_record(ledger: Ledger, record: Said) -> str:
    """Write a record and its ledger line; return its digest.

    The record is on the disk first, under a name that says that it is not said yet, and gets its own once the line is
    there; whoever reads meanwhile finds either. Raises SpecError for one whose term is over before it begins, without
    author or reason, or that cannot be written; EvidenceError when the ledger is broken, or has a later line. Then
    nothing is left of it.
    """
    _refuse_unsigned(record)
    kind = next(kind for kind, of in KINDS.items() if isinstance(record, of))
    data = write_document(record).encode()
    subject = digest_bytes(data)
    directory = records_directory(ledger.root, record.campaign)
    path = directory / record_name(subject)
    unsaid = directory / partial_name(path.name)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_whole(unsaid, data)
    except OSError as error:
        raise SpecError("record", str(directory), f"a writable directory ({error.strerror})") from error
    try:
        ledger.append(
            kind,
            campaign=record.campaign,
            edition=record.edition,
            arm=record.arm if isinstance(record, Waiver) else "",
            run_id="",
            subject=subject,
            at=int(record.at),
        )
    except (SpecError, EvidenceError):
        unsaid.unlink(missing_ok=True)
        raise
    try:
        os.replace(unsaid, path)
        sync_directory(directory)
    except OSError as error:
        raise EvidenceError(f"{unsaid}: is said, and kept under this name ({error.strerror})") from error
    return subject


def record_name(subject: str) -> str:
    """Return the file name of the record with this digest."""
    return f"{subject.removeprefix('sha256:')}.json"


def accept(
    chain: Chain, waivers: Sequence[GivenWaiver], arms: Sequence[str], *, campaign: str, edition: int, said: Saying
) -> Acceptance:
    """Return the acceptance of a campaign's edition as the whole chain has it."""
    return Acceptance(
        schema=SCHEMA,
        campaign=campaign,
        edition=edition,
        head=chain.head,
        dispositions=_dispositions(chain.entries, waivers, arms, campaign, edition, int(said.at)),
        author=said.author,
        reason=said.reason,
        at=said.at,
    )


class Saying(NamedTuple):
    """Who says something, why, and when (nanoseconds since 1970, in digits)."""

    author: str
    reason: str
    at: str


def read_records(root: Path, campaign: str, chain: Chain) -> SaidRecords:
    """Read a campaign's records and hold each against the ledger. Never raises for what lies there."""
    directory = records_directory(root, campaign)
    findings: list[Finding] = []
    by_digest: dict[str, Said] = {}
    waivers: list[GivenWaiver] = []
    lines = [entry for entry in chain.entries if entry.kind in KINDS and entry.campaign == campaign]
    for entry in lines:
        path = f"{campaign}/{RECORDS}/{record_name(entry.subject)}"
        record, problem = _read_record(directory, entry)
        if record is not None:
            problem = _contradiction(record, entry, chain, by_digest, waivers)
        if record is None or problem:
            findings.append(broken(LAW, path, "the record of its ledger line, true when it was made", problem))
            continue
        by_digest[entry.subject] = record
        if isinstance(record, Waiver):
            waivers.append(GivenWaiver(record, entry.subject, entry.sequence))
        findings.append(proven(LAW, path, f"as line {entry.sequence + 1} of the ledger says"))
    listed = {record_name(entry.subject) for entry in lines}
    unmoved = {partial_name(name) for name in listed if not os.path.lexists(directory / name)}
    findings.extend(_unlisted(directory, campaign, listed | unmoved))
    return SaidRecords(by_digest, tuple(waivers), tuple(findings))


def _read_record(directory: Path, entry: LedgerEntry) -> tuple[Said | None, str]:
    name = record_name(entry.subject)
    path, unsaid = directory / name, directory / partial_name(name)
    try:
        data = read_plain(unsaid if unsaid.exists() and not os.path.lexists(path) else path)
    except OSError as error:
        return None, f"no file that can be read ({error.strerror})"
    if (found := digest_bytes(data)) != entry.subject:
        return None, f"bytes with the digest {found}"
    try:
        record: Said = read_document(KINDS[entry.kind], data, path.name)
    except DocumentError as error:
        return None, error.reason
    return record, ""


def _contradiction(
    record: Said,
    entry: LedgerEntry,
    chain: Chain,
    earlier: dict[str, Said],
    waivers: Sequence[GivenWaiver],
) -> str:
    """Return what is wrong with a record that is what its line names, or nothing."""
    arm = record.arm if isinstance(record, Waiver) else ""
    said = (record.schema, record.campaign, record.edition, arm, record.at)
    if said != (SCHEMA, entry.campaign, entry.edition, entry.arm, entry.at):
        return f"schema, campaign, edition, arm and time {said}"
    try:
        _refuse_unsigned(record)
    except SpecError as error:
        return str(error)
    before = chain.entries[: entry.sequence]
    if int(record.at) < (last := latest(before)):
        return f"a time before that of an earlier line, {last}"
    if lies_ahead(int(record.at)):
        return "a time that has not come yet"
    if isinstance(record, Acceptance):
        return _acceptance_contradiction(record, entry, chain, waivers)
    if isinstance(record, Authorization):
        accepted = earlier.get(record.acceptance)
        if not isinstance(accepted, Acceptance) or accepted.edition != record.edition:
            return f"rests on {record.acceptance}, which is no earlier acceptance of this edition"
        return not_carried(record, accepted, before, waivers)
    return ""


def _acceptance_contradiction(
    record: Acceptance, entry: LedgerEntry, chain: Chain, waivers: Sequence[GivenWaiver]
) -> str:
    if record.head not in chain.digests[: entry.sequence]:
        return f"the head {record.head}, which no line before it has"
    upto = chain.entries[: chain.digests.index(record.head) + 1]
    arms = [item.arm for item in record.dispositions]
    given = [waiver for waiver in waivers if waiver.sequence < len(upto)]
    there = _dispositions(upto, given, arms, record.campaign, record.edition, int(record.at))
    if len(set(arms)) < len(arms) or there != record.dispositions:
        return f"dispositions {_shown(record.dispositions)}; the ledger says {_shown(there)}"
    ran = {item.arm for item in upto if (item.campaign, item.edition) == (record.campaign, record.edition)} - {""}
    return f"not a word of {', '.join(sorted(ran - set(arms)))}" if ran - set(arms) else ""


def _dispositions(
    entries: Sequence[LedgerEntry],
    waivers: Sequence[GivenWaiver],
    arms: Sequence[str],
    campaign: str,
    edition: int,
    at: int,
) -> tuple[ArmDisposition, ...]:
    standings = (standing_of(arm, campaign, edition, entries, waivers, at) for arm in arms)
    return tuple(ArmDisposition(item.arm, item.state, item.attempts) for item in standings)


def _shown(dispositions: Sequence[ArmDisposition]) -> str:
    return ", ".join(f"{item.arm} {item.disposition} of {item.attempts}" for item in dispositions) or "none"


def not_carried(
    record: Authorization, accepted: Acceptance, entries: Sequence[LedgerEntry], waivers: Sequence[GivenWaiver]
) -> str:
    """Return why an acceptance does not carry an authorization after these entries, or nothing.

    Every arm had passed or was waived when it was accepted, and still is when something is allowed; and nothing is
    allowed for longer than the waivers that it rests on.
    """
    arms = [item.arm for item in accepted.dispositions]
    now = _dispositions(entries, waivers, arms, record.campaign, record.edition, int(record.at))
    for when, dispositions in (("an acceptance of ", accepted.dispositions), ("", now)):
        if bare := [f"{item.arm} as {item.disposition}" for item in dispositions if item.disposition not in CARRYING]:
            return f"rests on {when}{', '.join(bare)}"
    if not arms:
        return "rests on an acceptance of no arm"
    for item in now:
        if item.disposition == "WAIVED":
            until = max(
                int(given.waiver.expires_at)
                for given in waivers
                if (given.waiver.edition, given.waiver.arm) == (record.edition, item.arm)
            )
            if int(record.expires_at) > until:
                return f"goes on after {until}, when the waiver of {item.arm} ends"
    return ""


def _refuse_unsigned(record: Said) -> None:
    """Raise SpecError for a record without author or reason, or whose term is over before it begins."""
    reason = record.allows if isinstance(record, Authorization) else record.reason
    if not record.author.strip() or not reason.strip():
        raise SpecError("record", (record.author, reason), "an author, and what is said in words")
    if not isinstance(record, Acceptance) and int(record.expires_at) <= int(record.at):
        raise SpecError("expiry of a record", record.expires_at, f"a time after {record.at}")


def _unlisted(directory: Path, campaign: str, listed: set[str]) -> list[Finding]:
    try:
        there = sorted(path.name for path in directory.iterdir()) if directory.exists() else []
    except OSError as error:
        return [broken(LAW, f"{campaign}/{RECORDS}", "a folder that can be read", str(error.strerror))]
    wanted = f"a line of {LEDGER} for every record"
    return [
        unproven(LAW, f"{campaign}/{RECORDS}/{name}", wanted, "one that was not said to its end: it says nothing")
        if PARTIAL.fullmatch(name)
        else broken(LAW, f"{campaign}/{RECORDS}/{name}", wanted, "no line: never said, or its line was dropped")
        for name in there
        if name not in listed
    ]
