"""Whether a machine has what an arm needs, before anything is started for it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from inferswarm.campaigns.environment import Environment
from inferswarm.campaigns.spec import Requirements
from inferswarm.errors import InferSwarmError

EXTRA_MODULES = {
    "fabric": ("zmq", "tokenizers", "fastapi"),
    "run": ("zmq", "torch", "safetensors", "gguf"),
    "lab": ("papermill", "nbclient", "ipykernel", "matplotlib"),
    "ray": ("ray",),
    "transformers": ("transformers", "accelerate"),
    "viz": ("matplotlib", "pygraphviz"),
}
"""Modules that show whether an extra is installed; nothing is imported to find out."""

FindModel = Callable[[str], object]
"""Returns where a model that is named is, or raises an error of this package that says why it cannot be had."""


def missing_modules(extra: str) -> tuple[str, ...]:
    """Return the modules of an extra that are not installed."""
    return tuple(name for name in EXTRA_MODULES[extra] if importlib.util.find_spec(name) is None)


def unmet_requirements(needs: Requirements, there: Environment, find_model: FindModel) -> tuple[str, ...]:
    """Return what a machine lacks, each with what is needed and what is there; what is unknown is lacking."""
    found = []
    cpus = there.cpu.usable_cpus
    if cpus.value is None or cpus.value < needs.cpus:
        found.append(f"needs {needs.cpus} CPUs, has {_shown(cpus.value, cpus.detail)}")
    facts = [there.ram_available_bytes, *([there.memory_limit_bytes] if there.memory_limit_bytes else [])]
    for fact in facts:
        if needs.memory_bytes and (fact.value is None or fact.value < needs.memory_bytes):
            found.append(f"needs {needs.memory_bytes:,} B of memory, has {_shown(fact.value, fact.detail)}")
    for extra in needs.extras:
        if missing := missing_modules(extra):
            found.append(f"needs the extra {extra!r} (pip install 'inferswarm[{extra}]'), lacks {', '.join(missing)}")
    for name in needs.files:
        try:
            find_model(name)
        except InferSwarmError as error:
            found.append(f"needs the model {name!r}: {error}")
    return tuple(found)


def _shown(value: int | None, detail: str) -> str:
    return f"an unknown number ({detail})" if value is None else f"{value:,}"
