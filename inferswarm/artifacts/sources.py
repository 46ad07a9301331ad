"""From whom bytes may come, and by which policy: the origin, or a peer, each by its id and where it answers."""

from __future__ import annotations

from typing import Final, Literal, get_args

from inferswarm.documents import Document
from inferswarm.errors import SpecError

ORIGIN: Final = "origin"
"""The id of the origin; every other source is a Node, by its id."""
SourcePolicy = Literal[
    "PREFER_LOCAL_VERIFIED", "REQUIRE_LOCAL_VERIFIED", "PREFER_REMOTE_AUTHORIZED", "REQUIRE_REMOTE_AUTHORIZED"
]
"""PREFER takes the other kind where its own has nothing, REQUIRE refuses then. Local: verified on the participant's
Node. Remote: an authorized peer or the origin; who prefers it fetches again what is there, to try paths."""
SOURCE_POLICIES: Final[tuple[SourcePolicy, ...]] = get_args(SourcePolicy)
USUAL_POLICY: Final[SourcePolicy] = "PREFER_LOCAL_VERIFIED"


def check_source_policy(name: str) -> SourcePolicy:
    """Return the policy of a name. Raises SpecError with the names that there are for another one."""
    for policy in SOURCE_POLICIES:
        if name == policy:
            return policy
    raise SpecError("source_policy", name, f"one of {', '.join(SOURCE_POLICIES)}")


def is_remote_first(policy: SourcePolicy) -> bool:
    """Return whether a policy fetches what is verified on the Node already."""
    return policy in ("PREFER_REMOTE_AUTHORIZED", "REQUIRE_REMOTE_AUTHORIZED")


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
