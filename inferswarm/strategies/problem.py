"""A chain of embedding, blocks and head as the planner's problem: units, states, cuts, memory, in opaque words.

Sizes are bytes. A representation is the type of every weight, norms included, and of every value that crosses a
cut or is kept for a session: 4 bytes in `fp32`, 2 in `bf16`. A materialization in another type (a norm kept in
fp32 beside bf16 matrices) is another representation, not this one.
"""

from __future__ import annotations

import itertools
import math
from typing import Final

import msgspec

from inferswarm.documents import digest
from inferswarm.errors import SpecError
from inferswarm.planner.problem import (
    Boundary,
    ExecutionUnit,
    Implementation,
    Mixture,
    PlanningProblem,
    RepresentationBytes,
    StateUnit,
    TransientTerm,
)
from inferswarm.strategies.chain import Description, state_tensors, unit_states
from inferswarm.strategies.dense.description import EMBEDDING, HEAD
from inferswarm.strategies.hosted.description import HostedDescription
from inferswarm.strategies.shape import block_classes

STRATEGY: Final = "dense-blocks/1"
"""Blocks that are described by data."""
HOSTED_STRATEGY: Final = "hosted-blocks/1"
"""Blocks that a host library computes."""
COMPARATOR: Final = "tokens-and-logits-bitwise/1"

VALUE_BYTES: Final[dict[str, int]] = {"fp32": 4, "bf16": 2}
"""Bytes of one weight or one value in each representation."""
HELD_EXACTLY: Final[dict[str, frozenset[str]]] = {"fp32": frozenset({"fp32", "bf16"}), "bf16": frozenset({"bf16"})}
"""Of which representations each representation holds every value without rounding."""
MIXING_PRIMITIVES: Final = ("torch", "transformers")
"""Primitives that turn payloads into what a participant computes in, and its results into payloads."""
STAGING_BYTES: Final = 16 * 2**20
"""Buffer through which a backend may turn file bytes into states, released when they are built."""
_LOGIT_BYTES: Final = 4
_SCORE_BYTES: Final = 4
FEEDBACK_BYTES: Final = 4
"""A generated token's id, sent from the head back to the embedding."""
DEFAULT_CHUNK_POSITIONS: Final = 64


def _implementations(primitive: str) -> tuple[Implementation, ...]:
    return tuple(
        Implementation(
            primitive=primitive,
            representation=representation,
            required_capabilities=(f"backend:{primitive}", f"representation:{representation}"),
        )
        for representation in VALUE_BYTES
    )


TORCH: Final = _implementations("torch")
"""How units of a described decoder may be executed unless the caller says otherwise: in either representation."""
TRANSFORMERS: Final = _implementations("transformers")
"""How units that a host library computes may be executed unless the caller says otherwise."""


def make_problem(
    description: Description,
    *,
    chunk_positions: int = DEFAULT_CHUNK_POSITIONS,
    max_positions: int | None = None,
    implementations: tuple[Implementation, ...] | None = None,
    transients: tuple[TransientTerm, ...] = (),
) -> PlanningProblem:
    """State the problem of executing `description` in a chain that may be cut between any two units.

    `max_positions` is the longest session to plan for (default and limit: the model's context); it also bounds the
    attention scores that are held at once. `implementations` default to those of the kind of description, `TORCH` or
    `TRANSFORMERS`; all representations of a primitive that can mix make one mixture. `transients` are added to the
    strategy's own terms: what a backend measured beside them (its kernels' scratch). Raises SpecError for sizes that
    cannot be and for a representation whose bytes are not known.
    """
    positions = description.context_positions if max_positions is None else max_positions
    if not 1 <= positions <= description.context_positions:
        raise SpecError("max_positions", positions, f"1 to the model's context, {description.context_positions}")
    if chunk_positions < 1:
        raise SpecError("chunk_positions", chunk_positions, "at least 1")
    hosted = isinstance(description, HostedDescription)
    if implementations is None:
        implementations = TRANSFORMERS if hosted else TORCH
    representations = tuple(dict.fromkeys(implementation.representation for implementation in implementations))
    for representation in representations:
        if representation not in VALUE_BYTES:
            raise SpecError("implementation representation", representation, f"one of {list(VALUE_BYTES)}")
    classes = (EMBEDDING, *block_classes(description), HEAD)
    units = tuple(_unit(description, index, name, representations) for index, name in enumerate(classes))
    boundary = Boundary(legal=True, payload_bytes_per_position=_sizes(description.hidden_size, representations))
    return PlanningProblem(
        id=f"{description.architecture}-{digest(description).removeprefix('sha256:')[:12]}",
        strategy=HOSTED_STRATEGY if hosted else STRATEGY,
        units=units,
        states=_states(description, representations),
        boundaries=(boundary,) * (len(units) - 1),
        feedback_bytes=FEEDBACK_BYTES,
        implementations=implementations,
        mixtures=_mixtures(implementations),
        transients=(*_transients(description, representations, positions, chunk_positions), *transients),
        max_positions=positions,
        chunk_positions=chunk_positions,
        comparator=COMPARATOR,
    )


def _mixtures(implementations: tuple[Implementation, ...]) -> tuple[Mixture, ...] | msgspec.UnsetType:
    """Return for each primitive that can mix the mixture of all its representations; nothing where there is none.

    Payloads travel in a representation that holds the values of all of them. Only a participant that computes in less
    rounds what it is given; where participants that compute in the same are cut decides nothing.
    """
    mixtures = []
    for primitive in MIXING_PRIMITIVES:
        names = sorted({item.representation for item in implementations if item.primitive == primitive})
        payload = next((name for name in names if HELD_EXACTLY[name].issuperset(names)), None)
        if len(names) > 1 and payload is not None:
            mixtures.append(
                Mixture(
                    name="+".join(names),
                    primitive=primitive,
                    representations=tuple(names),
                    payload_representation=payload,
                )
            )
    return tuple(mixtures) or msgspec.UNSET


def _sizes(num_values: int, representations: tuple[str, ...]) -> tuple[RepresentationBytes, ...]:
    return tuple(RepresentationBytes(name, num_values * VALUE_BYTES[name]) for name in representations)


def _states(description: Description, representations: tuple[str, ...]) -> tuple[StateUnit, ...]:
    return tuple(
        StateUnit(id=state, sizes=_sizes(sum(math.prod(shape) for shape in tensors.values()), representations))
        for state, tensors in state_tensors(description).items()
    )


def _unit(description: Description, index: int, cost_class: str, representations: tuple[str, ...]) -> ExecutionUnit:
    unit_id = description.unit_ids[index]
    is_block = unit_id not in (EMBEDDING, HEAD)
    return ExecutionUnit(
        id=unit_id,
        cost_class=cost_class,
        states=unit_states(description, index),
        mutable_bytes_per_position=_sizes(_kept_values(description, index - 1), representations) if is_block else (),
        only_last_position=unit_id == HEAD,
        opens_requests=unit_id == EMBEDDING or msgspec.UNSET,
    )


def _kept_values(description: Description, block: int) -> int:
    """Return how many numbers a session keeps in a block for each position."""
    if isinstance(description, HostedDescription):
        return description.kept_values_per_position[block]
    return 2 * description.num_key_value_heads * description.head_size


def _transients(
    description: Description, representations: tuple[str, ...], positions: int, chunk_positions: int
) -> tuple[TransientTerm, ...]:
    """Return the short-lived memory of a participant, per representation.

    - `staging`: the buffer between file and states, fixed.
    - `payload`: one hidden vector in and one out for each position of a step. What converting them takes in a mixture
      finds room where the staging was.
    - `block activations`: what one block holds at once for each position of a step; blocks follow each other, so
      the largest block's worth counts: the term is what every block takes, and each `more block activations` adds
      what the classes that it names take beyond that.
    - `output logits`: one row in the representation and one in fp32.
    """
    classes = dict(zip(block_classes(description), range(description.num_blocks), strict=True))
    terms = []
    for name in representations:
        size = VALUE_BYTES[name]
        needed = {
            cost_class: _block_bytes(description, block, size, positions, chunk_positions)
            for cost_class, block in classes.items()
        }
        levels = sorted(set(needed.values()))
        terms += [
            TransientTerm(name="staging", representation=name, fixed_bytes=STAGING_BYTES),
            TransientTerm(
                name="payload", representation=name, bytes_per_step_position=2 * description.hidden_size * size
            ),
            *(
                TransientTerm(
                    name="block activations" if below == 0 else "more block activations",
                    representation=name,
                    cost_classes=tuple(cost_class for cost_class, needs in needed.items() if needs >= level),
                    bytes_per_step_position=level - below,
                )
                for below, level in itertools.pairwise((0, *levels))
            ),
            TransientTerm(
                name="output logits",
                representation=name,
                cost_classes=(HEAD,),
                fixed_bytes=description.vocabulary_size * (_LOGIT_BYTES + size),
            ),
        ]
    return tuple(terms)


def _block_bytes(description: Description, block: int, size: int, positions: int, chunk_positions: int) -> int:
    """Return what a block holds at once for each position of a step, in bytes.

    The residual, its norm and the block's result (3 × hidden, 4 where results are normed); query, key and value
    before and after rotation (2 × (heads + 2 × kv heads) × head size), query and key once more where they are normed;
    the attention's result (heads × head size); gate, up and their product (3 × feed-forward); and scores and weights
    over the longest context that is visible in fp32 (2 × heads × positions × 4 B). A soft cap holds these, and beside
    them what may be seen, whole and while it is made (2 × heads per kv head × positions), in full.
    """
    if isinstance(description, HostedDescription):
        scores_bytes = 2 * description.num_heads * positions * _SCORE_BYTES
        return description.activation_values_per_position * size + scores_bytes
    query = description.num_heads * description.head_size
    key_value = description.num_key_value_heads * description.head_size
    values = 3 * description.hidden_size + 2 * (query + 2 * key_value) + query + 3 * description.feed_forward_size
    if description.post_norms:
        values += description.hidden_size
    if description.query_key_norms:
        values += query + key_value
    window = description.kind_of(block).window
    visible = positions if window is None else min(positions, window - 1 + chunk_positions)
    scores_bytes = 2 * description.num_heads * visible * _SCORE_BYTES
    if description.attention_soft_cap is not None:
        scores_bytes += 2 * (description.num_heads // description.num_key_value_heads) * visible * size
    return values * size + scores_bytes
