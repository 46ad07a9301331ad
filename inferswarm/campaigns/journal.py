"""What an arm observes, written down as it comes: a file that a killed kernel leaves behind, and the table of it.

Each line is one JSON object with one field that names its kind. Lines go to the operating system at once, so that
they survive the end of the process; the journal is no record: at the arm's end the table and the answers are written
from memory, and the file goes. What could not be written down was not observed: the journal refuses everything from
then on.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from io import FileIO
from pathlib import Path

import msgspec
import polars as pl

from inferswarm.campaigns.samples import SAMPLE_SCHEMA, Output
from inferswarm.documents import Document
from inferswarm.errors import DocumentError, EvidenceError

JOURNAL = "journal.jsonl"
"""Name of the file in a run's directory."""


class Sampled(Document, frozen=True, kw_only=True):
    """One or more samples of one series with what they have in common; `at_seconds` since the arm's start."""

    series: str
    condition: str
    key: str
    block: int
    at_seconds: float
    values: tuple[float, ...]
    unit: str
    warm_up: bool


class Journal:
    """The observations of one arm, in their order. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.outputs: list[Output] = []
        self.num_samples = 0
        self._observed: list[Sampled] = []
        self._answered: set[tuple[str, str]] = set()
        self._lock = threading.RLock()  # reentrant: an object's end may be noted in the middle of anything
        self._failed: str | None = None
        self._file: FileIO | None = FileIO(path, "x")

    def observe(self, observed: Sampled) -> None:
        """Add samples. Raises EvidenceError when they cannot be written down, DocumentError after times go back."""
        with self._lock:
            if self._observed and observed.at_seconds < self._observed[-1].at_seconds:
                raise DocumentError(self.path.name, "a sample was taken before the one that was written last")
            self._write({"samples": observed})
            self._observed.append(observed)
            self.num_samples += len(observed.values)

    def answer(self, output: Output) -> None:
        """Add an answer. Raises DocumentError when its condition has answered that key; EvidenceError as above."""
        with self._lock:
            if (output.condition, output.key) in self._answered:
                raise DocumentError("answer", f"condition {output.condition!r} has answered {output.key!r} already")
            self._write({"output": output})
            self._answered.add((output.condition, output.key))
            self.outputs.append(output)

    def note(self, kind: str, text: str) -> None:
        """Add a line for people, such as progress. Raises EvidenceError when it cannot be written down."""
        with self._lock:
            self._write({kind: text})

    def table(self) -> pl.DataFrame:
        """Return the samples so far as a table of SAMPLE_SCHEMA. Raises EvidenceError when any was lost."""
        with self._lock:
            if self._failed:
                raise EvidenceError(self._failed)
            return table_of(self._observed)

    def stop(self) -> None:
        """Take nothing more: what was observed until here is all."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def remove(self) -> None:
        """Remove the file, once its content is elsewhere."""
        self.path.unlink(missing_ok=True)

    def _write(self, line: dict[str, object]) -> None:
        if self._failed:
            raise EvidenceError(self._failed)
        try:
            if self._file is None:
                raise EvidenceError("the arm is finished: nothing more can be observed")
            data = msgspec.json.encode(line) + b"\n"
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            self._failed = f"{self.path.name} could not be written ({error.strerror}): samples are missing"
            raise EvidenceError(self._failed) from error


def table_of(observed: Iterable[Sampled]) -> pl.DataFrame:
    """Return samples as a table of SAMPLE_SCHEMA, in their order."""
    columns: dict[str, list[object]] = {name: [] for name in SAMPLE_SCHEMA}
    for item in observed:
        num = len(item.values)
        columns["value"].extend(item.values)
        columns["index"].extend(range(len(columns["index"]), len(columns["index"]) + num))
        for name in columns.keys() - {"value", "index"}:
            columns[name].extend([getattr(item, name)] * num)
    return pl.DataFrame(columns, schema=SAMPLE_SCHEMA)
