"""A backend that computes nothing: payloads of the right size, tokens that are a hash. No torch, no model bytes.

What it promises: the token after a prefix depends on that prefix alone, neither on the session's name nor on how
the chain is cut or the prefix is chunked. Each boundary carries, for each position, a digest of the prefix up to
there, so a payload that is lost, swapped or altered changes the tokens. States are declared and hold no memory.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

from inferswarm.backends.base import Counters, MaterializedState, Sampler, StageAssignment, StepOutput
from inferswarm.backends.sessions import TOKEN_ID_BYTES, boundary_bytes, check_step
from inferswarm.errors import FabricError

_DIGEST_BYTES = 16
StepSeconds = Callable[[int, int], float]
"""Given a step's start and count, how long it shall take."""


def pseudo_token(prefix_digest: bytes, vocabulary_size: int) -> int:
    """Return the token that follows a prefix with this digest."""
    return int.from_bytes(hashlib.sha256(b"token" + prefix_digest).digest()[:8], "little") % vocabulary_size


def extend_digest(prefix_digest: bytes, token: int) -> bytes:
    """Return the digest of a prefix with one more token; an empty prefix has the digest b""."""
    return hashlib.sha256(prefix_digest + token.to_bytes(8, "little")).digest()[:_DIGEST_BYTES]


class NullExecutor:
    """Implements `StageExecutor` without computing. Errors are those of the other backends."""

    def __init__(self, assignment: StageAssignment, step_seconds: StepSeconds = lambda start, count: 0.0) -> None:
        self._assignment = assignment
        self._step_seconds = step_seconds
        self._is_first = assignment.first_unit == 0
        self._is_last = assignment.end_unit == len(assignment.description.unit_ids)
        self._sessions: dict[str, list[bytes]] = {}
        self._positions = self._steps = 0
        self._materialized = False

    def materialize(self, progress: Callable[[int, int], None]) -> tuple[MaterializedState, ...]:
        """Declare the required states, each of 0 bytes. Raises FabricError when called twice."""
        if self._materialized:
            raise FabricError(f"{self._assignment.participant} is materialized already")
        self._materialized = True
        progress(0, 0)
        requirement = self._assignment.requirement
        states = () if requirement is None else requirement.state_ids
        return tuple(MaterializedState(state, self._assignment.representation, 0) for state in states)

    def open(self, session: str, sampler: Sampler | None = None, *, session_positions: int | None = None) -> None:
        """Begin a session; its tokens are a hash, whatever the sampler. Raises FabricError as every backend."""
        if not self._materialized:
            raise FabricError(f"{self._assignment.participant} is not materialized")
        if session in self._sessions:
            raise FabricError(f"session {session!r} is open already")
        if len(self._sessions) >= self._assignment.sessions:
            raise FabricError(f"session {session!r}: all {self._assignment.sessions} sessions are taken")
        self._sessions[session] = []

    def step(self, session: str, start: int, count: int, payload: bytes | memoryview, *, sample: bool) -> StepOutput:
        """Follow the prefix and take the time that was asked for; see `StageExecutor.step`."""
        digests = self._get(session)
        check_step(self._assignment, session, len(digests), start, count, payload)
        time.sleep(self._step_seconds(start, count))
        digests.extend(self._read(digests[-1] if digests else b"", count, memoryview(payload).cast("B")))
        self._positions += count
        self._steps += 1
        if not self._is_last:
            width = boundary_bytes(self._assignment)
            return StepOutput(payload=b"".join(item[:width].ljust(width, b"\0") for item in digests[start:]))
        if not sample:
            return StepOutput()
        prefix = digests[-1]
        row = hashlib.sha256(b"logits" + prefix).digest()
        token = pseudo_token(prefix, self._assignment.description.vocabulary_size)
        return StepOutput(token=token, logits_digest=row[:16].hex(), margin=(row[16] + 1) / 256)

    def _read(self, prefix: bytes, count: int, view: memoryview) -> list[bytes]:
        """Return the prefix digest at each new position, from token ids or from what the boundary carries."""
        if not self._is_first:
            width = boundary_bytes(self._assignment)
            kept = min(width, _DIGEST_BYTES)
            return [bytes(view[index * width : index * width + kept]) for index in range(count)]
        found = []
        for index in range(count):
            raw = view[index * TOKEN_ID_BYTES : (index + 1) * TOKEN_ID_BYTES]
            prefix = extend_digest(prefix, int.from_bytes(raw, "little", signed=True))
            found.append(prefix)
        return found

    def length(self, session: str) -> int:
        """Return a session's positions. Raises FabricError when it is unknown."""
        return len(self._get(session))

    def truncate(self, session: str, length: int) -> None:
        """Forget positions from `length` on. Raises FabricError for an unknown session or one that is shorter."""
        digests = self._get(session)
        if not 0 <= length <= len(digests):
            raise FabricError(f"session {session!r} has {len(digests)} positions and cannot be cut to {length}")
        del digests[length:]

    def close(self, session: str) -> None:
        """End a session. Raises FabricError when it is unknown."""
        self._get(session)
        del self._sessions[session]

    def counters(self) -> Counters:
        """Return what was done so far; no bytes were read or held."""
        return Counters(self._positions, self._steps, 0, 0, 0)

    def kernel(self) -> str:
        """Return the name of the arithmetic, which is a hash."""
        return "null sha256/1"

    def _get(self, session: str) -> list[bytes]:
        if session not in self._sessions:
            raise FabricError(f"session {session!r} is not open")
        return self._sessions[session]
