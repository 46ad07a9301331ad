"""InferSwarm: many machines, one model.

The names below are loaded when they are first used, so that `import inferswarm` needs neither torch nor
sockets: a verifier or a planner installs the base package only.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inferswarm.planner import Policy, Workload
    from inferswarm.resources import Envelope
    from inferswarm.swarm import Model, Service, Swarm

__version__ = "0.1.0"
__all__ = ["Envelope", "Model", "Policy", "Service", "Swarm", "Workload", "__version__"]

_HOMES = {
    "Envelope": "inferswarm.resources",
    "Model": "inferswarm.swarm",
    "Policy": "inferswarm.planner",
    "Service": "inferswarm.swarm",
    "Swarm": "inferswarm.swarm",
    "Workload": "inferswarm.planner",
}


def __getattr__(name: str) -> Any:
    """Load a public name from its home module on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
