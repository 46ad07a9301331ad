"""One run before its judges: its records, where the ledger has it, and what stood in the ledger before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from inferswarm.campaigns.bundle import Run
from inferswarm.campaigns.layout import FROZEN_FILES, REQUEST
from inferswarm.campaigns.ledger import Chain
from inferswarm.campaigns.records import LedgerEntry
from inferswarm.campaigns.standing import GivenWaiver


class Case(NamedTuple):
    """What the laws of a run look at."""

    run: Run
    chain: Chain
    requested: tuple[LedgerEntry, ...]
    """The ledger's lines that say that this run was requested; there must be one."""
    finished: tuple[LedgerEntry, ...]
    """Those that say that it was finished; one, or none where nobody could say so any more."""
    waivers: tuple[GivenWaiver, ...]
    finishing_at: int | None
    """The time that the parent is about to write as the run's end; None for whoever verifies later."""

    @property
    def before(self) -> tuple[LedgerEntry, ...]:
        """Return the lines before the run's request."""
        return self.chain.entries[: self.requested[0].sequence] if self.requested else ()

    @property
    def was_started(self) -> bool:
        """Return whether a process was started for the run, as far as the parent said."""
        outcome = self.run.outcome
        return outcome is None or outcome.end not in ("blocked", "not-started")

    @property
    def holds_only_what_was_frozen(self) -> bool:
        """Return whether the directory is that of a run whose parent ended before it could say a word of it."""
        return set(self.run.bundle.files) <= {*FROZEN_FILES, REQUEST} and not self.run.bundle.odd


def make_case(run: Run, chain: Chain, waivers: Sequence[GivenWaiver], finishing_at: int | None = None) -> Case:
    """Find a run's lines in the ledger. A line is of this run when it names it, whatever else it says."""
    lines = [entry for entry in chain.entries if entry.run_id == run.bundle.run_id]
    return Case(
        run=run,
        chain=chain,
        requested=tuple(entry for entry in lines if entry.kind == "requested"),
        finished=tuple(entry for entry in lines if entry.kind == "finished"),
        waivers=tuple(waivers),
        finishing_at=finishing_at,
    )
