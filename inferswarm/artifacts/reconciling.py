"""A ledger of bytes compared with what the sources logged themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from inferswarm.artifacts.byte_ledger import ByteLedger
from inferswarm.artifacts.sources import ORIGIN
from inferswarm.artifacts.taxonomy import RECONCILIATION_MISMATCH
from inferswarm.documents import Document
from inferswarm.errors import ArtifactError


class ServedLine(Document, frozen=True, kw_only=True):
    """One answer in a source's own log: what it sent of which object, and whether all that was asked for."""

    source: str
    object: str
    """As the ledger names it: of the origin, where the object was described; of a peer, the content's digest."""
    bytes: int
    complete: bool
    taker: str = ""
    """The id of the Node that it was sent to, where the source knows who asks: a peer does, by the ticket."""
    is_look: bool = False
    """Whether it was asked for one byte only to learn the object's length and version; nobody keeps that byte."""
    generation: int | msgspec.UnsetType = msgspec.UNSET
    """Of the ticket under which it was given; UNSET where there was none, as at an origin."""

    def __post_init__(self) -> None:
        """Refuse a look that took more than its byte."""
        super().__post_init__()
        if self.is_look and self.bytes > 1:
            raise ValueError(f"a look at {self.object} took {self.bytes:,} B")


def reconcile(ledger: ByteLedger, served: Iterable[ServedLine]) -> None:
    """Compare what was received with what the sources say they sent, for each source and object.

    All that was received was sent, and all answers that ended were received whole; of one that was cut off, what was
    under way may be missing. Looks are left out. Raises ArtifactError `RECONCILIATION_MISMATCH` naming source, object
    and numbers.
    """
    received: Counter[tuple[str, str]] = Counter()
    for event in ledger.events:
        if event.kind == "received":
            name = event.object if event.source == ORIGIN else event.content
            received[event.source, "unknown" if isinstance(name, msgspec.UnsetType) else name] += event.bytes
    ended: Counter[tuple[str, str]] = Counter()
    sent: Counter[tuple[str, str]] = Counter()
    for line in served:
        if line.is_look:
            continue
        sent[line.source, line.object] += line.bytes
        ended[line.source, line.object] += line.bytes if line.complete else 0
    for key in sorted(received.keys() | sent.keys()):
        if not ended[key] <= received[key] <= sent[key]:
            source, name = key
            raise ArtifactError(
                RECONCILIATION_MISMATCH,
                source,
                f"its log has {sent[key]:,} B of {name} ({ended[key]:,} B in answers that ended), received were "
                f"{received[key]:,} B",
            )
