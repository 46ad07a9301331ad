"""Records, runs and facts for tests of what is kept and concluded."""

from __future__ import annotations

import random

from inferswarm.evidence.baselines import Baseline, accept_baseline
from inferswarm.evidence.events import EventKind, HealthEvent, Scope
from inferswarm.evidence.facts import FactTable, SubjectFacts
from inferswarm.evidence.types import Observation, make_context
from inferswarm.resources.types import NamedFact, observed

SECOND = 10**9
DAY = 86_400 * SECOND
NOW = 1_700_000_000 * SECOND
CUDA_FACTS = {
    "driver": "550.1",
    "clock.policy": "default",
    "power.cap": "170 W",
    "pcie.slot": "0000:03:00.0",
    "pcie.generation": "3",
    "pcie.width": "16",
    "torch": "2.13.0",
    "python": "3.11.7",
    "numa.binding": "0",
}
CPU_FACTS = {
    "cpu": "Test CPU",
    "isa": "avx2,avx512",
    "threads": "4",
    "numa.binding": "0",
    "kernel": "6.1",
    "torch": "2.13.0",
    "python": "3.11.7",
}
NODE_FACTS = CPU_FACTS | {"libc": "glibc 2.36", "mechanism": "cgroup-v2"}
PATH_FACTS = {"link.kind": "ethernet", "link.rate": "1000000000", "addresses": "10.0.0.1>10.0.0.2", "mtu": "1500"}
SUBJECTS = {
    "cpu-1": ("cpu", CPU_FACTS),
    "gpu-1": ("cuda", CUDA_FACTS),
    "node-1": ("node", NODE_FACTS),
    "path:node-1->node-2": ("path", PATH_FACTS),
}


def make_table(changes: dict[tuple[str, str], str | None] | None = None, without: str = "") -> FactTable:
    """Return the facts above, with some changed (None: not stated), and perhaps without one subject."""
    subjects = []
    for subject, (kind, facts) in sorted(SUBJECTS.items()):
        values = dict(facts)
        for (changed, key), value in (changes or {}).items():
            if changed == subject and value is None:
                del values[key]
            elif changed == subject and value is not None:
                values[key] = value
        named = tuple(NamedFact(name=name, fact=observed(values[name], "test")) for name in sorted(values))
        if subject != without:
            subjects.append(SubjectFacts(subject=subject, kind=kind, facts=named))  # type: ignore[arg-type]
    return FactTable(subjects=tuple(subjects))


def noisy(center: float, count: int = 24, seed: int = 0, spread: float = 0.02) -> tuple[float, ...]:
    """Return steady samples around a center, in an order without a trend."""
    generator = random.Random(seed)
    values = [center * (1 + spread * (2 * (index + 0.5) / count - 1)) for index in range(count)]
    generator.shuffle(values)
    thirds = [sorted(values)[start::3] for start in range(3)]  # each third holds low and high ones alike
    for third in thirds:
        generator.shuffle(third)
    return tuple(value for third in thirds for value in third)


def make_record(
    subject: str = "cpu-1",
    metric: str = "unit-seconds",
    samples: tuple[float, ...] | None = None,
    *,
    at_ns: int = NOW,
    context: dict[str, str] | None = None,
    **changes: object,
) -> Observation:
    """Return a record that states every fact of its subject, and what a question about it names."""
    protocols = {
        "unit-seconds": "cost-classes/2",
        "step-overhead-seconds": "cost-classes/2",
        "message-seconds": "message-seconds/3",
    }
    asked = {
        "backend": "torch",
        "representation": "fp32",
        "cost.class": "block",
        "phase": "step",
        "model.shape": "llama/30x576",
        "model.revision": "a1b2",
        "primitive": "torch",
        "transport": "tcp",
        "payload.bytes": "4096",
        "set.bytes": "64000000",
        "direction": "to-accelerator",
        "pinned": "yes",
    }
    stated = asked | SUBJECTS[subject][1] | (context or {})
    fields: dict[str, object] = {
        "unit": "s",
        "protocol": protocols.get(metric, f"{metric}/1"),
        "taken_at_ns": str(at_ns),
        "producer": "test",
    } | changes
    return Observation(
        subject=subject,
        metric=metric,
        samples=noisy(1e-3) if samples is None else samples,
        context=make_context(**{key: value for key, value in stated.items() if value}),
        **fields,  # type: ignore[arg-type]
    )


def make_baseline(center: float = 1e-3, runs: int = 3, at_ns: int = NOW, **changes: object) -> Baseline:
    """Return a first version, accepted just after its runs."""
    records = [
        make_record(samples=noisy(center, seed=seed), at_ns=at_ns - (runs - seed) * SECOND) for seed in range(runs)
    ]
    fields: dict[str, object] = {
        "accepted_by": "operator",
        "accepted_at_ns": str(at_ns),
        "reason": "after installation",
    } | changes
    return accept_baseline(records, **fields)  # type: ignore[arg-type]


def make_event(
    kind: EventKind, *scopes: Scope, at_ns: int = NOW, evidence: tuple[str, ...] = ("record-1",), detail: str = ""
) -> HealthEvent:
    """Return an event that implicates these scopes."""
    implicated = tuple(sorted(set(scopes or (Scope("compute-unit", "cpu-1"),))))
    return HealthEvent(
        kind=kind, implicated=implicated, at_ns=str(at_ns), evidence_ids=evidence, detail=detail or f"saw {kind}"
    )
