"""Claims and whether they held. A claim that was never checked has not held."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Check(NamedTuple):
    """One claim of the demonstration with what was seen."""

    claim: str
    held: bool
    seen: str


CLAIMS = (
    "no single Node can hold the model",
    "the enforced limit stops the single-Node plan",
    "the Coordinator has no torch",
    "every stage computed prompt + generated - 1 positions",
    "tokens and logits equal the unsplit execution, bit for bit",
    "every Node stayed inside its envelope",
    "each stage read exactly the bytes that it needs",
    "no state moved after materialization",
)
"""Everything that must be checked for the demonstration to have succeeded."""


class Checklist:
    """Collects checks and knows which are missing."""

    def __init__(self, show: Callable[[str], None]) -> None:
        """`show` prints a line."""
        self._show = show
        self._checks: dict[str, Check] = {}

    def add(self, claim: str, held: bool, seen: str) -> None:
        """Record a check of one of CLAIMS, and show it."""
        assert claim in CLAIMS, claim
        self._checks[claim] = Check(claim, held, seen)
        self._show(f"  [{'held' if held else 'FAILED'}] {claim}: {seen}")

    @property
    def checks(self) -> tuple[Check, ...]:
        """Return what was checked, in order."""
        return tuple(self._checks.values())

    @property
    def missing(self) -> tuple[str, ...]:
        """Return the claims that were never checked."""
        return tuple(claim for claim in CLAIMS if claim not in self._checks)

    @property
    def all_held(self) -> bool:
        """Return whether every claim was checked and held."""
        return not self.missing and all(check.held for check in self._checks.values())
