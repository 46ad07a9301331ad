"""The façade: Swarm, Model, Service. Ties the packages together; what they decide is decided elsewhere.

The names are loaded when they are first used: looking at a machine needs neither sockets nor text.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inferswarm.swarm.model import Model
    from inferswarm.swarm.service import Generation, Service
    from inferswarm.swarm.swarm import Swarm

__all__ = ["Generation", "Model", "Service", "Swarm"]

_HOMES = {"Generation": "service", "Model": "model", "Service": "service", "Swarm": "swarm"}


def __getattr__(name: str) -> Any:
    """Load a public name from its home module on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
