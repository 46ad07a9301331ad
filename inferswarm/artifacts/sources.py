"""From whom bytes may come: the origin, or a peer, each by its stable id and where it answers."""

from __future__ import annotations

from typing import Final

from inferswarm.documents import Document

ORIGIN: Final = "origin"
"""The id of the origin; every other source is a Node, by its id."""


class Source(Document, frozen=True, order=True):
    """One source. The id says who it is; the endpoint, where it answers: both must be as they were authorized."""

    id: str
    endpoint: str

    def __post_init__(self) -> None:
        """Refuse a source without a name or a place."""
        super().__post_init__()
        if not self.id or not self.endpoint:
            raise ValueError(f"a source needs an id and an endpoint: {self.id!r} at {self.endpoint!r}")

    def __str__(self) -> str:
        """Name both."""
        return f"{self.id} at {self.endpoint}"
