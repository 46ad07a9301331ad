"""What a Node holds verified, as it says itself: complete snapshots in a sequence, each with the Node's receipt.

Promises: only registered Nodes are believed, at the endpoint that they are registered with; a snapshot that is older
than the last, or another one under its number, is refused. Does not promise that the bytes are intact: an
advertisement says available, and who fetches verifies. The receipt is an HMAC under a key derived from the swarm's
token and the Node's id; it keeps out who has no token, not a Node that holds it (`artifacts.keys`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec

from inferswarm.artifacts.keys import derive_key, is_signature, sign
from inferswarm.artifacts.sources import Source
from inferswarm.artifacts.store.records import Inventory as StoreInventory
from inferswarm.artifacts.store.records import UseKind
from inferswarm.artifacts.taxonomy import RECONCILIATION_MISMATCH, UNAUTHORIZED
from inferswarm.documents import Digest, Document, canonical_bytes, digest
from inferswarm.errors import ArtifactError


class Held(Document, frozen=True, kw_only=True):
    """One verified content."""

    sha256: Digest
    length: int
    role: UseKind
    """Why the Node keeps it. Only what is optional may go."""

    def __post_init__(self) -> None:
        """Refuse a negative length."""
        super().__post_init__()
        if self.length < 0:
            raise ValueError(f"{self.sha256} has a length of {self.length}")


class Inventory(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.artifact-inventory/1"):
    """Everything that one Node holds verified at one moment, sorted by digest. Not a difference from another one."""

    node: Source
    store: str
    """Which store of the Node: sequences of different stores do not compare."""
    sequence: Annotated[int, msgspec.Meta(ge=0)]
    """Grows with everything that is published or removed, over the Node's restarts too."""
    held: tuple[Held, ...]

    def __post_init__(self) -> None:
        """Refuse contents that are unsorted or repeated, and a sequence before 0."""
        super().__post_init__()
        if self.sequence < 0:
            raise ValueError(f"{self.node.id}: a sequence of {self.sequence}")
        for before, after in itertools.pairwise(self.held):
            if after.sha256 <= before.sha256:
                raise ValueError(f"{self.node.id}: {after.sha256} stands after {before.sha256}")

    @property
    def lengths(self) -> Mapping[str, int]:
        """Return digest → length of everything held."""
        return {held.sha256: held.length for held in self.held}


class Receipt(Document, frozen=True, kw_only=True):
    """The Node's word for one inventory."""

    node_id: str
    sequence: int
    inventory_digest: Digest
    signature: str
    """Hexadecimal, over the three fields above."""


def inventory_of(node: Source, found: StoreInventory) -> Inventory:
    """Return what a Node says of its store."""
    held = (Held(sha256=blob.sha256, length=blob.length, role=blob.kind) for blob in found.blobs)
    return Inventory(
        node=node,
        store=found.store,
        sequence=found.sequence,
        held=tuple(sorted(held, key=lambda item: item.sha256)),
    )


def receipt_of(inventory: Inventory, token: str) -> Receipt:
    """Return the receipt that the Node of an inventory gives for it. `token` is the swarm's."""
    unsigned = Receipt(
        node_id=inventory.node.id, sequence=inventory.sequence, inventory_digest=digest(inventory), signature=""
    )
    key = derive_key(token, "inventory-receipt", inventory.node.id)
    return msgspec.structs.replace(unsigned, signature=sign(key, canonical_bytes(unsigned)).hex())


class InventoryBook:
    """The newest accepted inventory of every registered Node. Not for several threads at once."""

    def __init__(self, token: str, nodes: Iterable[Source]) -> None:
        """Register Nodes by id and endpoint. Raises SpecError for an empty token, ValueError for an id twice."""
        self._registered: dict[str, Source] = {}
        for node in nodes:
            if node.id in self._registered:
                raise ValueError(f"{node.id} is registered twice")
            self._registered[node.id] = node
        self._keys = {node: derive_key(token, "inventory-receipt", node) for node in self._registered}
        self._newest: dict[str, Inventory] = {}
        self._replaced: set[tuple[str, str]] = set()
        """Node and store of those that another store took the place of."""

    def accept(self, inventory: Inventory, receipt: Receipt) -> None:
        """Keep an inventory as the newest of its Node; the one that is kept already may come again.

        What a content is kept for may change under one number. A Node may begin a new store, whose sequence begins
        anew; the old one is then over. Raises ArtifactError:
        `SOURCE_UNAUTHORIZED` for a Node that is not registered, or is registered elsewhere, and for a receipt that is
        not this Node's for this inventory; `RECONCILIATION_MISMATCH` for a sequence below the last one, for another
        inventory under its number, and for a store that was replaced.
        """
        node = inventory.node
        registered = self._registered.get(node.id)
        if registered != node:
            there = "no Node of this swarm" if registered is None else f"registered at {registered.endpoint}"
            raise ArtifactError(UNAUTHORIZED, str(node), f"sent an inventory, and is {there}")
        self._check_receipt(inventory, receipt)
        last = self._newest.get(node.id)
        if (node.id, inventory.store) in self._replaced:
            raise ArtifactError(
                RECONCILIATION_MISMATCH, node.id, f"sent an inventory of store {inventory.store}, which it replaced"
            )
        if last is not None and last.store != inventory.store:
            self._replaced.add((node.id, last.store))
        elif last is not None and inventory.sequence < last.sequence:
            raise ArtifactError(
                RECONCILIATION_MISMATCH,
                node.id,
                f"sent inventory {inventory.sequence} after {last.sequence}: the sequence never goes back",
            )
        elif last is not None and inventory.sequence == last.sequence and inventory.lengths != last.lengths:
            raise ArtifactError(
                RECONCILIATION_MISMATCH, node.id, f"sent two different contents under the number {last.sequence}"
            )
        self._newest[node.id] = inventory

    def newest(self, node_id: str) -> Inventory | None:
        """Return a Node's newest inventory; None while it has sent none."""
        return self._newest.get(node_id)

    def index(self) -> SourceIndex:
        """Return who advertises what, by the newest inventories."""
        return SourceIndex(self._newest.values())

    def _check_receipt(self, inventory: Inventory, receipt: Receipt) -> None:
        node = inventory.node.id
        if (receipt.node_id, receipt.sequence, receipt.inventory_digest) != (
            node,
            inventory.sequence,
            digest(inventory),
        ):
            raise ArtifactError(UNAUTHORIZED, node, "sent a receipt for another inventory")
        unsigned = canonical_bytes(msgspec.structs.replace(receipt, signature=""))
        try:
            signature = bytes.fromhex(receipt.signature)
        except ValueError:
            signature = b""
        if not is_signature(self._keys[node], unsigned, signature):
            raise ArtifactError(UNAUTHORIZED, node, "sent a receipt that its key did not sign")


class SourceIndex:
    """Content → the Nodes that say they hold it."""

    def __init__(self, inventories: Iterable[Inventory]) -> None:
        self._advertisers: dict[tuple[str, int], list[Source]] = {}
        for inventory in inventories:
            for held in inventory.held:
                self._advertisers.setdefault((held.sha256, held.length), []).append(inventory.node)

    def advertisers(self, sha256: str, length: int) -> tuple[Source, ...]:
        """Return the Nodes that hold a content of this length, by id; who advertises another length is none."""
        return tuple(sorted(self._advertisers.get((sha256, length), ())))
