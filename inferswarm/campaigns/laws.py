"""The laws that a run must satisfy, in the order in which they are checked: a closed list.

A finding says of one law that it is proven, broken, or unproven with the reason. PASS is what every required law
proves; nothing else is.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from inferswarm.documents import Document


class State(StrEnum):
    """What is known of a law for one run."""

    PROVEN = "PROVEN"
    BROKEN = "BROKEN"
    UNPROVEN = "UNPROVEN"


Group = Literal["integrity", "completion", "correctness", "performance", "provenance"]
"""integrity: the records are what was written. completion: the arm ran to its end. provenance: where it came from."""


class Finding(Document, frozen=True, kw_only=True):
    """One law applied to one thing: where (`path`), what it needed to be and what it was."""

    law: str
    state: State
    path: str
    expected: str
    found: str


LAWS: dict[str, Group] = {
    "ledger-chain": "integrity",
    "ledger-run": "integrity",
    "manifest": "integrity",
    "files-closed": "integrity",
    "file-digest": "integrity",
    "schema": "integrity",
    "request": "integrity",
    "arms-closed": "integrity",
    "expectations-unchanged": "integrity",
    "chronology": "integrity",
    "statement": "integrity",
    "signature": "integrity",
    "outcome": "completion",
    "seal": "completion",
    "witnesses-agree": "completion",
    "notebook-scan": "completion",
    "notebook-source": "completion",
    "parameters": "completion",
    "background-failures": "completion",
    "environment": "completion",
    "predecessors": "completion",
    "plan-realized": "correctness",
    "samples": "correctness",
    "summaries-recomputed": "correctness",
    "correctness-gate": "correctness",
    "performance-gate": "performance",
    "disposition-recorded": "integrity",
    "acceptance": "integrity",
    "expectations-committed": "provenance",
    "package-at-commit": "provenance",
}
"""Every law with the group that it belongs to."""
