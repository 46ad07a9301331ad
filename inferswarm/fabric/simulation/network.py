"""The simulated network: a virtual clock, links that fail, and what is said over them."""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from inferswarm.errors import WireError
from inferswarm.fabric.frames import Address, Frame, decode

BEAT_SECONDS = 0.5
LEASE_SECONDS = 2.0
"""Of Nodes at the Coordinator, and of the Coordinator at the ledger."""
GRACE_SECONDS = 8.0
"""How long an agent keeps its stages without hearing a Coordinator: a restart takes less."""
SILENT_SECONDS = 1.5
"""After which an agent reports a stage that answers nothing."""
HOP_SECONDS = 0.02
VOCABULARY = 1 << 20


def simulated_token(session: int, position: int) -> int:
    """Return the token at a position of a session, whoever computes it."""
    name = f"{session}:{position}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=4).digest(), "little") % VOCABULARY


class Endpoint(NamedTuple):
    """Where a stage listens: its Node and its process, which keeps its number when it is adopted."""

    node: str
    process: int


class Command(NamedTuple):
    """A Coordinator's order to one incarnation of a Node, under a term. `details` belong to the verb."""

    term: int
    incarnation: str
    verb: str
    realization: str
    participant: str
    details: Any = None


class Reply(NamedTuple):
    """What became of a command. `endpoint` is where the stage listens; `held` what an adopted one brings along."""

    node: str
    command: Command
    done: bool
    endpoint: Endpoint | None = None
    held: tuple[tuple[int, int], ...] = ()


class Join(NamedTuple):
    """An agent presents itself, with the stages that it has."""

    node: str
    incarnation: str
    stages: tuple[tuple[str, str], ...]


class Beat(NamedTuple):
    """An agent lives; these of its stages do not, or answer nothing."""

    node: str
    incarnation: str
    gone: tuple[tuple[str, str], ...]


class Heard(NamedTuple):
    """A Coordinator's answer: WELCOME, SEEN, GREET (who are you?), VOID (what you have counts for nothing)."""

    term: int
    answer: str


class Wiring(NamedTuple):
    """What a stage is told when its epoch begins."""

    address: Address
    following: Endpoint | None
    first: Endpoint
    results: str
    """The Coordinator's name."""


class Receiver(Protocol):
    """Whoever has a name on the network."""

    def receive(self, source: str, message: Any) -> None:
        """Take a message that arrived."""


class Network:
    """Delivers messages in order of time, each pair of names in order of sending, unless a fault says otherwise."""

    def __init__(self, seed: int = 0) -> None:
        self.now = 0.0
        self.receivers: dict[str, Receiver] = {}
        self.cut: dict[tuple[str, str], float] = {}
        """Until when a direction is cut."""
        self.delay: dict[tuple[str, str], float] = {}
        self.frame_faults: dict[tuple[str, str], list[str]] = {}
        """What happens to the next frames of a direction: duplicate, reorder, corrupt."""
        self.refused: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._last: dict[tuple[str, str], float] = {}

    def at(self, seconds: float, act: Callable[[], None]) -> None:
        """Do something so many seconds from now."""
        self._number += 1
        heapq.heappush(self._queue, (self.now + seconds, self._number, act))

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until = self.now + seconds
        while self._queue and self._queue[0][0] <= until:
            self.now, _, act = heapq.heappop(self._queue)
            act()
        self.now = until

    def send(self, source: str, target: str, message: Any, *, reorder: bool = False) -> None:
        """Send a message; while the direction is cut it is lost."""
        pair = (source, target)
        if self.cut.get(pair, -1.0) >= self.now:
            return
        due = self.now + HOP_SECONDS + self.delay.get(pair, 0.0)
        if reorder:
            due += 3 * HOP_SECONDS
        else:
            due = max(due, self._last.get(pair, 0.0))
            self._last[pair] = due

        def deliver() -> None:
            receiver = self.receivers.get(target)
            if receiver is not None and self.cut.get(pair, -1.0) < self.now:
                receiver.receive(source, message)

        self.at(due - self.now, deliver)

    def send_frame(self, source: str, target: str, process: int, parts: tuple[bytes, ...]) -> None:
        """Send a frame to a process (0: the Coordinator), with the next fault that waits for this direction."""
        faults = self.frame_faults.get((source, target))
        fault = faults.pop(0) if faults else ""
        if fault == "corrupt":
            index = self._random.randrange(2) if parts[1] else 0
            altered = bytearray(parts[index])
            altered[self._random.randrange(len(altered))] ^= 1 << self._random.randrange(8)
            parts = (*parts[:index], bytes(altered), *parts[index + 1 :])
        self.send(source, target, (process, parts), reorder=fault == "reorder")
        if fault == "duplicate":
            self.send(source, target, (process, parts))

    def open_frame(self, parts: tuple[bytes, ...]) -> Frame | None:
        """Check a frame that arrived; one that fails is refused and counted."""
        try:
            return decode(parts)
        except WireError as error:
            self.refused[error.code] += 1
            return None
