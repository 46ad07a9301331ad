"""What the Coordinator orders of a Node's artifact store, and what its courier says: records, never the bytes."""

from __future__ import annotations

import msgspec

from inferswarm.artifacts.byte_ledger import LedgerEvent
from inferswarm.artifacts.identity import Artifact
from inferswarm.artifacts.inventory import Inventory, Receipt
from inferswarm.artifacts.participant_artifacts import PlanArtifacts
from inferswarm.artifacts.reconciling import ServedLine
from inferswarm.artifacts.sources import USUAL_POLICY, Source, SourcePolicy
from inferswarm.artifacts.store.records import Pin
from inferswarm.artifacts.transforms import ListedResult
from inferswarm.documents import Digest
from inferswarm.fabric.messages.base import Message


class ReportInventory(Message, frozen=True, kw_only=True):
    """Say what the Node's store holds verified. Answered by `InventoryReported`."""

    pins_of: tuple[tuple[str, str], ...] = ()
    """Objects and their versions (see `Pin`), of which the Node says also what first fetches gave, its own or
    others'."""


class FreezeArtifacts(Message, frozen=True, kw_only=True):
    """From now on no ticket of an earlier generation is good here."""

    generation: int


class LimitTransfers(Message, frozen=True, kw_only=True):
    """Receive and give at most so many bytes in a second each, so that tokens keep their time; None: any."""

    bytes_per_second: float | None


class NeededArtifacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the participants of a plan acquire before they make their states, and by which rules."""

    plan: PlanArtifacts
    files: tuple[str, ...]
    """Of the model's files of weights, in its order: where each was described, as the artifacts name it."""
    source_policy: SourcePolicy = USUAL_POLICY
    strict: bool = False
    """Whether bytes whose digest nobody published are refused."""
    seconds_per_byte: tuple[tuple[str, str, float], ...] = ()
    """Node, Node, and what the path from one to the other was measured to take for a byte; what is not there is
    unknown."""
    deadline_seconds: float = 3600.0
    """For everything; a source that is silent is given up long before."""
    takes_results: bool = False
    """Whether Nodes also get from peers what these decoded of the same bytes, where that is known to be the same."""


class AcquisitionOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One artifact, the one source that it may come from, and the authorization for it."""

    artifact: Artifact
    source: Source | None
    """None: it is said to be in the store, and comes from nowhere else."""
    ticket: str = ""
    """What a peer asks for; the origin asks for none."""
    attempt: int = 1
    fetches_anew: bool = False
    """Whether the source is asked although the store has it, as policies want that prefer what is remote."""
    is_pinned: bool = False
    """Whether a first fetch said the digest, and nobody published it: the store keeps that with the bytes."""


class AcquireArtifacts(Message, frozen=True, kw_only=True):
    """Have these artifacts in the Node's store, verified, for a participant. Answered by `ArtifactsAcquired`.

    An attempt that fails is named in the answer and is not followed by another source.
    """

    participant: str
    owner: str
    """For whom the contents are kept: nobody evicts them until `ReleaseArtifacts`."""
    orders: tuple[AcquisitionOrder, ...]
    strict: bool
    """Whether bytes without a digest in their record are refused; else what comes first pins it."""
    deadline_seconds: float
    are_results: bool = False
    """Whether they are results of transforms: kept as optional, and listed under their keys, which is to believe
    those who made them."""


class ReportResults(Message, frozen=True, kw_only=True):
    """Say which results of transforms the Node's store lists. Answered by `ResultsReported`."""


class ReleaseArtifacts(Message, frozen=True, kw_only=True):
    """An owner needs its contents no longer.

    What is being acquired for it ends first; what is there stays until room is needed.
    """

    owner: str


class ReportServed(Message, frozen=True, kw_only=True):
    """Say what was served to peers since the courier began. Answered by `ServedReported`."""


CourierCommand = (
    ReportInventory
    | FreezeArtifacts
    | LimitTransfers
    | AcquireArtifacts
    | ReleaseArtifacts
    | ReportServed
    | ReportResults
)


class InventoryReported(Message, frozen=True, kw_only=True):
    """What a Node holds, with its receipt."""

    inventory: Inventory
    receipt: Receipt
    pins: tuple[Pin, ...] = ()
    """What first fetches of the objects that were asked about gave this Node; not all where there are very many."""


class ResultsReported(Message, frozen=True, kw_only=True):
    """Which results a store lists, unproved, and what a Node must be told apart by that would use them."""

    results: tuple[ListedResult, ...]
    surroundings: tuple[tuple[str, str], ...]
    """What decides the bits of decoding on the Node (`decoding_identity.surroundings`)."""
    room_bytes: int | None
    """Free under the quota; None: there is none."""


class AcquisitionOutcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What became of one order."""

    artifact: Digest
    """The artifact's id."""
    sha256: Digest | None
    """The digest of its content; None where it is not there and was never known."""
    how: str
    """cache-hit, acquired, failed, cancelled or late."""
    hash_known_by: str
    source: str
    length: int
    transferred_bytes: int
    seconds: float
    side: str = ""
    """Of a failure: whether it speaks of the order, the source or the Node's store."""
    code: str = ""
    reason: str = ""


class ArtifactsAcquired(Message, frozen=True, kw_only=True):
    """What became of every order, in their order, and every byte that moved for them."""

    outcomes: tuple[AcquisitionOutcome, ...]
    events: tuple[LedgerEvent, ...]
    seconds: float
    versions: tuple[tuple[str, str], ...] = ()
    """Object and the version that its origin said, of those that were opened."""
    tampered: tuple[tuple[Digest, str], ...] = ()
    """Contents that were in the store, altered, and why they count as such; they are in quarantine."""


class Refused(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A request of a peer that was turned away: what it asked for, and why."""

    artifact: str
    kind: str
    reason: str


class ServedReported(Message, frozen=True, kw_only=True):
    """What a courier gave to peers and what it refused, in order; the oldest are dropped when there are many."""

    lines: tuple[ServedLine, ...]
    refused: tuple[Refused, ...]


class CourierSetUp(Message, frozen=True, kw_only=True):
    """Agent to its courier, once, first: where the store is, where to listen, and the swarm's token."""

    node_id: str
    address: str
    root: str
    quota_bytes: int | None
    scope: str
    token: str
    port: int = 0
    """Where an earlier courier of this agent listened; 0: anywhere."""
    bytes_per_second: float | None = None
    """What it may receive in a second, and what it may give, from its start (see `LimitTransfers`); None: any."""


class CourierCall(Message, frozen=True, kw_only=True):
    """Agent to courier: a numbered command."""

    request: int
    command: CourierCommand


class CourierHello(Message, frozen=True, kw_only=True):
    """Courier to agent: the store is open, and peers are served at `endpoint`."""

    pid: int
    endpoint: str
