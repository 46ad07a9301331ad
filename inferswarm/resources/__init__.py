"""What exists: discovery, identity and the resource graph."""

from inferswarm.resources.types import (
    ComputeUnit,
    Envelope,
    Fact,
    Link,
    MemoryResource,
    Node,
    ResourceGraph,
    Segment,
    declared,
    observed,
    unknown,
)

__all__ = [
    "ComputeUnit",
    "Envelope",
    "Fact",
    "Link",
    "MemoryResource",
    "Node",
    "ResourceGraph",
    "Segment",
    "declared",
    "observed",
    "unknown",
]
