"""The abstract planning problem: what a strategy declares legal, in opaque words.

The planner knows units of work in a chain, the states they need, how many bytes those take in each
representation, and where the chain may be cut. What the units *are* is the strategy's business. Sizes are bytes.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from inferswarm.documents import Document
from inferswarm.errors import SpecError

Count = Annotated[int, msgspec.Meta(ge=0)]


class RepresentationBytes(Document, frozen=True):
    """How many bytes something takes in one representation."""

    representation: str
    bytes: Count


def bytes_in(sizes: tuple[RepresentationBytes, ...], representation: str) -> int:
    """Return the size in `representation`. Raises SpecError when the strategy did not state one."""
    for size in sizes:
        if size.representation == representation:
            return size.bytes
    raise SpecError("representation", representation, f"one of {[size.representation for size in sizes]}")


class StateUnit(Document, frozen=True, kw_only=True):
    """One immutable state: identity apart from place and bytes.

    Units of one participant that share it share one materialization; each participant has its own.
    """

    id: str
    sizes: tuple[RepresentationBytes, ...]


class ExecutionUnit(Document, frozen=True, kw_only=True):
    """One piece of work of the chain. Units of one `cost_class` cost the same on the same Compute Unit."""

    id: str
    cost_class: str
    states: tuple[str, ...]
    mutable_bytes_per_position: tuple[RepresentationBytes, ...] = ()
    """Mutable state that grows with each position of a session (0 when none is declared)."""
    only_last_position: bool = False
    """The unit works on a session's newest position only, however many positions a step carries."""
    opens_requests: bool | msgspec.UnsetType = msgspec.UNSET
    """Each request takes its Compute Unit some time once, so that it has no price without a curve of that. Left out,
    and not written: nobody says so."""


class Boundary(Document, frozen=True, kw_only=True):
    """The place between unit `index` and unit `index + 1`."""

    legal: bool
    payload_bytes_per_position: tuple[RepresentationBytes, ...]


class Implementation(Document, frozen=True, kw_only=True):
    """One legal way to execute a participant's units: primitive, representation, tags a Compute Unit must have.

    A plan uses one implementation throughout, or, where a mixture allows it, another one for each participant.
    """

    primitive: str
    representation: str
    required_capabilities: tuple[str, ...] = ()


class Mixture(Document, frozen=True, kw_only=True):
    """Implementations of one primitive that the participants of one plan may choose among, each for itself.

    Between two participants the payload travels in `payload_representation`, whatever the two compute in.
    """

    name: str
    """What a plan that mixes says in place of its representation, such as `one+other`."""
    primitive: str
    representations: tuple[str, ...]
    payload_representation: str


class TransientTerm(Document, frozen=True, kw_only=True):
    """Short-lived memory that a participant needs beside its states, at its peak.

    `peak = fixed + per_step_position × chunk_positions`, once per participant that holds a unit of one of
    `cost_classes` (empty: every participant).
    """

    name: str
    representation: str
    cost_classes: tuple[str, ...] = ()
    fixed_bytes: Count = 0
    bytes_per_step_position: Count = 0


class PlanningProblem(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.problem/1"):
    """A chain of units with legal cuts. `boundaries` has one entry fewer than `units`."""

    id: str
    strategy: str
    units: tuple[ExecutionUnit, ...]
    states: tuple[StateUnit, ...]
    boundaries: tuple[Boundary, ...]
    feedback_bytes: Count
    """Payload from the last participant back to the first, once for each generated position."""
    implementations: tuple[Implementation, ...]
    mixtures: tuple[Mixture, ...] | msgspec.UnsetType = msgspec.UNSET
    """Which implementations one plan may mix. Left out, and not written: none."""
    transients: tuple[TransientTerm, ...]
    max_positions: Count
    """The longest session that the strategy supports."""
    chunk_positions: Count
    """How many positions one step carries at most; the first pass over a prompt uses this grid."""
    safe_boundary: Literal["committed-position"] = "committed-position"
    recovery: Literal["replay-recorded-partition"] = "replay-recorded-partition"
    comparator: str

    def __post_init__(self) -> None:
        """Raise ValueError when the parts do not fit together."""
        super().__post_init__()
        if not self.units:
            raise ValueError("a problem needs at least one unit")
        if len(self.boundaries) != len(self.units) - 1:
            raise ValueError(
                f"{len(self.units)} units need {len(self.units) - 1} boundaries, not {len(self.boundaries)}"
            )
        if len({unit.id for unit in self.units}) != len(self.units):
            raise ValueError("unit ids repeat")
        known = {state.id for state in self.states}
        if len(known) != len(self.states):
            raise ValueError("state ids repeat")
        for unit in self.units:
            if missing := set(unit.states) - known:
                raise ValueError(f"unit {unit.id} needs undeclared states {sorted(missing)}")
        if not self.implementations:
            raise ValueError("a problem needs at least one implementation")
        if self.chunk_positions < 1:
            raise ValueError("chunk_positions must be at least 1")


class Throughput(Document, frozen=True, kw_only=True, tag_field="kind", tag="throughput"):
    """The objective of many sessions at once: as many tokens per second together as possible.

    A workload without an objective asks for the least time of one request.
    """

    max_inter_token_seconds: float | None = None
    """A session may wait no longer than this from one token to the next, with all sessions at work."""
    max_first_token_seconds: float | None = None
    """No longer than this to the first token of a request that is alone: waiting for others is not foretold."""


class Mix(Document, frozen=True, kw_only=True, tag_field="kind", tag="mix"):
    """The objective that weighs one request's time against many sessions' throughput; both count in seconds.

    value = request_weight × the time of one request alone
          + (1 - request_weight) × output tokens / (tokens per second of all sessions together)

    The second addend is how long the swarm is occupied for one request when `Workload.concurrency` of them are at
    work. `request_weight` 1 is the least request time, 0 the greatest throughput.
    """

    request_weight: float
    max_inter_token_seconds: float | None = None
    """As for `Throughput`."""
    max_first_token_seconds: float | None = None
    """As for `Throughput`."""


class Workload(Document, frozen=True, kw_only=True):
    """What the plan is for. Counts of tokens and of sessions at once."""

    prompt_tokens: int = 256
    output_tokens: int = 128
    concurrency: int = 1
    objective: Throughput | Mix | msgspec.UnsetType = msgspec.UNSET
    """Left out: the least request time. It is not written then, so such a workload's digest does not know of it."""

    def __post_init__(self) -> None:
        """Raise SpecError for counts and for an objective that make no workload."""
        super().__post_init__()
        for field in ("prompt_tokens", "output_tokens", "concurrency"):
            if getattr(self, field) < 1:
                raise SpecError(f"workload {field}", getattr(self, field), "at least 1")
        for field in ("max_inter_token_seconds", "max_first_token_seconds"):
            limit = getattr(self, field)
            if limit is not None and limit <= 0:
                raise SpecError(f"workload objective {field}", limit, "more than 0")
        if isinstance(self.objective, Mix) and not 0 <= self.objective.request_weight <= 1:
            raise SpecError("workload objective request_weight", self.objective.request_weight, "from 0 to 1")

    @property
    def throughput(self) -> Throughput | None:
        """The objective, when it is throughput alone; None when a request's time is it, or counts in it."""
        return self.objective if isinstance(self.objective, Throughput) else None

    @property
    def max_inter_token_seconds(self) -> float | None:
        """How long a session may wait from one token to the next; None without a limit, as for one request."""
        return None if isinstance(self.objective, msgspec.UnsetType) else self.objective.max_inter_token_seconds

    @property
    def max_first_token_seconds(self) -> float | None:
        """How long a request that is alone may wait for its first token; None without a limit in the objective."""
        return None if isinstance(self.objective, msgspec.UnsetType) else self.objective.max_first_token_seconds

    @property
    def positions(self) -> int:
        """Positions that one session occupies at its end."""
        return self.prompt_tokens + self.output_tokens


class Reservation(Document, frozen=True):
    """Bytes of one Memory Resource that stay free for the operator, beside what is reserved there already."""

    node: str
    """Name or id of a Node with one Memory Resource, `NODE/KIND` for its only one of a kind, or that one's own id."""
    bytes: Count


class Policy(Document, frozen=True, kw_only=True):
    """What the operator demands. Hard constraints remove plans; nothing here makes one technically infeasible.

    Fields that are left out are not written: the digest of a policy that demands none of them does not know of them.
    """

    representations: tuple[str, ...] = ()
    """Only these (empty: any that the strategy declares legal)."""
    excluded_nodes: tuple[str, ...] = ()
    """Names or ids of Nodes that may not be used."""
    pinned_nodes: tuple[str, ...] = ()
    """Names or ids of the Nodes to use, in order; recorded as an override."""
    pinned_cuts: tuple[int, ...] = ()
    """Cut after these unit indexes; recorded as an override. Needs `pinned_nodes`."""
    max_participants: int | None = None
    min_tokens_per_second: float | None = None
    """Of one session that is alone."""
    mix_representations: bool | msgspec.UnsetType = msgspec.UNSET
    """One plan may use another representation for each participant, where the problem declares such a mixture."""
    approved_nodes: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Names or ids of Nodes; no other one may be used."""
    approved_compute_units: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Ids of Compute Units; no other one may be used."""
    excluded_compute_units: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Ids of Compute Units that may not be used."""
    reservations: tuple[Reservation, ...] | msgspec.UnsetType = msgspec.UNSET
    """What stays free beside what is measured; several for one Memory Resource add up."""
    max_first_token_seconds: float | msgspec.UnsetType = msgspec.UNSET
    """Of a request that is alone, as predicted."""
    max_request_seconds: float | msgspec.UnsetType = msgspec.UNSET
    """Of a request that is alone, as predicted."""
    approved_machines: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Ids of machines (`Node.host_id`, which virtual Nodes share); Nodes elsewhere may not be used."""
    max_machines: int | msgspec.UnsetType = msgspec.UNSET
    """A plan's Nodes may be on so many machines at most."""
    excluded_link_kinds: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """No path may go over a Link or a segment of these kinds, such as `wireless`."""
    excluded_segments: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Names or ids of segments that no path may go over."""
    bit_exact_required: bool | msgspec.UnsetType = msgspec.UNSET
    """Only what an accepted record says to be bit-exact; without one there is no plan. See `qualification`."""

    def __post_init__(self) -> None:
        """Raise SpecError for numbers that demand what cannot be."""
        super().__post_init__()
        for field in ("max_participants", "max_machines"):
            number = getattr(self, field)
            if number is not None and number is not msgspec.UNSET and number < 1:
                raise SpecError(f"policy {field}", number, "at least 1")
        for field in ("min_tokens_per_second", "max_first_token_seconds", "max_request_seconds"):
            number = getattr(self, field)
            if number is not None and number is not msgspec.UNSET and number <= 0:
                raise SpecError(f"policy {field}", number, "more than 0")
