"""Simulated Nodes: agents, and stages that hold positions instead of tensors."""

from __future__ import annotations

from typing import Any

from inferswarm.fabric.frames import Frame, FrameKind, encode
from inferswarm.fabric.simulation.network import (
    BEAT_SECONDS,
    GRACE_SECONDS,
    SILENT_SECONDS,
    Beat,
    Command,
    Endpoint,
    Join,
    Network,
    Reply,
    Wiring,
    simulated_token,
)


class StageProcess:
    """One stage: what it holds of each session, and under which address it works."""

    def __init__(self, network: Network, node: str, number: int) -> None:
        self.endpoint = Endpoint(node, number)
        self.hung_until = -1.0
        self.hung_since = -1.0
        self.held: dict[int, int] = {}
        """Positions of each session that its state covers."""
        self.ends: dict[int, int] = {}
        """The position behind the last token of each session."""
        self.wiring: Wiring | None = None
        self.adopted = False
        """Whether its state is its own; that of another stage is computed again from a journal or the ledger."""
        self._network = network
        self._waiting: list[tuple[bytes, ...]] = []

    def hang(self, seconds: float) -> None:
        """Stop doing anything for a while; what arrives waits."""
        now = self._network.now
        if self.hung_until < now:
            self.hung_since = now
        self.hung_until = max(self.hung_until, now + seconds)
        self._network.at(seconds + 1e-6, self._wake)

    def is_silent(self) -> bool:
        """Whether its agent would say that it answers nothing."""
        now = self._network.now
        return self.hung_until >= now and now - self.hung_since > SILENT_SECONDS

    def take(self, parts: tuple[bytes, ...]) -> None:
        """A frame arrived."""
        if self.hung_until >= self._network.now:
            self._waiting.append(parts)
            return
        frame = self._network.open_frame(parts)
        if frame is None:
            return
        code = "NO_EPOCH" if self.wiring is None else self.wiring.address.mismatch(frame.header)
        if code is not None:
            self._network.refused[code] += 1
        else:
            self._step(frame)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for parts in waiting:
            self.take(parts)

    def _step(self, frame: Frame) -> None:
        header, wiring = frame.header, self.wiring
        assert wiring is not None
        if header.kind in (FrameKind.OPEN, FrameKind.CLOSE):
            if header.kind == FrameKind.CLOSE:
                self.held.pop(header.session, None)
            elif header.session not in self.held:
                self.held[header.session] = 0
                self.ends[header.session] = header.count
            if wiring.following is not None:
                kind = FrameKind(header.kind)
                self._send(wiring.following, wiring.address.header(kind, header.session, count=header.count), b"")
            return
        if header.session not in self.held or header.position != self.held[header.session]:
            self._network.refused["NON_NEXT_POSITION"] += 1
            return
        self.held[header.session] += header.count
        if wiring.following is not None:
            kind = FrameKind.BOUNDARY
            again = wiring.address.header(
                kind, header.session, position=header.position, count=header.count, sample=header.sample
            )
            self._send(wiring.following, again, b"")
        elif header.sample:
            self._sample(header.session, header.position + header.count, wiring)

    def _sample(self, session: int, position: int, wiring: Wiring) -> None:
        payload = simulated_token(session, position).to_bytes(4, "little")
        result = wiring.address.header(FrameKind.RESULT, session, position=position)
        self._network.send_frame(self.endpoint.node, wiring.results, 0, _parts(result, payload))
        if position + 1 < self.ends[session]:  # the next step begins at once, as far ahead as it comes
            following = wiring.address.header(FrameKind.INPUT, session, position=position, count=1, sample=True)
            self._send(wiring.first, following, payload)

    def _send(self, target: Endpoint, header: Any, payload: bytes) -> None:
        self._network.send_frame(self.endpoint.node, target.node, target.process, _parts(header, payload))


def _parts(header: Any, payload: bytes) -> tuple[bytes, ...]:
    return tuple(bytes(part) for part in encode(header, payload))


class Agent:
    """One Node: its stages, its incarnation, and the highest term that it has seen."""

    def __init__(self, network: Network, node: str) -> None:
        self.node = node
        self.boots = 1
        self.stages: dict[tuple[str, str], StageProcess] = {}
        self.term = 0
        self.joined = False
        self.frozen_until = -1.0
        self._coordinator = ""
        self._heard_at = network.now
        self._network = network
        self._waiting: list[tuple[str, Any]] = []
        self._dead = False
        self._gone: set[tuple[str, str]] = set()
        self._processes = 0
        network.receivers[node] = self
        network.at(0.0, self._tick)

    @property
    def incarnation(self) -> str:
        """Which life of this Node its stages belong to."""
        return f"{self.node}-{self.boots}"

    def kill(self) -> None:
        """End the agent and with it every stage. `restart` begins another incarnation."""
        self._dead = True
        self._void()

    def restart(self) -> None:
        """Begin again after a kill. The highest term is kept on disk."""
        if self._dead:
            self._dead = False
            self._heard_at = self._network.now
            self._network.at(0.0, self._tick)

    def freeze(self, seconds: float) -> None:
        """Stop the whole Node for a while: agent and stages."""
        self.frozen_until = max(self.frozen_until, self._network.now + seconds)
        for stage in self.stages.values():
            stage.hang(seconds)
        self._network.at(seconds + 1e-6, self._thaw)

    def kill_stage(self, index: int) -> None:
        """End one stage; the next beat says so."""
        if self.stages:
            key = sorted(self.stages)[index % len(self.stages)]
            del self.stages[key]
            self._gone.add(key)

    def _thaw(self) -> None:
        waiting, self._waiting = self._waiting, []
        for source, message in waiting:
            self.receive(source, message)

    def _void(self) -> None:
        self.stages.clear()
        self._gone.clear()
        self.boots += 1
        self.joined = False

    def _tick(self) -> None:
        if self._dead:
            return
        self._network.at(BEAT_SECONDS, self._tick)
        if self.frozen_until >= self._network.now:
            return
        if self._network.now - self._heard_at > GRACE_SECONDS:
            self._heard_at = self._network.now
            self._void()  # nobody may execute an epoch without an authority
        if self._coordinator:
            silent = {key for key, stage in self.stages.items() if stage.is_silent()}
            beat = Beat(self.node, self.incarnation, tuple(sorted(self._gone | silent)))
            join = Join(self.node, self.incarnation, tuple(sorted(self.stages)))
            self._network.send(self.node, self._coordinator, beat if self.joined else join)

    def receive(self, source: str, message: Any) -> None:
        """Take a Coordinator's word, or a frame for a stage."""
        if self._dead:
            return
        if isinstance(message, tuple) and type(message) is tuple:
            process, parts = message
            for stage in list(self.stages.values()):
                if stage.endpoint.process == process:
                    stage.take(parts)
            return
        if self.frozen_until >= self._network.now:
            self._waiting.append((source, message))
            return
        if message.term < self.term:
            self._network.refused["LOWER_TERM"] += 1
            return
        self.term = message.term
        self._coordinator = source
        self._heard_at = self._network.now
        if isinstance(message, Command):
            if message.incarnation == self.incarnation:
                self._network.send(self.node, source, self._obey(message))
            else:
                self._network.refused["OTHER_INCARNATION"] += 1
        elif message.answer == "WELCOME":
            self.joined = True
        elif message.answer == "GREET":
            self.joined = False
        elif message.answer == "VOID":
            self._void()

    def _obey(self, command: Command) -> Reply:
        key = (command.realization, command.participant)
        match command.verb:
            case "start":
                self._processes += 1
                self.stages[key] = StageProcess(self._network, self.node, self.boots * 1000 + self._processes)
            case "adopt":
                earlier = self.stages.pop((command.details, command.participant), None)
                if earlier is None:
                    return Reply(self.node, command, False)
                earlier.wiring = None  # what is on its way for the old address is refused from now on
                earlier.adopted = True
                self.stages[key] = earlier
                return Reply(self.node, command, True, earlier.endpoint, tuple(sorted(earlier.held.items())))
            case "stop":
                self.stages.pop(key, None)
                self._gone.discard(key)
                return Reply(self.node, command, True)
        stage = self.stages.get(key)
        if stage is None:
            return Reply(self.node, command, False)
        if command.verb == "hold":
            held, ends = dict(command.details[0]), dict(command.details[1])
            if stage.adopted and any(stage.held.get(session, 0) < count for session, count in held.items()):
                return Reply(self.node, command, False)  # it would make up what it never had
            stage.held, stage.ends, stage.adopted = held, ends, True
        elif command.verb == "wire":
            stage.wiring = command.details
        return Reply(self.node, command, True, stage.endpoint)
