"""One dense decoder as the planner's problem: units, states, legal cuts, memory, in opaque words.

Sizes are bytes. A representation is the type of every weight, norms included, and of every value that crosses a
cut or is kept for a session: 4 bytes in `fp32`, 2 in `bf16`. A materialization in another type (a norm kept in
fp32 beside bf16 matrices) is another representation, not this one.
"""

from __future__ import annotations

import math
from typing import Final

from inferswarm.documents import digest
from inferswarm.errors import SpecError
from inferswarm.planner.problem import (
    Boundary,
    ExecutionUnit,
    Implementation,
    PlanningProblem,
    RepresentationBytes,
    StateUnit,
    TransientTerm,
)
from inferswarm.strategies.dense.description import EMBEDDING, HEAD, DecoderDescription
from inferswarm.strategies.dense.tensors import state_tensors, unit_states

STRATEGY: Final = "dense-blocks/1"
COMPARATOR: Final = "tokens-and-logits-bitwise/1"
BLOCK: Final = "block"
"""Cost class of every decoder block; the embedding's and the head's are their unit ids."""

VALUE_BYTES: Final[dict[str, int]] = {"fp32": 4, "bf16": 2}
"""Bytes of one weight or one value in each representation."""
STAGING_BYTES: Final = 16 * 2**20
"""Buffer through which a backend may turn file bytes into states, released when they are built."""
_LOGIT_BYTES: Final = 4
_SCORE_BYTES: Final = 4
FEEDBACK_BYTES: Final = 4
"""A generated token's id, sent from the head back to the embedding."""
DEFAULT_CHUNK_POSITIONS: Final = 64

TORCH: Final = tuple(
    Implementation(
        primitive="torch",
        representation=representation,
        required_capabilities=("backend:torch", f"representation:{representation}"),
    )
    for representation in VALUE_BYTES
)
"""How units may be executed unless the caller says otherwise: torch, in either representation."""


def make_problem(
    description: DecoderDescription,
    *,
    chunk_positions: int = DEFAULT_CHUNK_POSITIONS,
    max_positions: int | None = None,
    implementations: tuple[Implementation, ...] = TORCH,
    transients: tuple[TransientTerm, ...] = (),
) -> PlanningProblem:
    """State the problem of executing `description` in a chain that may be cut between any two units.

    `max_positions` is the longest session to plan for (default and limit: the model's context); it also bounds the
    attention scores that are held at once. `transients` are added to the strategy's own terms: what a backend
    measured beside them (its kernels' scratch). Raises SpecError for sizes that cannot be and for a
    representation whose bytes are not known.
    """
    positions = description.context_positions if max_positions is None else max_positions
    if not 1 <= positions <= description.context_positions:
        raise SpecError("max_positions", positions, f"1 to the model's context, {description.context_positions}")
    if chunk_positions < 1:
        raise SpecError("chunk_positions", chunk_positions, "at least 1")
    representations = tuple(dict.fromkeys(implementation.representation for implementation in implementations))
    for representation in representations:
        if representation not in VALUE_BYTES:
            raise SpecError("implementation representation", representation, f"one of {list(VALUE_BYTES)}")
    units = tuple(_unit(description, index, representations) for index in range(len(description.unit_ids)))
    boundary = Boundary(legal=True, payload_bytes_per_position=_sizes(description.hidden_size, representations))
    return PlanningProblem(
        id=f"{description.architecture}-{digest(description).removeprefix('sha256:')[:12]}",
        strategy=STRATEGY,
        units=units,
        states=_states(description, representations),
        boundaries=(boundary,) * (len(units) - 1),
        feedback_bytes=FEEDBACK_BYTES,
        implementations=implementations,
        transients=(*_transients(description, representations, positions), *transients),
        max_positions=positions,
        chunk_positions=chunk_positions,
        comparator=COMPARATOR,
    )


def _sizes(num_values: int, representations: tuple[str, ...]) -> tuple[RepresentationBytes, ...]:
    return tuple(RepresentationBytes(name, num_values * VALUE_BYTES[name]) for name in representations)


def _states(description: DecoderDescription, representations: tuple[str, ...]) -> tuple[StateUnit, ...]:
    return tuple(
        StateUnit(id=state, sizes=_sizes(sum(math.prod(shape) for shape in tensors.values()), representations))
        for state, tensors in state_tensors(description).items()
    )


def _unit(description: DecoderDescription, index: int, representations: tuple[str, ...]) -> ExecutionUnit:
    unit_id = description.unit_ids[index]
    is_block = unit_id not in (EMBEDDING, HEAD)
    keys_and_values = 2 * description.num_key_value_heads * description.head_size
    return ExecutionUnit(
        id=unit_id,
        cost_class=BLOCK if is_block else unit_id,
        states=unit_states(description, index),
        mutable_bytes_per_position=_sizes(keys_and_values, representations) if is_block else (),
        only_last_position=unit_id == HEAD,
    )


def _transients(
    description: DecoderDescription, representations: tuple[str, ...], positions: int
) -> tuple[TransientTerm, ...]:
    """Return the short-lived memory of a participant, per representation.

    - `staging`: the buffer between file and states, fixed.
    - `payload`: one hidden vector in and one out for each position of a step.
    - `block activations`: what one block holds at once for each position of a step; blocks follow each other, so
      one block's worth counts. The residual, its norm and the block's result (3 × hidden); query, key and value
      before and after rotation (2 × (heads + 2 × kv heads) × head size); the attention's result (heads × head
      size); gate, up and their product (3 × feed-forward); and scores and weights over the longest context in
      fp32 (2 × heads × positions × 4 B).
    - `output logits`: one row in the representation and one in fp32.
    """
    query = description.num_heads * description.head_size
    key_value = description.num_key_value_heads * description.head_size
    values = 3 * description.hidden_size + 2 * (query + 2 * key_value) + query + 3 * description.feed_forward_size
    scores_bytes = 2 * description.num_heads * positions * _SCORE_BYTES
    terms = []
    for name in representations:
        size = VALUE_BYTES[name]
        terms += [
            TransientTerm(name="staging", representation=name, fixed_bytes=STAGING_BYTES),
            TransientTerm(
                name="payload", representation=name, bytes_per_step_position=2 * description.hidden_size * size
            ),
            TransientTerm(
                name="block activations",
                representation=name,
                cost_classes=(BLOCK,),
                bytes_per_step_position=values * size + scores_bytes,
            ),
            TransientTerm(
                name="output logits",
                representation=name,
                cost_classes=(HEAD,),
                fixed_bytes=description.vocabulary_size * (_LOGIT_BYTES + size),
            ),
        ]
    return tuple(terms)
