"""How documents are put into words that people read: units, memory, times, names. Pure functions of documents."""

from __future__ import annotations

import re
from itertools import groupby

from inferswarm.planner.plan import ExecutionPlan, Interval, MemoryAccount, Outcome
from inferswarm.resources.types import ComputeUnit, Fact, MemoryResource, Node
from inferswarm.units import format_bytes, format_seconds

_NUMBERED = re.compile(r"(.+)\.(\d+)")
_OUTCOMES: dict[Outcome, str] = {
    "SELECTED": "plan selected",
    "NO_FEASIBLE_PLAN": "no feasible plan",
    "NO_AUTOMATIC_SELECTION_INSUFFICIENT_EVIDENCE": "no selection: evidence is missing",
}
_KINDS = {"cpu": "CPU", "cuda": "CUDA", "hip": "HIP", "xpu": "XPU", "mps": "MPS", "ram": "RAM", "vram": "VRAM"}


def describe_units(unit_ids: tuple[str, ...]) -> str:
    """Name a run of units briefly: numbered neighbors become a range.

    >>> describe_units(("embedding", "block.0", "block.1", "block.2", "block.7", "head"))
    'embedding + blocks 0–2 + block 7 + head'
    """
    parsed = [
        (match.group(1), int(match.group(2))) if (match := _NUMBERED.fullmatch(u)) else (u, -1) for u in unit_ids
    ]
    parts: list[str] = []
    # Neighbors with one prefix and consecutive numbers have the same difference between number and place.
    for (prefix, _), group in groupby(enumerate(parsed), key=lambda item: (item[1][0], item[1][1] - item[0])):
        numbers = [number for _, (_, number) in group]
        if numbers[0] < 0:
            parts.append(prefix)
        elif len(numbers) == 1:
            parts.append(f"{prefix} {numbers[0]}")
        else:
            parts.append(f"{prefix}s {numbers[0]}–{numbers[-1]}")
    return " + ".join(parts) if parts else "nothing"


def describe_outcome(outcome: Outcome) -> str:
    """Say in words what a decision came to."""
    return _OUTCOMES[outcome]


def describe_kind(kind: str) -> str:
    """Write the kind of a Compute Unit or Memory Resource as people do (`cpu` is CPU)."""
    return _KINDS.get(kind, kind)


def describe_compute_unit(unit: ComputeUnit) -> str:
    """Say what a Compute Unit is: kind and threads."""
    text = f"{describe_kind(unit.kind)} · {count(unit.threads, 'thread')}"
    return text if unit.available else f"{text} · not available"


def describe_memory_resource(memory: MemoryResource) -> str:
    """Say what a Memory Resource is: kind, capacity, reservation; an unknown is called unknown."""
    kind = describe_kind(memory.kind)
    return f"{kind} {bytes_fact(memory.capacity_bytes)} · {bytes_fact(memory.reserved_bytes)} reserved"


def describe_node(node: Node) -> str:
    """Say what a Node is and where: on a computer of its own, or virtual on one that it shares."""
    kind = "virtual Node" if node.virtual else "Node"
    return f"{kind} on {node.host_id if node.host_id.startswith('host') else f'host {node.host_id}'}"


def bytes_fact(fact: Fact[int]) -> str:
    """Write a fact in bytes, or `unknown`."""
    return "unknown" if fact.value is None else format_bytes(fact.value)


def bits_fact(fact: Fact[int]) -> str:
    """Write a fact in bits per second with decimal prefixes, or `unknown`."""
    if fact.value is None:
        return "unknown"
    for suffix, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if fact.value >= size:
            return f"{fact.value / size:.3g} {suffix}"
    return f"{fact.value} bit/s"


def optional_bytes(number: int | None) -> str:
    """Write a number of bytes, or `unknown`."""
    return "unknown" if number is None else format_bytes(number)


def describe_memory(account: MemoryAccount) -> str:
    """Say how much of a participant's envelope its peak takes."""
    return f"{format_bytes(account.needed_bytes)} of {optional_bytes(account.available_bytes)}"


def seconds_interval(interval: Interval) -> str:
    """Write a predicted duration with its bounds."""
    return f"{format_seconds(interval.point)} ({format_seconds(interval.low)} – {format_seconds(interval.high)})"


def rate_interval(interval: Interval) -> str:
    """Write a predicted number of tokens per second with its bounds."""
    return f"{format_rate(interval.point)} tok/s ({format_rate(interval.low)} – {format_rate(interval.high)})"


def format_rate(tokens_per_second: float) -> str:
    """Write a number of tokens per second with about three significant digits."""
    digits = 0 if abs(tokens_per_second) >= 100 else 1 if abs(tokens_per_second) >= 10 else 2
    return f"{tokens_per_second:,.{digits}f}"


def count(number: int, noun: str) -> str:
    """Write a counted noun.

    >>> count(1, "thread"), count(2, "thread")
    ('1 thread', '2 threads')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def describe_plan(plan: ExecutionPlan) -> str:
    """Name a plan in one line: participants, representation, workload."""
    load = plan.workload
    sessions = "" if load.concurrency == 1 else f" · {load.concurrency} sessions at once"
    return (
        f"{count(len(plan.placements), 'participant')} · {plan.representation} · "
        f"{load.prompt_tokens} prompt + {load.output_tokens} output tokens{sessions}"
    )


def describe_prediction(plan: ExecutionPlan) -> str:
    """Say what the plan is expected to do, or that it could not be priced."""
    if plan.prediction is None:
        return "no prediction: evidence is missing"
    rate = rate_interval(plan.prediction.decode_rate)
    return f"first token after {seconds_interval(plan.prediction.ttft)} · {rate}"


def short_digest(value: str) -> str:
    """Shorten a digest for people: algorithm and twelve digits."""
    algorithm, colon, digits = value.partition(":")
    return f"{algorithm}:{digits[:12]}" if colon else value[:12]


def term_seconds(plan: ExecutionPlan, subject: str, what: str) -> float | None:
    """Return the predicted seconds of one addend over the whole request, or None when it is not predicted."""
    terms = () if plan.prediction is None else plan.prediction.terms
    return next((term.seconds for term in terms if term.subject == subject and term.what == what), None)


def step_seconds(plan: ExecutionPlan, participant: str) -> float | None:
    """Return the predicted seconds of one decode step of a participant, or None when it is not predicted."""
    return _per_later_token(plan, term_seconds(plan, participant, "step"))


def feedback_seconds(plan: ExecutionPlan) -> float | None:
    """Return the predicted seconds of one way back to the first participant, or None when it is not predicted."""
    terms = () if plan.prediction is None else plan.prediction.terms
    return _per_later_token(plan, next((term.seconds for term in terms if term.what == "feedback"), None))


def _per_later_token(plan: ExecutionPlan, seconds: float | None) -> float | None:
    """Divide a request's total among the tokens after the first, which are those that a step makes."""
    later = plan.workload.output_tokens - 1
    return None if seconds is None or later < 1 else seconds / later


def optional_seconds(seconds: float | None) -> str:
    """Write a duration, or `unknown`."""
    return "unknown" if seconds is None else format_seconds(seconds)
