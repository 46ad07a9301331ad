"""One model as the rest of the package uses it, whoever computes its blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from inferswarm.artifacts.types import ModelObject, ParticipantRequirement
from inferswarm.planner.problem import Implementation, PlanningProblem, TransientTerm
from inferswarm.strategies.chain import Description
from inferswarm.strategies.problem import DEFAULT_CHUNK_POSITIONS, make_problem
from inferswarm.strategies.requirement import derive_requirement
from inferswarm.strategies.text.source import ModelText


@dataclass(frozen=True)
class ChainModel(ABC):
    """A model's files, its chain of units, and its text. Made from headers; no weight is read."""

    name: str
    """The known name, the file's name without its ending, or the directory's name."""
    path: Path
    object: ModelObject
    """Its files, and the tensors by the names that the description's states have."""
    description: Description
    notes: tuple[str, ...]
    """What was seen in the files and changes nothing, one sentence each."""

    @property
    @abstractmethod
    def text(self) -> ModelText:
        """Tokenizer, chat template and ends of an answer, built on first use.

        Raises ModelError or UnsupportedModel when they cannot be built.
        """

    def problem(
        self,
        *,
        chunk_positions: int = DEFAULT_CHUNK_POSITIONS,
        max_positions: int | None = None,
        implementations: tuple[Implementation, ...] | None = None,
        transients: tuple[TransientTerm, ...] = (),
    ) -> PlanningProblem:
        """Return the planning problem; arguments and errors as `make_problem`."""
        return make_problem(
            self.description,
            chunk_positions=chunk_positions,
            max_positions=max_positions,
            implementations=implementations,
            transients=transients,
        )

    def requirement(
        self, problem: PlanningProblem, participant: str, first_unit: int, end_unit: int
    ) -> ParticipantRequirement:
        """Return exactly the bytes that the units [first_unit, end_unit) need; errors as `derive_requirement`."""
        return derive_requirement(self.description, self.object, problem, participant, first_unit, end_unit)
