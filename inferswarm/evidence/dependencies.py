"""What each kind of observation depends on, as data: a change makes stale what depends on it and nothing else.

A dependency is a fact about the resource that was measured (its driver, its slot, its thread count). An *asked* key
is part of the question that a record answers (the representation, the model's shape): another value there is another
question, and kinds of observation that do not list the key have no part in it. A kind that is not declared has no
currency: nothing is known of what would make it stale.

Facts are compared by their text. `kinds` limits a dependency to subjects of those kinds, `backends` to records whose
context names one of those backends: a CPU has no driver, and what torch is does not concern a path.
"""

from __future__ import annotations

from typing import Literal

from inferswarm.documents import Document
from inferswarm.resources.quantities import READ_BANDWIDTH, READ_BANDWIDTH_PROTOCOL

SubjectKind = Literal["cpu", "cuda", "hip", "xpu", "mps", "ram", "vram", "disk", "node", "path", "loopback"]
"""What a record is about; a path is a `loopback` when nothing but one computer lies between its Nodes."""
Better = Literal["lower", "higher"]

ACCELERATORS: tuple[SubjectKind, ...] = ("cuda", "hip", "xpu", "mps")
DAY_SECONDS = 86_400.0


class Dependency(Document, frozen=True, kw_only=True):
    """One fact that a value depends on; empty `kinds` or `backends` mean all."""

    key: str
    kinds: tuple[SubjectKind, ...] = ()
    backends: tuple[str, ...] = ()

    def concerns(self, kind: SubjectKind, backend: str | None) -> bool:
        """Whether it matters for a subject of this kind and a record of this backend (None: it names none)."""
        return (not self.kinds or kind in self.kinds) and (not self.backends or backend in self.backends)


class MetricDependencies(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.dependencies/1"):
    """What observations of one metric depend on, how long they hold, and how they are measured again."""

    metric: str
    depends_on: tuple[Dependency, ...]
    asked: tuple[str, ...]
    """Keys of the question: compared where the asker names them."""
    protocols: tuple[str, ...]
    """Protocols, with their versions, whose values may be used together."""
    max_age_seconds: float
    better: Better
    remeasure: str
    """The measurement that gives a current value, for people."""

    def __post_init__(self) -> None:
        """Refuse what would never hold, or hold forever."""
        super().__post_init__()
        if not self.metric or not self.protocols or not self.remeasure:
            raise ValueError("a kind of observation needs a metric, a protocol and a way to measure it again")
        if self.max_age_seconds <= 0:
            raise ValueError(f"{self.metric}: its largest age is {self.max_age_seconds} s, needed more than 0")
        keys = [item.key for item in self.depends_on]
        if len(set(keys)) < len(keys) or set(keys) & set(self.asked):
            raise ValueError(f"{self.metric}: a key is given twice among {sorted([*keys, *self.asked])}")

    def keys_for(self, kind: SubjectKind, backend: str | None) -> tuple[str, ...]:
        """Return the facts that a record of this backend about a subject of this kind depends on, in order."""
        return tuple(item.key for item in self.depends_on if item.concerns(kind, backend))


def _on(*keys: str, kinds: tuple[SubjectKind, ...] = (), backends: tuple[str, ...] = ()) -> tuple[Dependency, ...]:
    return tuple(Dependency(key=key, kinds=kinds, backends=backends) for key in keys)


_LIBRARIES = (
    *_on("torch", backends=("torch", "transformers")),
    *_on("transformers", backends=("transformers",)),
)
_CPU_EXECUTION = _on("cpu", "isa", "threads", "numa.binding", "kernel", kinds=("cpu",))
_ACCELERATOR_EXECUTION = _on("driver", "clock.policy", "power.cap", kinds=ACCELERATORS)
_SLOT = _on("pcie.slot", "pcie.generation", "pcie.width", kinds=ACCELERATORS)
_MODEL_WORK = (
    *("backend", "representation", "primitive", "cost.class", "phase", "model.shape", "model.revision"),
    "pause.seconds",
)
_COST_CLASSES = "measure the model's cost classes on this Compute Unit"

DEPENDENCIES: tuple[MetricDependencies, ...] = (
    MetricDependencies(
        metric="unit-seconds",
        depends_on=(*_CPU_EXECUTION, *_ACCELERATOR_EXECUTION, *_LIBRARIES),
        asked=_MODEL_WORK,
        protocols=("cost-classes/2",),
        max_age_seconds=30 * DAY_SECONDS,
        better="lower",
        remeasure=_COST_CLASSES,
    ),
    MetricDependencies(
        metric="step-overhead-seconds",  # bytes go in and out, so the slot counts
        depends_on=(*_CPU_EXECUTION, *_ACCELERATOR_EXECUTION, *_SLOT, *_LIBRARIES, *_on("python")),
        asked=_MODEL_WORK,
        protocols=("cost-classes/2",),
        max_age_seconds=30 * DAY_SECONDS,
        better="lower",
        remeasure=_COST_CLASSES,
    ),
    MetricDependencies(
        metric="step-transient-bytes",
        depends_on=(*_on("isa", "threads", kinds=("cpu",)), *_on("driver", kinds=ACCELERATORS), *_LIBRARIES),
        asked=_MODEL_WORK,
        protocols=("cost-classes/2",),
        max_age_seconds=90 * DAY_SECONDS,
        better="lower",
        remeasure=_COST_CLASSES,
    ),
    MetricDependencies(
        metric="runtime-base-bytes",
        depends_on=_on("threads", "torch", "python", "libc", "kernel", "mechanism"),
        asked=("backend",),
        protocols=("runtime-base-bytes/1",),
        max_age_seconds=90 * DAY_SECONDS,
        better="lower",
        remeasure="start an empty stage on this Node and read what its memory mechanism charges",
    ),
    MetricDependencies(
        metric="further-stage-bytes",
        depends_on=_on("threads", "torch", "python", "libc", "kernel", "mechanism"),
        asked=("backend",),
        protocols=("further-stage-bytes/1",),
        max_age_seconds=90 * DAY_SECONDS,
        better="lower",
        remeasure="start one more empty stage on this Node and read what its memory mechanism charges for it",
    ),
    MetricDependencies(
        metric=READ_BANDWIDTH,
        depends_on=_on("cpu", "numa.binding", "kernel"),
        asked=("set.bytes", "threads"),
        protocols=(READ_BANDWIDTH_PROTOCOL,),
        max_age_seconds=90 * DAY_SECONDS,
        better="higher",
        remeasure="read this memory with so many threads",
    ),
    MetricDependencies(
        metric="multiply-rate",
        depends_on=(*_CPU_EXECUTION, *_ACCELERATOR_EXECUTION, *_LIBRARIES),
        asked=("backend", "representation", "shape"),
        protocols=("multiply-rate/1",),
        max_age_seconds=90 * DAY_SECONDS,
        better="higher",
        remeasure="multiply matrices on this Compute Unit",
    ),
    MetricDependencies(
        metric="copy-seconds",  # the slot's matter; what else acts on it is seen again within the age
        depends_on=(*_SLOT, *_on("numa.binding")),
        asked=("direction", "payload.bytes", "pinned"),
        protocols=("copy-seconds/1",),
        max_age_seconds=7 * DAY_SECONDS,
        better="lower",
        remeasure="copy between this accelerator and the RAM of its Node",
    ),
    *(
        MetricDependencies(
            metric=metric,
            depends_on=_on("cpu", "kernel", "python"),
            asked=(),
            protocols=("null-requests/1",),
            max_age_seconds=30 * DAY_SECONDS,
            better="lower",
            remeasure="answer requests of the null backend on this Node",
        )
        for metric in ("request-opening-seconds", "token-serving-seconds")
    ),
    MetricDependencies(
        metric="disk-read-bandwidth",
        depends_on=_on("disk", "filesystem", "kernel"),
        asked=("block.bytes", "cached"),
        protocols=("disk-read-bandwidth/1",),
        max_age_seconds=90 * DAY_SECONDS,
        better="higher",
        remeasure="read a file of the artifact store",
    ),
    MetricDependencies(
        metric="message-seconds",
        depends_on=(
            *_on("link.kind", "addresses", "mtu"),
            *_on("link.rate", kinds=("path",)),
            *_on("cpu", "kernel", kinds=("loopback",)),  # both Nodes are on one computer
        ),
        asked=("transport", "payload.bytes", "pause.seconds"),
        protocols=("message-seconds/3",),
        max_age_seconds=7 * DAY_SECONDS,
        better="lower",
        remeasure="send messages over this path",
    ),
    MetricDependencies(
        metric="path-unreached",  # that it was tried and how it failed; what stood in the way may be gone tomorrow
        depends_on=(*_on("link.kind", "addresses", "mtu"), *_on("link.rate", kinds=("path",))),
        asked=("transport",),
        protocols=("path-unreached/1",),
        max_age_seconds=DAY_SECONDS,
        better="lower",
        remeasure="connect over this path again",
    ),
)
"""The kinds of observation that are known here. Ages are how long a value may be used without being seen again."""


def dependencies_of(
    metric: str, declared: tuple[MetricDependencies, ...] = DEPENDENCIES
) -> MetricDependencies | None:
    """Return what observations of a metric depend on, or None when nobody declared it."""
    return next((item for item in declared if item.metric == metric), None)
