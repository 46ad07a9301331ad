"""Requests, what they froze, and the ledger: renamed, exchanged, softened, cut, and chained again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from typing import Any

from inferswarm.documents import digest, digest_bytes, write_document
from tests.adversarial.controls import control
from tests.adversarial.forging import Forgery

Entries = list[dict[str, Any]]


def request(forgery: Forgery, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the second arm's request, and everything that names it."""
    run = forgery.run("second")
    forgery.record(run / "request.json", change)
    forgery.carry(run, request=True)


@control("request")
def the_request_is_dropped(forgery: Forgery) -> None:
    (forgery.run("second") / "request.json").unlink()


@control("ledger-run")
def the_request_is_edited(forgery: Forgery) -> None:
    forgery.record(forgery.run("second") / "request.json", lambda record: record.update(deadline_seconds=3600.0))


@control("parameters")
def other_parameters_are_requested_everywhere(forgery: Forgery) -> None:
    request(forgery, lambda record: record["parameters"][0].update(value=43))


@control("expectations-unchanged")
def expectations_are_those_of_another_day(forgery: Forgery) -> None:
    run = forgery.run("second")
    forgery.text(run / "expectations.toml", "at_most = 0.2", "at_most = 0.3")
    forgery.carry(run, request=True)


@control("expectations-committed")
def expectations_were_never_committed(forgery: Forgery) -> None:
    for run in (forgery.run("first"), forgery.run("second")):
        forgery.text(run / "expectations.toml", "samples_min = 12", "samples_min = 2")
        forgery.carry(run, request=True)


@control("expectations-unchanged")
def expectations_are_those_of_another_campaign(forgery: Forgery) -> None:
    run = forgery.run("second")
    forgery.text(run / "expectations.toml", 'campaign = "green"', 'campaign = "red"')
    forgery.carry(run, request=True)


@control("expectations-unchanged")
def an_arm_is_softened_in_the_campaign(forgery: Forgery) -> None:
    run = forgery.run("second")
    forgery.text(run / "campaign.toml", 'after = ["first"]', "after = []")
    forgery.record(run / "request.json", lambda record: record.update(predecessors=[]))
    forgery.carry(run, request=True)


@control("notebook-source")
def another_notebook_ran(forgery: Forgery) -> None:
    run = forgery.run("second")
    for name in ("notebook.ipynb", "executed.ipynb"):
        forgery.text(run / name, "assert ends", "assert True")
    forgery.carry(run, request=True)


@control("request")
def the_notebook_is_edited(forgery: Forgery) -> None:
    run = forgery.run("second")
    forgery.text(run / "notebook.ipynb", "assert ends", "assert True")
    forgery.carry(run)


@control("request")
def the_package_is_edited(forgery: Forgery) -> None:
    run = forgery.run("second")
    forgery.record(run / "package.json", lambda record: record["files"].pop())
    forgery.carry(run)


@control("package-at-commit")
def the_package_was_another_everywhere(forgery: Forgery) -> None:
    run = forgery.run("second")
    forgery.record(run / "package.json", lambda record: record["files"].pop())
    found = digest(json.loads((run / "package.json").read_bytes())["files"])
    forgery.reseal(run, "seal.json", lambda record: record.update(package_digest=found))
    request(forgery, lambda record: record.update(package_digest=found))


@control("package-at-commit")
def the_commit_is_another(forgery: Forgery) -> None:
    request(forgery, lambda record: record.update(commit="0" * 40))


@control("package-at-commit")
def the_project_was_changed(forgery: Forgery) -> None:
    request(forgery, lambda record: record.update(dirty=True))


@control("arms-closed")
def the_arm_is_renamed(forgery: Forgery) -> None:
    rename(forgery, "third")


@control("arms-closed")
def the_edition_is_another(forgery: Forgery) -> None:
    def change(entries: Entries) -> Entries:
        return [
            entry | {"edition": 2} if entry["run_id"] == forgery.run("second").name else entry for entry in entries
        ]

    request(forgery, lambda record: record.update(edition=2))
    forgery.lines(change)


@control("request")
def a_run_is_that_of_another_arm(forgery: Forgery) -> None:
    run = forgery.run("second")
    for name in ("request.json", "manifest.json"):
        forgery.record(run / name, lambda record: record.update(arm="first"))
    forgery.carry(run, request=True)


@control("predecessors")
def it_rests_on_another_run(forgery: Forgery) -> None:
    request(forgery, lambda record: record.update(predecessors=["first-20250101T000000Z-00000000"]))


@control("predecessors")
def it_rests_on_nothing(forgery: Forgery) -> None:
    request(forgery, lambda record: record.update(predecessors=[]))


@control("predecessors")
def it_ran_before_what_it_rests_on(forgery: Forgery) -> None:
    def change(entries: Entries) -> Entries:
        mine = [entry for entry in entries if entry["arm"] == "second"]
        return [*mine, *(entry for entry in entries if entry["arm"] != "second")]

    forgery.lines(change)


@control("chronology")
def the_ledger_dates_a_request_before_it_was_made(forgery: Forgery) -> None:
    def change(entries: Entries) -> Entries:
        for entry in entries:
            if entry["arm"] == "second" and entry["kind"] == "requested":
                entry["at"] = str(int(entries[0]["at"]) - 1)
        return entries

    forgery.lines(change)


@control("request")
def it_counts_an_attempt_more(forgery: Forgery) -> None:
    request(forgery, lambda record: record.update(attempt=2))


@control("ledger-chain")
def a_line_is_dropped(forgery: Forgery) -> None:
    forgery.lines(lambda entries: entries[1:], chained=False)


@control("ledger-chain")
def a_line_is_edited(forgery: Forgery) -> None:
    forgery.lines(lambda entries: [entries[0] | {"at": entries[1]["at"]}, *entries[1:]], chained=False)


@control("ledger-chain")
def lines_are_exchanged(forgery: Forgery) -> None:
    forgery.lines(lambda entries: [entries[1], entries[0], *entries[2:]], chained=False)


@control("ledger-chain")
def the_last_line_is_cut(forgery: Forgery) -> None:
    forgery.ledger.write_bytes(forgery.ledger.read_bytes()[:-20])


@control("ledger-chain")
def the_ledger_is_dropped(forgery: Forgery) -> None:
    forgery.ledger.unlink()


@control("ledger-run")
def an_end_is_written_twice(forgery: Forgery) -> None:
    def change(entries: Entries) -> Entries:
        ends = [entry for entry in entries if entry["arm"] == "second" and entry["kind"] == "finished"]
        return [*entries, *(dict(entry) for entry in ends)]

    forgery.lines(change)


@control("ledger-run")
def the_end_comes_before_the_request(forgery: Forgery) -> None:
    def change(entries: Entries) -> Entries:
        mine = [entry for entry in entries if entry["arm"] == "second"]
        return [*(entry for entry in entries if entry["arm"] != "second"), *reversed(mine)]

    forgery.lines(change)


@control("ledger-run")
def a_runs_request_is_taken_out_of_the_ledger(forgery: Forgery) -> None:
    forgery.lines(lambda entries: [entry for entry in entries if entry["kind"] != "requested"])


@control("ledger-run")
def a_run_is_dropped(forgery: Forgery) -> None:
    shutil.rmtree(forgery.run("second"))


@control("ledger-run")
def a_run_is_there_twice(forgery: Forgery) -> None:
    run = forgery.run("first")
    shutil.copytree(run, run.with_name(f"{run.name[:-8]}00000000"))


@control("request")
def two_runs_are_swapped(forgery: Forgery) -> None:
    first, second = forgery.run("first"), forgery.run("second")
    names = first.name, second.name
    aside = first.rename(first.with_name("aside"))
    second.rename(first.with_name(names[0]))
    aside.rename(first.with_name(names[1]))


@control("disposition-recorded", root="red")
def a_failure_is_called_a_pass(forgery: Forgery) -> None:
    forgery.disposition(forgery.run("flaky", 0), "PASS")


@control("disposition-recorded", root="red")
def what_did_not_end_is_called_a_pass(forgery: Forgery) -> None:
    forgery.disposition(forgery.run("halted", 0), "PASS")


@control("request", root="red")
def the_attempt_that_failed_is_dropped_as_if_it_had_never_been(forgery: Forgery) -> None:
    forgery.drop_run(forgery.run("flaky", 0))


@control("request", root="red")
def the_attempt_that_passed_is_told_first(forgery: Forgery) -> None:
    failed, passed = forgery.run("flaky", 0).name, forgery.run("flaky", 1).name

    def change(entries: Entries) -> Entries:
        order = {passed: 0, failed: 1}
        return sorted(entries, key=lambda entry: order.get(entry["run_id"], 2))

    forgery.lines(change)


@control("acceptance")
def an_acceptance_is_dropped(forgery: Forgery) -> None:
    acceptance(forgery).unlink()


@control("acceptance")
def an_acceptance_is_edited(forgery: Forgery) -> None:
    forgery.record(acceptance(forgery), lambda record: record.update(author="somebody else"))


@control("acceptance")
def an_acceptance_is_without_its_line(forgery: Forgery) -> None:
    forgery.lines(lambda entries: [entry for entry in entries if entry["kind"] != "accepted"])


@control("acceptance")
def an_acceptance_says_another_disposition(forgery: Forgery) -> None:
    accepted(forgery, lambda record: record["dispositions"][1].update(attempts=9))


@control("acceptance")
def a_line_before_an_acceptance_is_dropped_and_all_is_chained_again(forgery: Forgery) -> None:
    forgery.drop_run(forgery.run("second"))


@control("statement")
def the_statement_is_dropped(forgery: Forgery) -> None:
    (forgery.run("second") / "statement.json").unlink()


@control("statement")
def the_statement_names_other_bytes(forgery: Forgery) -> None:
    change = {"sha256": "0" * 64}
    forgery.record(
        forgery.run("second") / "statement.json", lambda record: record["subject"][0].update(digest=change)
    )


@control("statement")
def the_statement_is_that_of_another_run(forgery: Forgery) -> None:
    shutil.copy(forgery.run("first") / "statement.json", forgery.run("second"))


@control("statement", root="red")
def a_statement_claims_what_is_not_proven(forgery: Forgery) -> None:
    def change(statement: dict[str, Any]) -> None:
        predicate = statement["predicate"]
        predicate["passedTests"] += predicate["failedTests"]

    forgery.record(forgery.run("flaky", 0) / "statement.json", change)


@control("signature")
def a_run_is_signed_by_another(forgery: Forgery) -> None:
    from inferswarm.campaigns.signing import make_keys, sign_run

    private, public = forgery.root.with_name("other.pem"), forgery.root.with_name("other.pub")
    make_keys(private, public)
    (forgery.run("second") / "statement.dsse.json").unlink()
    sign_run(forgery.run("second"), private)


@control("signature")
def a_signature_is_dropped(forgery: Forgery) -> None:
    (forgery.run("second") / "statement.dsse.json").unlink()


@control("signature")
def a_signature_is_that_of_another_run(forgery: Forgery) -> None:
    shutil.copy(forgery.run("first") / "statement.dsse.json", forgery.run("second"))


@control("signature")
def a_signature_is_edited(forgery: Forgery) -> None:
    def change(envelope: dict[str, Any]) -> None:
        sig = envelope["signatures"][0]["sig"]
        envelope["signatures"][0]["sig"] = ("B" if sig[0] == "A" else "A") + sig[1:]

    forgery.record(forgery.run("second") / "statement.dsse.json", change)


def rename(forgery: Forgery, arm: str) -> None:
    """Call the second arm something else, in its records, in its directory's name, and in the ledger."""
    run = forgery.run("second")
    name = run.name.replace("second", arm)

    def change(entries: Entries) -> Entries:
        return [entry | {"arm": arm, "run_id": name} if entry["run_id"] == run.name else entry for entry in entries]

    forgery.lines(change)
    run = run.rename(run.with_name(name))
    for record in ("request.json", "manifest.json", "outcome.json", "seal.json"):
        fields = json.loads((run / record).read_bytes())
        now = {key: value for key, value in (("arm", arm), ("run_id", name)) if key in fields}
        forgery.reseal(run, record, lambda fields, now=now: fields.update(now))
    forgery.record(
        run / "statement.json", lambda record: record["predicate"]["inferswarm"].update(arm=arm, run_id=name)
    )
    forgery.record(run / "result.json", lambda record: record.update(run_id=name))
    forgery.carry(run, request=True, seal=True)


def acceptance(forgery: Forgery):
    """The file of the green campaign's acceptance."""
    (path,) = (forgery.campaign / "records").iterdir()
    return path


def accepted(forgery: Forgery, change: Callable[[dict[str, Any]], object]) -> None:
    """Change an acceptance, its name and its line."""
    path = acceptance(forgery)
    fields = json.loads(path.read_bytes())
    change(fields)
    data = write_document(fields).encode()
    path.unlink()
    found = digest_bytes(data)
    path.with_name(f"{found.removeprefix('sha256:')}.json").write_bytes(data)
    forgery.lines(
        lambda entries: [entry | {"subject": found} if entry["kind"] == "accepted" else entry for entry in entries]
    )
