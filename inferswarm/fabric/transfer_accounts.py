"""The account of one realization: every byte that couriers and stages say was moved, checked as it is written."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

import msgspec

from inferswarm.artifacts.byte_ledger import ByteClass, ByteLedger, LedgerEvent
from inferswarm.artifacts.identity import Artifact
from inferswarm.artifacts.participant_artifacts import PlanArtifacts
from inferswarm.artifacts.source_choices import Choice, Want
from inferswarm.artifacts.taxonomy import RECONCILIATION_MISMATCH, UNVERIFIED_READ
from inferswarm.errors import ArtifactError
from inferswarm.fabric import messages as m
from inferswarm.fabric.bulk_guard import bulk_bytes
from inferswarm.fabric.transfer_records import TransferRecords

_IS_THERE: Final = ("cache_hit", "acquired", "resumed_prefix", "resume_transfer")


class TransferAccount:
    """Writes down what moves for one realization. Raises AuthorityUncertain as the ledger does."""

    def __init__(
        self,
        records: TransferRecords,
        realization: str,
        nodes: tuple[tuple[str, str, str], ...],
        artifacts: PlanArtifacts,
    ) -> None:
        """Open it; `nodes` are participant, Node id and Node name, in route order."""
        self._records = records
        self._ledger = ByteLedger()
        self._held: dict[str, list[Artifact]] = {}
        self.generation = records.begin(realization, nodes, artifacts)
        """Higher than any before: tickets of earlier ones are void."""

    def required(self, wants: Iterable[Want]) -> None:
        """Write down what participants need."""
        self._write([_event("required", want.participant, want.artifact) for want in wants])

    def authorized(self, choices: Iterable[Choice]) -> None:
        """Write down that participants may get artifacts from the sources that were chosen."""
        allowed = [(item.participant, item.artifact, item.source.id) for item in choices if item.source is not None]
        self._records.authorize(self.generation, allowed)

    def declared(self, results: Iterable[Artifact]) -> None:
        """Write down which results of transforms participants are to get beside what they need."""
        self._records.declare_results(self.generation, results)

    def answered(self, participant: str, answer: m.ArtifactsAcquired, *, are_results: bool = False) -> None:
        """Write down what a courier says that moved for a participant, and what of it was seen here.

        `are_results`: what is there then is kept although no plan needs it.

        Raises ArtifactError: `RECONCILIATION_MISMATCH` for events of another participant or that contradict those
        before, `UNVERIFIED_SOURCE_READ_REFUSED` when the answer carries bytes in bulk.
        """
        observed = bulk_bytes(answer)
        seen = _plain_event("coordinator_observed", participant, observed)
        if observed:
            self._write([seen])
            reason = f"its answer carries {observed:,} B in bulk; the Coordinator takes records, no model bytes"
            raise ArtifactError(UNVERIFIED_READ, participant, reason)
        there = [event for event in answer.events if are_results and event.kind in _IS_THERE]
        retained = [msgspec.structs.replace(event, kind="optional_retained", source="") for event in there]
        self._write([*answer.events, *retained, seen])
        for event in answer.events:
            if event.participant != participant:
                reason = f"its courier reports {event.kind} of {event.participant}"
                raise ArtifactError(RECONCILIATION_MISMATCH, participant, reason)

    def check(self) -> None:
        """Check that all that came is explained, and all that is required is there once.

        Raises ArtifactError `RECONCILIATION_MISMATCH`.
        """
        self._ledger.check_conservation()
        self._ledger.check_complete()

    def holds(self, participant: str, artifacts: Iterable[Artifact]) -> None:
        """Note what a participant's Node holds for it, as it was ordered."""
        self._held[participant] = list(artifacts)

    def materialized(self, participant: str, stage: m.Materialized) -> None:
        """Write down what a stage has made into states; bytes that are not just those it was to read, as nobody's."""
        weights = [artifact for artifact in self._held.get(participant, ()) if artifact.states]
        total = sum(artifact.length for artifact in weights)
        if stage.source_bytes == stage.required_bytes == total:
            self._write([_event("materialized", participant, artifact) for artifact in weights])
        elif participant in self._held:
            self._write([_plain_event("materialized", participant, stage.source_bytes)])

    def _write(self, events: list[LedgerEvent]) -> None:
        self._records.append(self.generation, events)
        for event in events:
            self._ledger.append(event)


def _event(kind: ByteClass, participant: str, artifact: Artifact) -> LedgerEvent:
    return LedgerEvent(
        kind=kind,
        participant=participant,
        artifact=artifact.id,
        content=artifact.sha256,
        object=artifact.origin.uri,
        range=artifact.range,
        bytes=artifact.length,
        at_ns=str(time.time_ns()),
    )


def _plain_event(kind: ByteClass, participant: str, num_bytes: int) -> LedgerEvent:
    return LedgerEvent(
        kind=kind, participant=participant, artifact=msgspec.UNSET, bytes=num_bytes, at_ns=str(time.time_ns())
    )
