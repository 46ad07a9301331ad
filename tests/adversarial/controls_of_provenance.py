"""Statements and people's words that say more than they may, times that cannot be, and texts of another form."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from inferswarm.campaigns.acceptance import write_record
from inferswarm.campaigns.ledger import Ledger
from inferswarm.campaigns.records import SCHEMA, Acceptance, ArmDisposition, Authorization, Waiver
from tests.adversarial.controls import control
from tests.adversarial.forging import Forgery

Record = dict[str, Any]
SECOND = 1_000_000_000
YEAR = 365 * 86_400 * SECOND


@control("request", root="red")
def a_second_attempt_calls_itself_the_first(forgery: Forgery) -> None:
    run = forgery.run("flaky", 1)
    forgery.record(run / "request.json", lambda record: record.update(attempt=1))
    forgery.carry(run, request=True)


def predicate(forgery: Forgery, change: Callable[[Record], object]) -> None:
    """Change what the second arm's statement says of its laws."""
    forgery.record(forgery.run("second") / "statement.json", lambda record: change(record["predicate"]))


@control("statement")
def a_statement_of_a_pass_lists_a_failure(forgery: Forgery) -> None:
    def change(record: Record) -> None:
        record["failedTests"].append(record["passedTests"].pop())

    predicate(forgery, change)


@control("statement")
def a_statement_leaves_out_a_law(forgery: Forgery) -> None:
    predicate(forgery, lambda record: record["passedTests"].pop())


@control("statement")
def a_statement_lists_a_law_twice(forgery: Forgery) -> None:
    predicate(forgery, lambda record: record["passedTests"].append(record["passedTests"][0]))


@control("statement")
def a_statement_knows_a_law_that_is_none(forgery: Forgery) -> None:
    predicate(forgery, lambda record: record["warnedTests"].append("good-will"))


@control("statement")
def a_statement_is_by_a_verifier_that_was_not_there(forgery: Forgery) -> None:
    other = {"version": "9", "package_digest": "sha256:" + "0" * 64}
    predicate(forgery, lambda record: record["inferswarm"].update(verifier=other))


@control("schema")
def an_outcome_is_written_in_utf_16(forgery: Forgery) -> None:
    encoded(forgery, "outcome.json", "utf-16")


@control("schema")
def a_package_begins_with_a_byte_order_mark(forgery: Forgery) -> None:
    encoded(forgery, "package.json", "utf-8-sig")


@control("schema")
def a_time_goes_on_in_a_second_line(forgery: Forgery) -> None:
    run = forgery.run("second")
    forgery.record(run / "outcome.json", lambda record: record.update(started_at=record["started_at"] + "\n"))
    forgery.carry(run)


def encoded(forgery: Forgery, name: str, encoding: str) -> None:
    """Write a file of the second arm in another encoding."""
    run = forgery.run("second")
    (run / name).write_bytes((run / name).read_text(encoding="utf-8").encode(encoding))
    forgery.carry(run)


@control("chronology")
def the_parents_environment_is_captured_after_the_end(forgery: Forgery) -> None:
    run = forgery.run("second")
    later = str(time.time_ns())
    forgery.record(run / "environment.parent.json", lambda record: record.update(captured_at=later))
    forgery.environments(run, lambda record: None)
    forgery.carry(run)


@control("chronology")
def a_run_ends_in_a_time_that_has_not_come_yet(forgery: Forgery) -> None:
    def change(entries: list[Record]) -> list[Record]:
        for entry in entries:
            if entry["arm"] == "second" and entry["kind"] == "finished":
                entry["at"] = str(int(entry["at"]) + YEAR)
        return entries

    forgery.lines(change)


@control("acceptance")
def an_acceptance_says_nothing_of_an_arm_that_never_ran(forgery: Forgery) -> None:
    forgery.drop_run(forgery.run("second"))
    forget(forgery)
    accept(forgery, ArmDisposition("first", "PASS", 1))


@control("acceptance")
def an_acceptance_is_older_than_what_it_accepts(forgery: Forgery) -> None:
    forget(forgery)
    both = (ArmDisposition("first", "PASS", 1), ArmDisposition("second", "PASS", 1))
    accept(forgery, *both)
    redate(forgery, "accepted", 5)


@control("acceptance")
def an_acceptance_is_of_an_edition_that_is_not_there(forgery: Forgery) -> None:
    accept(forgery, ArmDisposition("first", "INCOMPLETE", 0), edition=7)


@control("acceptance")
def a_waiver_is_of_an_arm_that_is_none(forgery: Forgery) -> None:
    waive(forgery, "third", time.time_ns() + YEAR)


@control("acceptance")
def a_waiver_is_of_next_year(forgery: Forgery) -> None:
    waive(forgery, "second", time.time_ns() + 3 * YEAR, at=time.time_ns() + YEAR)


@control("acceptance")
def an_authorization_outlives_the_waiver_that_it_rests_on(forgery: Forgery) -> None:
    forgery.disposition(forgery.run("second"), "FAIL")
    forget(forgery)
    now = time.time_ns()
    waive(forgery, "second", now + 60 * SECOND, at=now)
    both = (ArmDisposition("first", "PASS", 1), ArmDisposition("second", "WAIVED", 1))
    accepted = accept(forgery, *both)
    authorization = Authorization(
        schema=SCHEMA,
        campaign="green",
        edition=1,
        acceptance=accepted,
        allows="ship it",
        author="somebody",
        at=str(time.time_ns()),
        expires_at=str(now + YEAR),
    )
    write_record(Ledger(forgery.root), authorization)


@control("arms-closed")
def the_ledgers_lock_is_a_pipe(forgery: Forgery) -> None:
    (forgery.root / "ledger.lock").unlink(missing_ok=True)
    os.mkfifo(forgery.root / "ledger.lock")


@control("ledger-chain")
def the_ledger_is_a_pipe(forgery: Forgery) -> None:
    forgery.ledger.unlink()
    os.mkfifo(forgery.ledger)


@control("acceptance")
def an_acceptance_is_a_pipe(forgery: Forgery) -> None:
    (path,) = (forgery.campaign / "records").iterdir()
    path.unlink()
    os.mkfifo(path)


def forget(forgery: Forgery) -> None:
    """Take the campaign's acceptance away, as if it had never been."""
    for path in (forgery.campaign / "records").iterdir():
        path.unlink()
    forgery.lines(lambda entries: [entry for entry in entries if entry["kind"] != "accepted"])


def accept(forgery: Forgery, *dispositions: ArmDisposition, edition: int = 1) -> str:
    """Accept what is there, with these words."""
    ledger = Ledger(forgery.root)
    acceptance = Acceptance(
        schema=SCHEMA,
        campaign="green",
        edition=edition,
        head=ledger.read().head,
        dispositions=dispositions,
        author="somebody",
        reason="read",
        at=str(time.time_ns()),
    )
    return write_record(ledger, acceptance)


def waive(forgery: Forgery, arm: str, expires_at: int, at: int | None = None) -> str:
    """Waive an arm."""
    waiver = Waiver(
        schema=SCHEMA,
        campaign="green",
        edition=1,
        arm=arm,
        reason="why not",
        author="somebody",
        at=str(time.time_ns() if at is None else at),
        expires_at=str(expires_at),
    )
    return write_record(Ledger(forgery.root), waiver)


def redate(forgery: Forgery, kind: str, at: int) -> None:
    """Give the one record of a kind, and its line, another time."""
    from tests.adversarial.controls_of_requests import accepted

    accepted(forgery, lambda record: record.update(at=str(at)))
    forgery.lines(lambda entries: [entry | {"at": str(at)} if entry["kind"] == kind else entry for entry in entries])
