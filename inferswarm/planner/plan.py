"""What the planner says: an immutable plan, or a decision that explains why there is none. Pure data."""

from __future__ import annotations

from typing import Literal

import msgspec

from inferswarm.documents import Document
from inferswarm.planner.problem import Policy, Workload

Status = Literal["TECHNICALLY_INFEASIBLE", "INTEGRITY_EXCLUDED", "POLICY_EXCLUDED", "FEASIBLE_UNRANKED", "RANKED"]
Outcome = Literal["SELECTED", "NO_FEASIBLE_PLAN", "NO_AUTOMATIC_SELECTION_INSUFFICIENT_EVIDENCE"]
ESTIMATE = "estimate from declared figures"
"""What everything says of itself that rests on figures that nobody measured."""


class Interval(Document, frozen=True):
    """A point estimate between its bounds."""

    low: float
    point: float
    high: float


class MemoryTerm(Document, frozen=True):
    """One addend of a participant's memory, in bytes."""

    name: str
    bytes: int


class MemoryAccount(Document, frozen=True, kw_only=True):
    """Peak memory of a participant on its Memory Resource, term by term. `available` excludes the reservation.

    Where further participants are on the same Memory Resource, the terms list their peaks as well.
    """

    memory_id: str
    node_name: str = ""
    capacity_bytes: int | None
    reserved_bytes: int | None
    terms: tuple[MemoryTerm, ...]

    @property
    def needed_bytes(self) -> int:
        """Sum of the terms: the peak, beside what is reserved."""
        return sum(term.bytes for term in self.terms)

    @property
    def available_bytes(self) -> int | None:
        """Capacity less reservation; None when either is unknown."""
        if self.capacity_bytes is None or self.reserved_bytes is None:
            return None
        return self.capacity_bytes - self.reserved_bytes

    @property
    def fits(self) -> bool:
        """Whether the peak fits; an unknown capacity never fits."""
        available = self.available_bytes
        return available is not None and self.needed_bytes <= available


class PlacedState(Document, frozen=True, kw_only=True):
    """One materialization: which state, in which representation, how many bytes."""

    state_id: str
    representation: str
    bytes: int


class Placement(Document, frozen=True, kw_only=True):
    """What one participant does. `first_unit` and `end_unit` are indexes into the problem's chain (end excluded)."""

    participant: str
    """`stage-0`, `stage-1`, … in the order of the route."""
    node_id: str
    node_name: str
    compute_unit_id: str
    threads: int
    first_unit: int
    end_unit: int
    unit_ids: tuple[str, ...]
    states: tuple[PlacedState, ...]
    memory: MemoryAccount
    representation: str | msgspec.UnsetType = msgspec.UNSET
    """What this participant computes in, in a plan that mixes. Left out, and not written: the plan's own."""
    states_memory_id: str | msgspec.UnsetType = msgspec.UNSET
    """The Memory Resource that holds its immutable states, where it is another than the one that it computes in."""
    states_memory: MemoryAccount | msgspec.UnsetType = msgspec.UNSET
    """The account of that one. Left out, and not written, where `memory` is the only one."""

    @property
    def accounts(self) -> tuple[MemoryAccount, ...]:
        """Every account of this participant, the nearest Memory Resource first."""
        apart = self.states_memory
        return (self.memory,) if isinstance(apart, msgspec.UnsetType) else (self.memory, apart)


class CostTerm(Document, frozen=True, kw_only=True):
    """One addend of the predicted request time, in seconds, for one participant or path."""

    subject: str
    what: Literal["first-pass", "step", "path", "feedback"]
    seconds: float


class Prediction(Document, frozen=True, kw_only=True):
    """What the plan is expected to do: seconds, and tokens per second for `decode_rate`."""

    ttft: Interval
    inter_token: Interval
    request: Interval
    decode_rate: Interval
    terms: tuple[CostTerm, ...]
    evidence_ids: tuple[str, ...]
    throughput: Interval | msgspec.UnsetType = msgspec.UNSET
    """Tokens per second of all the workload's sessions together; there when that is the objective."""
    basis: Literal["declared"] | msgspec.UnsetType = msgspec.UNSET
    """`declared` where a curve behind it is: then it is an estimate. Left out, and not written: all are measured."""

    @property
    def is_estimate(self) -> bool:
        """Whether it rests on declared figures."""
        return not isinstance(self.basis, msgspec.UnsetType)


PartOf = Literal["first-pass", "waiting", "newest-position", "waking", "step", "path", "feedback", "shared"]


class Share(Document, frozen=True, kw_only=True):
    """One addend of a figure, or one candidate for its maximum: seconds of one participant or path."""

    subject: str
    what: PartOf
    """`waiting`: the later chunks, at the pace of the slowest part. `newest-position`: work on that one only.
    `waking`: what a request's first message over a path takes longer. `shared`: paths that share a segment, or
    stages that share cores, together."""
    seconds: float
    share: float
    """Of the sum; of the figure itself where the parts are candidates for a maximum."""


class Breakdown(Document, frozen=True, kw_only=True):
    """What a plan's figures are made of, each list largest first. Point estimates in seconds.

    `ttft` and `inter_token` add up to theirs. `cadence` lists what each stage and path takes for one step of one
    session: with ever more sessions the largest alone sets how often a token comes, 1 / `cadence[0].seconds`.
    """

    ttft: tuple[Share, ...]
    inter_token: tuple[Share, ...]
    cadence: tuple[Share, ...]


class ExecutionPlan(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.plan/1"):
    """Who executes what. Immutable; its digest is its identity; a change is another plan."""

    problem_digest: str
    graph_digest: str
    primitive: str
    representation: str
    """What all participants compute in, or the name of the mixture that they choose from."""
    workload: Workload
    chunk_positions: int
    max_positions: int
    """Positions that mutable state is allocated for, per session."""
    sessions: int
    """Sessions at once that mutable state is allocated for."""
    placements: tuple[Placement, ...]
    prediction: Prediction | None
    """None for a plan that is feasible and could not be priced."""
    payload_representation: str | msgspec.UnsetType = msgspec.UNSET
    """What payloads between participants travel in, in a plan that mixes. Left out, not written: the plan's own."""

    def representation_of(self, placement: Placement) -> str:
        """Return what one participant computes in."""
        own = placement.representation
        return self.representation if isinstance(own, msgspec.UnsetType) else own


class ResourceReason(Document, frozen=True, kw_only=True):
    """Why a Compute Unit is or is not used: exactly one reason each."""

    compute_unit_id: str
    node_name: str
    used: bool
    reason: str
    kind: str | msgspec.UnsetType = msgspec.UNSET
    """The Compute Unit's kind, to name it by where its Node has no other one of that kind."""
    name: str | msgspec.UnsetType = msgspec.UNSET
    """What the Compute Unit calls itself."""


class NodeReason(Document, frozen=True, kw_only=True):
    """Why a Node has a part in the plan or none: exactly one reason each."""

    node_id: str
    node_name: str
    used: bool
    reason: str


class CandidateFamily(Document, frozen=True, kw_only=True):
    """All plans with one implementation over one set of Compute Units, and what became of them.

    `best` is the best member when one is feasible; `memory` shows, for a single-participant family or an
    infeasible one, the peak account that decided it.
    """

    representation: str
    primitive: str
    compute_unit_ids: tuple[str, ...]
    node_names: tuple[str, ...]
    status: Status
    reasons: tuple[str, ...]
    best: ExecutionPlan | None = None
    memory: tuple[MemoryAccount, ...] = ()
    request_seconds: float | None = None


class InputDigests(Document, frozen=True, kw_only=True):
    """Digests of everything that the decision was made from."""

    problem: str
    graph: str
    policy: str
    workload: str
    economics: str


class SolverReport(Document, frozen=True, kw_only=True):
    """How one implementation was searched, and what is proved.

    Values are those of the objective, in seconds: of a request, or for each token where throughput is the objective.
    """

    representation: str
    primitive: str
    method: Literal["dynamic programming", "constraint programming", "bounded heuristic"]
    why: str
    """Why this method was chosen."""
    status: Literal["OPTIMAL", "FEASIBLE", "INFEASIBLE", "UNKNOWN"]
    """OPTIMAL: proved the best that can be priced, within `rounding_seconds`. FEASIBLE: a plan and a bound.
    INFEASIBLE: proved that none is possible, allowed and priced. UNKNOWN: none found, and no proof of that."""
    value: float | None = None
    """Of the best plan found; None without one."""
    bound: float | None = None
    """Proved: no plan that can be priced has a smaller value. None where there is no plan."""
    gap: float | None = None
    """(value - bound) / value; None without a plan."""
    rounding_seconds: float = 0.0
    """How far rounded numbers may be off for one plan; `bound` is already reduced by it."""


class Decision(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.decision/1"):
    """The planner's answer, with every family's status and the proof of optimality.

    Up to six available Compute Units every set of them is a family. With more there are too many: then `families`
    holds every Compute Unit alone, and the best plan found with each implementation. Where `solvers` say UNKNOWN, the
    outcome NO_FEASIBLE_PLAN means that none was found, and the summary says so.
    """

    inputs: InputDigests
    outcome: Outcome
    summary: str
    plan: ExecutionPlan | None
    families: tuple[CandidateFamily, ...]
    resources: tuple[ResourceReason, ...]
    policy: Policy
    overrides: tuple[str, ...]
    proved_optimal: bool
    search: str
    """What was searched and how completely, in words and numbers."""
    missing_evidence: tuple[str, ...] = ()
    solvers: tuple[SolverReport, ...] = ()
    """One for each implementation that was searched."""
    bound: float | None = None
    """Proved for all implementations: no plan that can be priced has a smaller value. None without a plan."""
    gap: float | None = None
    """How far the chosen plan's value may be from the best, relative to it; None without a plan."""
    basis: Literal["declared"] | msgspec.UnsetType = msgspec.UNSET
    """`declared` where plans were compared by declared curves, on request. Left out, and not written: by measured."""
    health: str | msgspec.UnsetType = msgspec.UNSET
    """Digest of the health that closed gates. Left out, and not written, where none was given."""
    nodes: tuple[NodeReason, ...] | msgspec.UnsetType = msgspec.UNSET
    """One for each Node of the snapshot, also for one without any Compute Unit."""
    qualification: str | msgspec.UnsetType = msgspec.UNSET
    """Digest of the records of qualification. Left out, and not written, where none was given."""
    breakdown: Breakdown | msgspec.UnsetType = msgspec.UNSET
    """What the chosen plan's figures are made of; left out where no plan was chosen."""

    @property
    def is_estimate(self) -> bool:
        """Whether plans were compared by declared figures: then nothing in it is evidence."""
        return not isinstance(self.basis, msgspec.UnsetType)

    def explain(self) -> str:
        """Return the decision as plain text for a terminal: what was chosen, why, and why nothing else."""
        from inferswarm.planner.explain import explain

        return explain(self)
