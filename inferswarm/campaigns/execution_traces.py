"""What an execution leaves beside its records: lines that were printed, times that papermill noted.

None of it is a proof. All of it must speak of the same run as its witnesses do.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from inferswarm.campaigns import layout
from inferswarm.campaigns.findings import proven, unproven
from inferswarm.campaigns.laws import Finding
from inferswarm.campaigns.records import Outcome
from inferswarm.documents import read_json
from inferswarm.errors import DocumentError

SEALED: Final = "sealed: "
"""What the last cell says before the digest of its seal."""
OUTPUT_TYPES: Final = frozenset({"stream", "display_data", "execute_result"})
"""What a cell of an arm may leave, of the kinds that notebooks know; the fourth is an error."""
TRACEBACK: Final = "Traceback (most recent call last)"
SLACK_SECONDS: Final = 1.0
"""By how much papermill's times of day may lie outside of its parent's: as clocks are set while it runs."""


def sealed_lines(executed: bytes | None, stdout: bytes | None) -> Iterator[tuple[str, list[str]]]:
    """Yield where seals are shown, with the lines that do.

    In the executed notebook such a line belongs into what the last cell printed; elsewhere it is one too many.
    """
    shown: list[str] = []
    cells = _cells(_read(executed))
    for number, cell in enumerate(cells, start=1):
        for output in _outputs(cell):
            lines = [line for line in _text(output).splitlines() if SEALED in line]
            is_last = number == len(cells) and (output.get("output_type"), output.get("name")) == ("stream", "stdout")
            shown += lines if is_last else [f"{line} (cell {number})" for line in lines]
    yield layout.EXECUTED, shown
    text = (stdout or b"").decode(errors="replace")
    yield layout.STDOUT, [line for line in text.splitlines() if SEALED in line]


def output_faults(cell: dict[str, Any]) -> Iterator[str]:
    """Yield what is odd about a cell's outputs, and whether papermill saw it fail."""
    for output in cell.get("outputs", ()):
        kind = output.get("output_type") if isinstance(output, dict) else None
        if kind not in OUTPUT_TYPES:
            yield f"an output of the type {kind!r}"
    if _papermill(cell).get("exception"):
        yield "an exception, as papermill saw it"


def check_times(executed: bytes, outcome: Outcome | None) -> Finding:
    """Return whether papermill's times lie between the process's start and its end, as its parent saw them."""
    law, wanted = "notebook-scan", "papermill's times between the process's start and end"
    if outcome is None:
        return unproven(law, layout.EXECUTED, wanted, "nobody saw the process")
    start, end = int(outcome.started_at) / layout.NANOSECONDS, int(outcome.ended_at) / layout.NANOSECONDS
    said = list(_times(executed))
    outside = [text for text, second in said if second is None or second - start < -SLACK_SECONDS]
    outside += [text for text, second in said if second is not None and second - end > SLACK_SECONDS]
    if outside or not said:
        return unproven(law, layout.EXECUTED, wanted, ", ".join(outside[:3]) or "no times")
    return proven(law, layout.EXECUTED, wanted)


def check_stderr(stderr: bytes | None) -> Finding:
    """Return whether nothing that failed was printed and forgotten."""
    law, wanted = "notebook-scan", f"no line {TRACEBACK!r}"
    lines = (stderr or b"").decode(errors="replace").splitlines()
    at = next((number for number, line in enumerate(lines) if TRACEBACK in line), None)
    if stderr is None or at is None:
        return proven(law, layout.STDERR, wanted)
    said = next((line for line in lines[at + 1 :] if line and not line[0].isspace()), "and nothing else")
    return unproven(law, layout.STDERR, wanted, f"line {at + 1}: {said}")


def _times(executed: bytes) -> Iterator[tuple[str, float | None]]:
    """Yield every time that papermill wrote, as text and in seconds since 1970 (None: it is no time)."""
    notebook = _read(executed)
    for holder in (notebook, *_cells(notebook)):
        said = _papermill(holder)
        for name in ("start_time", "end_time"):
            text = said.get(name)
            try:
                yield f"{name} {text}", datetime.fromisoformat(str(text)).timestamp()
            except (ValueError, OverflowError, OSError):
                yield f"{name} {text}", None


def _read(executed: bytes | None) -> dict[str, Any]:
    try:
        fields = read_json(executed or b"", layout.EXECUTED)
    except DocumentError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    cells = notebook.get("cells")
    found = cells if isinstance(cells, list) else []
    return [cell for cell in found if isinstance(cell, dict) and cell.get("cell_type") == "code"]


def _outputs(cell: dict[str, Any]) -> list[dict[str, Any]]:
    outputs = cell.get("outputs")
    return [output for output in outputs if isinstance(output, dict)] if isinstance(outputs, list) else []


def _text(output: dict[str, Any]) -> str:
    text = output.get("text", "")
    if isinstance(text, list):
        text = "".join(item for item in text if isinstance(item, str))
    return text if isinstance(text, str) else ""


def _papermill(holder: dict[str, Any]) -> dict[str, Any]:
    metadata = holder.get("metadata")
    said = metadata.get("papermill") if isinstance(metadata, dict) else None
    return said if isinstance(said, dict) else {}
