"""Documents as the packages below make them, for SmolLM2-135M on a few small Nodes of one host.

32 units: an embedding, 30 blocks, and a head that shares the embedding's state; bf16. Sizes follow from the model's
shape, and the plan's terms add up to its request time.
"""

from __future__ import annotations

from collections.abc import Sequence

from inferswarm.documents import digest
from inferswarm.planner.economics import Economics, PathCurve, Phase, ServiceCurve
from inferswarm.planner.plan import (
    CandidateFamily,
    CostTerm,
    Decision,
    ExecutionPlan,
    InputDigests,
    Interval,
    MemoryAccount,
    MemoryTerm,
    PlacedState,
    Placement,
    Prediction,
    ResourceReason,
)
from inferswarm.planner.problem import (
    Boundary,
    ExecutionUnit,
    Implementation,
    PlanningProblem,
    Policy,
    RepresentationBytes,
    StateUnit,
    TransientTerm,
    Workload,
)
from inferswarm.resources.types import (
    ComputeUnit,
    Link,
    MemoryResource,
    Node,
    ResourceGraph,
    declared,
    observed,
    unknown,
)

NUM_BLOCKS = 30
EMBEDDING_BYTES = 49152 * 576 * 2
BLOCK_BYTES = (2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536 + 2 * 576) * 2
KV_BYTES_PER_POSITION = 2 * 192 * 2
PAYLOAD_BYTES = 576 * 2
RESERVED_BYTES = 148_000_000
UNIT_IDS = ("embedding", *(f"block.{index}" for index in range(NUM_BLOCKS)), "head")
WORKLOAD = Workload(prompt_tokens=256, output_tokens=128)
NAMES = ("amber", "birch", "cedar", "dune", "ember", "fjord")


def _bf16(size: int) -> tuple[RepresentationBytes, ...]:
    return (RepresentationBytes("bf16", size),)


def make_problem() -> PlanningProblem:
    """Return the chain of 32 units with every cut legal."""
    kinds = ["embedding", *["block"] * NUM_BLOCKS, "head"]
    return PlanningProblem(
        id="smollm2-135m",
        strategy="dense/1",
        units=tuple(
            ExecutionUnit(
                id=unit_id,
                cost_class=kind,
                states=("embedding.weight",) if kind != "block" else (f"{unit_id}.weights",),
                mutable_bytes_per_position=_bf16(KV_BYTES_PER_POSITION) if kind == "block" else (),
                only_last_position=kind == "head",
            )
            for unit_id, kind in zip(UNIT_IDS, kinds, strict=True)
        ),
        states=(
            StateUnit(id="embedding.weight", sizes=_bf16(EMBEDDING_BYTES)),
            *(StateUnit(id=f"{unit_id}.weights", sizes=_bf16(BLOCK_BYTES)) for unit_id in UNIT_IDS[1:-1]),
        ),
        boundaries=tuple(Boundary(legal=True, payload_bytes_per_position=_bf16(PAYLOAD_BYTES)) for _ in UNIT_IDS[1:]),
        feedback_bytes=4,
        implementations=(Implementation(primitive="torch", representation="bf16"),),
        transients=(
            TransientTerm(
                name="logits",
                representation="bf16",
                cost_classes=("head",),
                bytes_per_step_position=0,
                fixed_bytes=4 * 49152,
            ),
            TransientTerm(name="scratch", representation="bf16", bytes_per_step_position=40_000),
        ),
        max_positions=2048,
        chunk_positions=64,
        comparator="dense/bitwise/1",
    )


def make_graph(
    names: Sequence[str] = NAMES[:2],
    threads: Sequence[int] = (2, 1),
    capacities: Sequence[int | None] = (380_000_000, 350_000_000),
    hosts: Sequence[str] = ("host-7f3a92c1d04b",),
) -> ResourceGraph:
    """Return Nodes with one CPU each, linked both ways; the other arguments are repeated as often as needed."""
    nodes, units, memories = [], [], []
    for index, name in enumerate(names):
        capacity = capacities[index % len(capacities)]
        nodes.append(
            Node(id=f"node-{index}", name=name, host_id=hosts[index % len(hosts)], virtual=len(hosts) < len(names))
        )
        units.append(
            ComputeUnit(
                id=f"node-{index}/cpu",
                node_id=f"node-{index}",
                kind="cpu",
                name="Xeon 8-core",
                threads=threads[index % len(threads)],
                memory_ids=(f"node-{index}/ram",),
                capabilities=("backend:torch", "representation:bf16", "isa:avx512"),
            )
        )
        memories.append(
            MemoryResource(
                id=f"node-{index}/ram",
                node_id=f"node-{index}",
                kind="ram",
                capacity_bytes=unknown("no limit could be read") if capacity is None else declared(capacity),
                reserved_bytes=observed(RESERVED_BYTES, "resident size of an empty stage"),
                enforcement="cgroup-v1",
            )
        )
    links = tuple(
        Link(
            id=f"{source.id}->{target.id}",
            source=source.id,
            target=target.id,
            kind="loopback" if source.host_id == target.host_id else "ethernet",
            nominal_bits_per_second=unknown("a loopback has no rate of its own")
            if source.host_id == target.host_id
            else observed(1_000_000_000, "/sys/class/net/eth0/speed"),
        )
        for source in nodes
        for target in nodes
        if source is not target
    )
    return ResourceGraph(
        swarm_id="swarm-sample",
        nodes=tuple(nodes),
        compute_units=tuple(units),
        memory_resources=tuple(memories),
        links=links,
    )


def make_paths(graph: ResourceGraph) -> tuple[PathCurve, ...]:
    """Return a measured path for every link of the graph."""
    return tuple(
        PathCurve(
            source=link.source, target=link.target, latency_seconds=41e-6, seconds_per_byte=4e-10, low=0.8, high=1.4
        )
        for link in graph.links
    )


def make_account(memory: MemoryResource, first: int, end: int) -> MemoryAccount:
    """Return the peak of units [first, end) on a Memory Resource."""
    ids = UNIT_IDS[first:end]
    num_blocks = sum(1 for unit_id in ids if unit_id.startswith("block"))
    tied = EMBEDDING_BYTES if {"embedding", "head"} & set(ids) else 0
    terms = [
        MemoryTerm("states", tied + num_blocks * BLOCK_BYTES),
        MemoryTerm("mutable state", num_blocks * KV_BYTES_PER_POSITION * WORKLOAD.positions),
        MemoryTerm("scratch", 64 * 40_000),
    ]
    if "head" in ids:
        terms.append(MemoryTerm("logits", 4 * 49152))
    return MemoryAccount(
        memory_id=memory.id,
        capacity_bytes=memory.capacity_bytes.value,
        reserved_bytes=memory.reserved_bytes.value,
        terms=tuple(terms),
    )


def make_plan(graph: ResourceGraph, num_participants: int = 2, priced: bool = True) -> ExecutionPlan:
    """Return a plan over the graph's first Nodes that divides the chain as evenly as it goes."""
    ends = [len(UNIT_IDS) * (index + 1) // num_participants for index in range(num_participants)]
    placements, terms = [], []
    steps = WORKLOAD.output_tokens - 1
    for index, end in enumerate(ends):
        first = ends[index - 1] if index else 0
        node, unit, memory = graph.nodes[index], graph.compute_units[index], graph.memory_resources[index]
        placements.append(
            Placement(
                participant=f"stage-{index}",
                node_id=node.id,
                node_name=node.name,
                compute_unit_id=unit.id,
                threads=unit.threads,
                first_unit=first,
                end_unit=end,
                unit_ids=UNIT_IDS[first:end],
                states=tuple(
                    PlacedState(state_id=f"{unit_id}.weights", representation="bf16", bytes=BLOCK_BYTES)
                    for unit_id in UNIT_IDS[first:end]
                ),
                memory=make_account(memory, first, end),
            )
        )
        terms.append(CostTerm(subject=f"stage-{index}", what="first-pass", seconds=0.021 * (end - first)))
        terms.append(CostTerm(subject=f"stage-{index}", what="step", seconds=0.0007 * (end - first) * steps))
        if index:
            terms.append(
                CostTerm(subject=f"stage-{index - 1} → stage-{index}", what="path", seconds=42e-6 * (steps + 4))
            )
    if num_participants > 1:
        back = f"stage-{num_participants - 1} → stage-0"
        terms.append(CostTerm(subject=back, what="feedback", seconds=41e-6 * steps))
    return ExecutionPlan(
        problem_digest=digest(make_problem()),
        graph_digest=digest(graph),
        primitive="torch",
        representation="bf16",
        workload=WORKLOAD,
        chunk_positions=64,
        max_positions=384,
        sessions=1,
        placements=tuple(placements),
        prediction=_make_prediction(tuple(terms), steps) if priced else None,
    )


def _make_prediction(terms: tuple[CostTerm, ...], steps: int) -> Prediction:
    request = sum(term.seconds for term in terms)
    inter_token = sum(term.seconds for term in terms if term.what in ("step", "feedback")) / steps
    inter_token += sum(42e-6 for term in terms if term.what == "path")
    ttft = request - inter_token * steps

    def around(point: float) -> Interval:
        return Interval(0.88 * point, point, 1.17 * point)

    return Prediction(
        ttft=around(ttft),
        inter_token=around(inter_token),
        request=around(request),
        decode_rate=Interval(1 / (1.17 * inter_token), 1 / inter_token, 1 / (0.88 * inter_token)),
        terms=terms,
        evidence_ids=("sha256:" + "ab" * 32, "sha256:" + "cd" * 32),
    )


def make_decision(graph: ResourceGraph, num_participants: int = 2, reason: str | None = None) -> Decision:
    """Return a decision that selects the plan over the first Nodes, or none when `num_participants` is 0.

    `reason` is what is said of every Node that is not used.
    """
    plan = make_plan(graph, num_participants) if num_participants else None
    used = {placement.compute_unit_id for placement in plan.placements} if plan else set()
    families = [
        CandidateFamily(
            representation="bf16",
            primitive="torch",
            compute_unit_ids=(unit.id,),
            node_names=(node.name,),
            status="TECHNICALLY_INFEASIBLE",
            reasons=(f"{node.name} ({memory.id}): peak memory: needs more than it has",),
            memory=(make_account(memory, 0, len(UNIT_IDS)),),
        )
        for node, unit, memory in zip(graph.nodes, graph.compute_units, graph.memory_resources, strict=True)
    ]
    if plan is not None and plan.prediction is not None:
        families.append(
            CandidateFamily(
                representation="bf16",
                primitive="torch",
                compute_unit_ids=tuple(sorted(used)),
                node_names=tuple(placement.node_name for placement in plan.placements),
                status="RANKED",
                reasons=("lowest expected request time",),
                best=plan,
                request_seconds=plan.prediction.request.point,
            )
        )
    return Decision(
        inputs=InputDigests(
            problem=digest(make_problem()),
            graph=digest(graph),
            policy=digest(Policy()),
            workload=digest(WORKLOAD),
            economics="sha256:" + "ef" * 32,
        ),
        outcome="SELECTED" if plan else "NO_FEASIBLE_PLAN",
        summary=f"{num_participants} participants in bf16: the only feasible family"
        if plan
        else "No Node holds the model, alone or together with the others.",
        plan=plan,
        families=tuple(families),
        resources=tuple(
            ResourceReason(
                compute_unit_id=unit.id,
                node_name=node.name,
                used=unit.id in used,
                reason="holds a part of the selected plan"
                if unit.id in used
                else reason or "the plan without it is expected to be faster",
            )
            for node, unit in zip(graph.nodes, graph.compute_units, strict=True)
        ),
        policy=Policy(),
        overrides=(),
        proved_optimal=True,
        search="3 families, 93 plans, all of them looked at",
        missing_evidence=(),
    )


def make_economics(graph: ResourceGraph) -> Economics:
    """Return measured curves for every Compute Unit and path of the graph; units grow slower one by one."""
    seconds = {"embedding": 2e-5, "block": 7e-4, "head": 4e-3}
    phases: tuple[Phase, ...] = ("first-pass", "step")
    return Economics(
        services=tuple(
            ServiceCurve(
                compute_unit_id=unit.id,
                cost_class=cost_class,
                representation="bf16",
                phase=phase,
                base_seconds=base * (1 + index / 10),
                seconds_per_position=base / 8 if phase == "first-pass" else 0.0,
                low=0.9,
                high=1.15,
                evidence_ids=("sha256:" + f"{index:x}" * 64,),
            )
            for index, unit in enumerate(graph.compute_units)
            for cost_class, base in seconds.items()
            for phase in phases
        ),
        paths=make_paths(graph),
    )
