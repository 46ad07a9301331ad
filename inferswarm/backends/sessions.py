"""What every backend refuses about payloads and steps, in the same words. Torch-free."""

from __future__ import annotations

from inferswarm.backends.base import StageAssignment
from inferswarm.errors import FabricError, SpecError
from inferswarm.strategies.problem import HELD_EXACTLY, VALUE_BYTES

TOKEN_ID_BYTES = 4


def payload_bytes(assignment: StageAssignment, count: int) -> int:
    """Return the size of the payload that brings `count` positions to a participant."""
    if assignment.first_unit == 0:
        return count * TOKEN_ID_BYTES
    return count * boundary_bytes(assignment)


def boundary_bytes(assignment: StageAssignment) -> int:
    """Return the size of one position at a boundary."""
    return assignment.description.hidden_size * VALUE_BYTES[assignment.boundary_representation]


def check_payload(who: str, representation: str, payload: str) -> None:
    """Raise SpecError for payloads that do not hold every value of the representation in which `who` computes."""
    if representation not in HELD_EXACTLY.get(payload, frozenset()):
        needed = f"one that holds every value of {representation}, in which {who} computes"
        raise SpecError("payload representation", payload, needed)


def check_step(
    assignment: StageAssignment, session: str, length: int, start: int, count: int, payload: bytes | memoryview
) -> None:
    """Refuse a step that does not continue a session of `length` positions, or that was not planned for.

    Raises FabricError: wrong start, no or too many positions, past the longest session, payload of another size,
    a token id outside the vocabulary.
    """
    who = f"session {session!r} at {assignment.participant}"
    if start != length:
        raise FabricError(f"{who} has {length} positions; a step from {start} on does not continue it")
    if not 1 <= count <= assignment.chunk_positions:
        raise FabricError(f"{who}: a step carries 1 to {assignment.chunk_positions} positions, not {count}")
    if start + count > assignment.max_positions:
        raise FabricError(f"{who} may have {assignment.max_positions} positions; the step ends at {start + count}")
    view = memoryview(payload).cast("B")
    needed = payload_bytes(assignment, count)
    if view.nbytes != needed:
        raise FabricError(f"{who}: {count} positions take {needed:,} B; the payload has {view.nbytes:,} B")
    if assignment.first_unit == 0:
        size = assignment.description.vocabulary_size
        for offset in range(0, needed, TOKEN_ID_BYTES):
            token = int.from_bytes(view[offset : offset + TOKEN_ID_BYTES], "little", signed=True)
            if not 0 <= token < size:
                raise FabricError(f"{who}: token id {token} is not in the vocabulary of {size:,}")
