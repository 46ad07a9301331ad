"""The byte ledger of a swarm as notebooks and terminals show it, with the zeros that it proves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from inferswarm.artifacts.byte_ledger import ByteLedger, LedgerEvent
from inferswarm.artifacts.ledger_checks import ZeroInvariant, check_zeros, zero_invariants
from inferswarm.artifacts.manifest import ModelManifest
from inferswarm.artifacts.pinning import with_pins
from inferswarm.artifacts.reconciling import ServedLine, reconcile
from inferswarm.artifacts.store.records import Pin
from inferswarm.artifacts.types import ByteRange
from inferswarm.fabric.transfer_records import TransferRecord, known_digests
from inferswarm.swarm.displays import Picture
from inferswarm.views.transfers import ClassRow, Realized, TransfersShown, summary, transfers_html, transfers_text

if TYPE_CHECKING:
    import polars


class Transfers:
    """What moved of models for every realization of a swarm, oldest first."""

    def __init__(self, records: tuple[TransferRecord, ...], names: Mapping[str, str] | None = None) -> None:
        """Wrap the Coordinator's records; `names` are those of Nodes by id that no realization names."""
        self.records = records
        self._names = dict(names or {})
        self._names |= {node_id: name for record in records for _, node_id, name in record.nodes}

    def since(self, generation: int) -> Transfers:
        """Return what moved for the realizations behind a generation."""
        later = tuple(record for record in self.records if record.generation > generation)
        return Transfers(later, self._names)

    @property
    def generation(self) -> int:
        """The newest generation, 0 before the first."""
        return max((record.generation for record in self.records), default=0)

    @property
    def events(self) -> tuple[LedgerEvent, ...]:
        """All events, in the order of realizations and of their writing."""
        return tuple(event for record in self.records for event in record.events)

    def total(self, kind: str, *, node: str | None = None, source: str | None = None) -> int:
        """Return the bytes of one class, of everybody or for one Node, from all sources or one, both by name."""
        return sum(
            event.bytes
            for record in self.records
            for event in record.events
            if event.kind == kind
            and node in (None, _node_of(record, event.participant))
            and source in (None, self._name(event.source))
        )

    def table(self) -> polars.DataFrame:
        """Return events and bytes by class and source, sorted; a class without events has no row."""
        import polars  # here: a third of a second, which transfers need not pay

        rows = self._rows()
        return polars.DataFrame(
            {
                "class": [row.kind for row in rows],
                "source": [row.source for row in rows],
                "events": [row.events for row in rows],
                "bytes": [row.bytes for row in rows],
            },
            schema={"class": polars.String, "source": polars.String, "events": polars.Int64, "bytes": polars.Int64},
        )

    def zeros(self) -> tuple[ZeroInvariant, ...]:
        """Return every number that must be 0, summed over the realizations; None where one of them is unknown.

        None of a realization that acquired nothing. What moved while a plan served counts those that served.
        """
        found: dict[str, list[ZeroInvariant]] = {}
        for record in self.records:
            if not record.events:
                continue
            serving = record.serving_since_ns
            for zero in zero_invariants(record.ledger, record.artifacts, record.authorized, serving, record.results):
                if zero.name != _STEADY or serving is not None:
                    found.setdefault(zero.name, []).append(zero)
        return tuple(ZeroInvariant(name, _sum(items), items[0].mechanism) for name, items in found.items())

    def check(self) -> None:
        """Raise ArtifactError `RECONCILIATION_MISMATCH` for a number that is not known to be 0."""
        check_zeros(self.zeros())

    def reconcile(self, served: Iterable[ServedLine], *, source: str | None = None) -> None:
        """Compare what was received with what the sources' own logs say that they sent.

        `source` is one of them by name, `origin` or a Node's; None: all of them, so that the logs of all are needed.
        `Swarm.served` has those of Nodes, which say for which generation they gave; an origin's log has to be of the
        time of what is compared. Raises ArtifactError `RECONCILIATION_MISMATCH` naming source, object and numbers.
        """
        ledger = ByteLedger(
            event for event in self.events if event.kind == "received" and self._is_of(event.source, source)
        )
        meant = {msgspec.UNSET, *(record.generation for record in self.records)}
        lines = (line for line in served if self._is_of(line.source, source) and line.generation in meant)
        reconcile(ledger, lines)

    def pinned(self, manifest: ModelManifest) -> ModelManifest:
        """Return a model's manifest with the digests that first fetches found, labelled `first-fetch-pinned`.

        Whoever opens the model with it is held to the same bytes, which nobody published. Raises ArtifactError as
        `with_pins`.
        """
        names = {file.uri for file in manifest.files}
        found = known_digests(self.records).items()
        pins = (
            Pin(uri=uri, version=version, range=ByteRange(first, end), sha256=sha256)
            for (uri, version, first, end), sha256 in found
            if uri in names
        )
        return with_pins(manifest, pins)

    def draw(self, svg: Path | None = None, png: Path | None = None) -> Picture:
        """Return the picture of what came from whom over time; write it as SVG and PNG where paths are given."""
        from inferswarm.views.transfer_drawing import Arrival, Timeline, draw_transfers

        timelines = []
        for record in self.records:
            received = sorted((e for e in record.events if e.kind == "received"), key=lambda e: int(e.at_ns))
            start = int(received[0].at_ns) if received else 0
            arrivals = tuple(
                Arrival((int(event.at_ns) - start) / 1e9, self._name(event.source), event.bytes) for event in received
            )
            timelines.append(Timeline(f"{record.realization} on {', '.join(_nodes_of(record))}", arrivals))
        picture = Picture(draw_transfers(timelines))
        if svg is not None and png is not None:
            picture.save(svg, png)
        return picture

    def shown(self) -> TransfersShown:
        """Return what is shown of it, as plain data."""
        return TransfersShown(self._rows(), tuple(map(self._realized, self.records)), self.zeros())

    def _rows(self) -> tuple[ClassRow, ...]:
        sums: dict[tuple[str, str], tuple[int, int]] = {}
        for event in self.events:
            key = (event.kind, self._name(event.source))
            num, total = sums.get(key, (0, 0))
            sums[key] = (num + 1, total + event.bytes)
        return tuple(ClassRow(*key, *sums[key]) for key in sorted(sums))

    def _realized(self, record: TransferRecord) -> Realized:
        received: dict[str, int] = {}
        for event in record.events:
            if event.kind == "received":
                name = self._name(event.source)
                received[name] = received.get(name, 0) + event.bytes
        return Realized(
            realization=record.realization,
            nodes=_nodes_of(record),
            required=sum(event.bytes for event in record.events if event.kind == "required"),
            held=sum(event.bytes for event in record.events if event.kind == "cache_hit"),
            received=tuple(sorted(received.items())),
            serves=record.serving_since_ns is not None,
            results=sum(event.bytes for event in record.events if event.kind == "optional_retained"),
        )

    def _is_of(self, source_id: str, wanted: str | None) -> bool:
        return wanted in (None, self._name(source_id))

    def _name(self, source: str) -> str:
        return self._names.get(source, source)

    def __repr__(self) -> str:
        """One honest line."""
        return f"Transfers({summary(self.shown())})"

    def __str__(self) -> str:
        """The ledger as text."""
        return transfers_text(self.shown())

    def _repr_html_(self) -> str:
        """Static HTML for notebooks."""
        return str(transfers_html(self.shown()))


_STEADY = "steady_state_model_bytes_moved"


def _sum(items: list[ZeroInvariant]) -> int | None:
    values = [item.value for item in items]
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _nodes_of(record: TransferRecord) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for _, _, name in record.nodes))


def _node_of(record: TransferRecord, participant: str) -> str | None:
    return next((name for who, _, name in record.nodes if who == participant), None)
