"""A copied evidence root in the hands of somebody who wants it to say something else.

Every change may be carried up the chain: the seal, the executed notebook that shows the seal's digest, the manifest,
the statement, and every line of the ledger can be made to agree with it again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl

from inferswarm.campaigns.samples import RUN_KEY, read_samples, samples_identity
from inferswarm.documents import canonical_bytes, digest_bytes, write_document

FROZEN = ("campaign.toml", "expectations.toml", "notebook.ipynb", "package.json")
UNLISTED = ("manifest.json", "statement.json", "statement.dsse.json")
Record = dict[str, Any]


class Forgery:
    """One root, which is changed where it lies."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.campaign = next(path for path in sorted(root.iterdir()) if path.is_dir())

    @property
    def ledger(self) -> Path:
        """The ledger."""
        return self.root / "ledger.jsonl"

    def run(self, arm: str, attempt: int = 0) -> Path:
        """The directory of an arm's attempt, in the order of their times."""
        return sorted(self.campaign.glob(f"{arm}-2*"))[attempt]

    def record(self, path: Path, change: Callable[[Record], object]) -> None:
        """Change a JSON file in place of its fields, written as everything here is written."""
        fields = json.loads(path.read_bytes())
        change(fields)
        path.write_text(write_document(fields), encoding="utf-8")

    def text(self, path: Path, old: str, new: str) -> None:
        """Put one text in the place of another, which must be there."""
        before = path.read_text(encoding="utf-8")
        assert old in before, (path, old)
        path.write_text(before.replace(old, new), encoding="utf-8")

    def samples(self, run: Path, change: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
        """Change the table of samples, without asking whether it is one afterwards."""
        path = run / "samples.parquet"
        said = {RUN_KEY: canonical_bytes(samples_identity(path)).decode()}
        change(read_samples(path)).write_parquet(path, metadata=said)

    def lines(self, change: Callable[[list[Record]], list[Record]], chained: bool = True) -> None:
        """Change the ledger's lines; `chained` counts and binds them anew."""
        written, previous = [], digest_bytes(b"")
        for number, entry in enumerate(change(self.entries())):
            if chained:
                entry |= {"sequence": number, "previous": previous}
            line = canonical_bytes(entry)
            previous = digest_bytes(line)
            written.append(line + b"\n")
        self.ledger.write_bytes(b"".join(written))

    def entries(self) -> list[Record]:
        """The ledger's lines."""
        return [json.loads(line) for line in self.ledger.read_bytes().splitlines()]

    def carry(self, run: Path, *, request: bool = False, seal: bool = False) -> None:
        """Make everything above a changed file agree with it, up to the ledger's last line.

        `request`: also the request's digests of what it froze, and all that names the request. `seal`: also the seal.
        """
        if request:
            self._carry_request(run)
        if seal:
            self.seal(run)
        self.manifest(run)
        self.statement(run)
        self.bind(run)

    def _carry_request(self, run: Path) -> None:
        fields = {"campaign.toml": "campaign_digest", "expectations.toml": "expectations_digest"}
        fields["notebook.ipynb"] = "notebook_digest"

        def change(request: Record) -> None:
            request.update({field: _digest(run / name) for name, field in fields.items()})

        self.record(run / "request.json", change)
        for name in ("outcome.json", "seal.json"):
            found = _digest(run / "request.json")
            self.reseal(run, name, lambda record, found=found: record.update(request_digest=found))

    def reseal(self, run: Path, name: str, change: Callable[[Record], object]) -> None:
        """Change a record, and the seal's digest wherever the run shows it, if it is the seal."""
        before = _digest(run / name)
        self.record(run / name, change)
        for shown in (run / "executed.ipynb", run / "stdout.log"):
            if shown.exists():
                shown.write_text(shown.read_text(encoding="utf-8").replace(before, _digest(run / name)), "utf-8")

    def seal(self, run: Path) -> None:
        """Make the seal say what the arm's files are."""

        def change(seal: Record) -> None:
            seal["files"] = [_entry(run, item["path"]) for item in seal["files"] if (run / item["path"]).exists()]

        self.reseal(run, "seal.json", change)

    def environments(self, run: Path, change: Callable[[Record], object]) -> None:
        """Change what kernel and parent ran in alike, and have the outcome name the parent's."""
        for name in ("environment.json", "environment.parent.json"):
            self.record(run / name, change)
        found = _digest(run / "environment.parent.json")
        self.record(run / "outcome.json", lambda record: record.update(parent_environment_digest=found))

    def manifest(self, run: Path) -> None:
        """Make the manifest list what is there."""
        names = sorted(path.name for path in run.iterdir() if path.name not in UNLISTED)
        self.record(run / "manifest.json", lambda record: record.update(files=[_entry(run, name) for name in names]))

    def statement(self, run: Path) -> None:
        """Make the statement name what is there."""

        def change(statement: Record) -> None:
            names = sorted(path.name for path in run.iterdir() if path.name not in UNLISTED)
            statement["subject"] = [_described(run, name) for name in [*names, "manifest.json"]]
            statement["predicate"]["configuration"] = [_described(run, name) for name in FROZEN]
            statement["predicate"]["inferswarm"]["request_digest"] = _digest(run / "request.json")

        self.record(run / "statement.json", change)

    def bind(self, run: Path) -> None:
        """Make the ledger name the run's request and manifest, and chain it again."""
        subjects = {"requested": _digest(run / "request.json"), "finished": _digest(run / "manifest.json")}

        def change(entries: list[Record]) -> list[Record]:
            for entry in entries:
                if entry["run_id"] == run.name and entry["kind"] in subjects:
                    entry["subject"] = subjects[entry["kind"]]
            return entries

        self.lines(change)

    def disposition(self, run: Path, disposition: str) -> None:
        """Make the ledger and the statement say that the run came to something else."""

        def change(entries: list[Record]) -> list[Record]:
            for entry in entries:
                if entry["run_id"] == run.name and entry["kind"] == "finished":
                    entry["disposition"] = disposition
            return entries

        self.lines(change)
        result = "PASSED" if disposition == "PASS" else "FAILED"

        def said(statement: Record) -> None:
            statement["predicate"]["result"] = result
            statement["predicate"]["inferswarm"]["disposition"] = disposition

        self.record(run / "statement.json", said)

    def drop_run(self, run: Path) -> None:
        """Remove a run as if it had never been: its directory and its lines, the others chained again."""
        shutil.rmtree(run)
        self.lines(lambda entries: [entry for entry in entries if entry["run_id"] != run.name])


def _digest(path: Path) -> str:
    return digest_bytes(path.read_bytes())


def _entry(run: Path, name: str) -> Record:
    data = (run / name).read_bytes()
    return {"path": name, "bytes": len(data), "digest": digest_bytes(data)}


def _described(run: Path, name: str) -> Record:
    return {"name": name, "digest": {"sha256": _digest(run / name).removeprefix("sha256:")}}
