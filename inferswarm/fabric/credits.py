"""Credit: how far stages may go behind what is committed, and how a change of plans has them wait."""

from __future__ import annotations

from inferswarm.fabric.feeding import FirstStage
from inferswarm.fabric.frames import FrameKind


class Credits:
    """Gives the first stage of an epoch its credit for each committed position, or holds it back.

    Stages that get none go on for as many positions as they may run ahead, and wait. Each position of credit that
    they get then is one more token.
    """

    def __init__(self) -> None:
        """Nothing is held back, and nothing was given."""
        self._given: dict[int, int] = {}
        self._kept: dict[int, int] | None = None
        """Session → the last committed position while credit is held back."""

    def clear(self) -> None:
        """Begin anew, with another epoch."""
        self._given, self._kept = {}, None

    def hold_back(self) -> None:
        """Keep credit back from here on; again changes nothing."""
        if self._kept is None:
            self._kept = {}

    async def give(self, first: FirstStage, session: int, position: int) -> None:
        """Let the stages go on behind a committed position, at once or when they are let go."""
        if self._kept is not None:
            self._kept[session] = position
            return
        self._given[session] = position
        await first.send(FrameKind.CREDIT, session, position=position)

    async def give_one(self, first: FirstStage) -> None:
        """Give each session one position more of what was held back of it."""
        for session, position in (self._kept or {}).items():
            given = self._given.get(session, position - 1)
            if given < position:
                self._given[session] = given + 1
                await first.send(FrameKind.CREDIT, session, position=given + 1)

    async def let_go(self, first: FirstStage | None) -> None:
        """Give what was held back, and from here on all at once; without a first stage it is forgotten."""
        kept, self._kept = self._kept or {}, None
        for session, position in kept.items():
            self._given[session] = position
            if first is not None:
                await first.send(FrameKind.CREDIT, session, position=position)
