"""A change of plans that was considered, as terminals and notebooks show it: what it would gain, cost, and became."""

from __future__ import annotations

import html
from typing import Literal, NamedTuple

from inferswarm.fabric.recovery_records import OVERLAPPING, TransitionMode
from inferswarm.planner import ChangeVerdict, ExecutionPlan, ProposedChange
from inferswarm.planner.resolving import describe
from inferswarm.swarm.weighing import BringingUp, join_texts
from inferswarm.units import format_seconds

Outcome = Literal["changed", "stayed", "failed", "nothing serves"]


class ConsideredChange(NamedTuple):
    """What became of the question whether to serve by another plan, with every number that decided it."""

    detail: str
    """What made somebody ask."""
    outcome: Outcome
    reasons: tuple[str, ...]
    """For `changed` why it was right; otherwise everything that spoke against it."""
    epoch: int | None = None
    """The one in force after it; None: nothing serves."""
    present: ExecutionPlan | None = None
    """The plan that served, with the prices of now."""
    proposed: ExecutionPlan | None = None
    change: ProposedChange | None = None
    bringing_up: BringingUp | None = None
    verdict: ChangeVerdict | None = None
    mode: TransitionMode | None = None
    no_room: tuple[str, ...] = ()
    """Why both plans could not be there at once."""
    seconds: float | None = None
    """What the change took, as it was measured; None where none was made."""
    acquiring_seconds: float | None = None
    """How long of that Nodes acquired; None where nobody did."""

    @property
    def changed(self) -> bool:
        """Whether another plan serves now."""
        return self.outcome == "changed"

    @property
    def arithmetic(self) -> str:
        """What the economics come to, in one line; empty where they were not asked."""
        if self.change is None or self.bringing_up is None:
            return ""
        change = self.change
        if change.reason == "recovery":
            bound = "at least " if self.bringing_up.seconds is None else ""
            return f"preparation {bound}{format_seconds(change.preparation_seconds)}, whatever it gains"
        gains = change.gain_seconds * change.remaining_requests
        return (
            f"each request {format_seconds(change.present_request_seconds)} → "
            f"{format_seconds(change.proposed_request_seconds)}, {change.remaining_requests:.4g} requests "
            f"{'gain' if gains >= 0 else 'lose'} {format_seconds(abs(gains))}, preparation "
            f"{format_seconds(change.preparation_seconds)}, confidence {change.confidence:.2f}: "
            f"{'go' if self.verdict is not None and self.verdict.go else 'stay'}"
        )

    def __repr__(self) -> str:
        """One honest line."""
        said = self.arithmetic or join_texts(self.reasons)
        return f"ConsideredChange({self.detail}: {self.outcome}; {said})"

    def __str__(self) -> str:
        """All of it, as a few lines of text."""
        lines = [f"{self.detail}: {self.outcome}" + ("" if self.epoch is None else f", epoch {self.epoch} serves")]
        for name, plan in (("served", self.present), ("proposed", self.proposed)):
            if plan is not None:
                lines.append(f"  {name + ':':<13}{describe(plan)}")
        if self.arithmetic:
            lines.append(f"  {'economics:':<13}{self.arithmetic}")
        if self.bringing_up is not None:
            lines.append(f"  {'preparation:':<13}{self.bringing_up}")
        if self.mode is not None:
            beside = "both plans at once" if self.mode is OVERLAPPING else "one plan after the other"
            lines.append(f"  {'mode:':<13}{beside}" + (f", for {join_texts(self.no_room)}" if self.no_room else ""))
        lines += [f"  {'because:':<13}{reason}" for reason in self.reasons]
        if self.seconds is not None:
            acquiring = self.acquiring_seconds
            of_them = "" if acquiring is None else f", acquiring {format_seconds(acquiring)} of them"
            lines.append(f"  {'it took:':<13}{format_seconds(self.seconds)}{of_them}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Static HTML for notebooks."""
        return f"<pre style='white-space:pre-wrap'>{html.escape(str(self))}</pre>"
