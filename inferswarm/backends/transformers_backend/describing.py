"""From a model directory to what can be planned: the chain, its states by the files' names, and their sizes."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import msgspec
import torch

from inferswarm.artifacts.directory import open_directory
from inferswarm.artifacts.types import ModelObject
from inferswarm.backends.transformers_backend import skeleton
from inferswarm.backends.transformers_backend.matching import Recipe, check_shapes, match
from inferswarm.backends.transformers_backend.observing import EMBEDDING_PHASE, Observation, observe
from inferswarm.backends.transformers_backend.skeleton import Skeleton
from inferswarm.backends.transformers_backend.slicing import Slice
from inferswarm.errors import FabricError, ModelError, UnsupportedModel
from inferswarm.strategies.hosted.description import HostedDescription, HostedState, HostedTensor

SHARED: Final = "embedding-and-head"
"""The state of weights that embedding and head share."""


def describe_hosted(path: Path) -> tuple[HostedDescription, ModelObject]:
    """Describe the model in a directory as the host library would compute it. Reads configuration and headers.

    Raises UnsupportedModel, naming it, for a model that the host cannot build or that cannot be cut between its
    blocks; ModelError when files and model do not have exactly the same weights; otherwise as `open_directory`.
    """
    directory = open_directory(path)
    source = str(path)
    # a single number is a row of one column, as every tensor is read by rows
    tensors = tuple(msgspec.structs.replace(tensor, shape=tensor.shape or (1,)) for tensor in directory.tensors)
    configuration = skeleton.read_configuration(directory.configuration, source)
    _check_num_blocks(configuration, len(tensors), source)
    model = skeleton.build_skeleton(configuration, torch.float32, source)
    shapes = {tensor.name: tensor.shape for tensor in tensors}
    made = check_shapes(model.module, match(model.module, shapes, source), shapes, source)
    seen = observe(model, source)
    num_blocks = len(model.blocks)
    num_heads = getattr(configuration, "num_attention_heads", None)
    if not isinstance(num_heads, int) or num_heads < 1:
        raise UnsupportedModel(source, "num_attention_heads", num_heads, "the number of heads")
    units = _units_of_tensors(model, made, seen, source)
    ids = _state_ids(units)
    description = HostedDescription(
        architecture=type(model.module).__name__,
        configuration=skeleton.configuration_text(directory.configuration),
        vocabulary_size=seen.vocabulary_size,
        hidden_size=seen.hidden_size,
        num_blocks=num_blocks,
        context_positions=skeleton.context_positions(configuration, source),
        states=_states(units, ids, shapes),
        unit_states=tuple(
            tuple(state for unit_set, state in ids.items() if unit in unit_set) for unit in range(num_blocks + 2)
        ),
        kept_values_per_position=tuple(seen.kept_values),
        activation_values_per_position=seen.activation_values,
        num_heads=num_heads,
        results_are_tuples=seen.results_are_tuples,
    )
    _rehearse(description, configuration, source)
    return description, ModelObject(files=directory.files, tensors=tensors)


def _check_num_blocks(configuration: Any, num_tensors: int, source: str) -> None:
    """Refuse more blocks than tensors, before the host builds them: a configuration may claim any number."""
    num_blocks = getattr(configuration, "num_hidden_layers", None)
    if isinstance(num_blocks, int) and num_blocks > num_tensors:
        raise ModelError(source, f"num_hidden_layers is {num_blocks:,}; the files have {num_tensors:,} tensors")


@torch.inference_mode()
def _rehearse(description: HostedDescription, configuration: Any, source: str) -> None:
    """Let hidden states pass a slice that holds no block. Raises UnsupportedModel when the host does not let them."""
    model = skeleton.build_skeleton(configuration, torch.float32, source)
    head = description.num_blocks + 1
    sliced = Slice(model, description, (head, head + 1), lambda unit: None, source)
    sliced.set_placeholders()
    try:
        for start in (0, 2):
            cache = sliced.new_cache()
            cache.advance(start)
            given = sliced.forward(torch.ones(2, description.hidden_size), start, cache, wants_logits=False)
            cache.check(start + 2)
            if not torch.equal(given, torch.ones(2, description.hidden_size)):
                raise FabricError("the hidden states of the last block are not what came over the boundary")
    except (FabricError, AttributeError, TypeError, ValueError, RuntimeError, KeyError, IndexError) as error:
        found = description.architecture
        raise UnsupportedModel(source, "architecture", found, f"blocks that can be left out ({error})") from error


def _units_of_tensors(
    model: Skeleton, made: dict[str, Recipe], seen: Observation, source: str
) -> dict[str, frozenset[int]]:
    """Return, for each tensor of the files, the units of the chain that need it."""
    units: dict[str, frozenset[int]] = {}
    for entry, recipe in made.items():
        needed = _units_of_entry(model, entry, seen.phases[entry], source)
        for name in recipe.sources:
            if units.setdefault(name, needed) != needed:
                raise UnsupportedModel(source, name, sorted(units[name] | needed), "a tensor that one unit needs")
    return units


def _units_of_entry(model: Skeleton, entry: str, phases: set[int], source: str) -> frozenset[int]:
    """Return the units that need an entry: its own block, or embedding, head or both by where it was used."""
    num_blocks = len(model.blocks)
    for index in range(num_blocks):
        if entry.startswith(model.block_path(index)):
            if phases - {index}:
                raise UnsupportedModel(
                    source, entry, f"used outside block {index}", "weights of a block that it uses alone"
                )
            return frozenset({index + 1})  # used, or skipped by this pass, as an expert that was not chosen
    if not phases:
        raise UnsupportedModel(source, entry, "used nowhere", "weights that the model uses on text")
    if not phases <= {EMBEDDING_PHASE, num_blocks}:
        found = f"used between blocks: {sorted(phases)}"
        raise UnsupportedModel(source, entry, found, "weights of the embedding, of one block or of the head")
    return frozenset(phase + 1 for phase in phases)


def _state_ids(units: dict[str, frozenset[int]]) -> dict[frozenset[int], str]:
    """Return the id of the state of each set of units."""
    last = max(unit for unit_set in units.values() for unit in unit_set)
    ids = {}
    for unit_set in sorted(set(units.values()), key=sorted):
        if len(unit_set) > 1:
            ids[unit_set] = SHARED
        else:
            (unit,) = unit_set
            ids[unit_set] = {0: "embedding", last: "head"}.get(unit, f"block.{unit - 1}")
    return ids


def _states(
    units: dict[str, frozenset[int]], ids: dict[frozenset[int], str], shapes: dict[str, tuple[int, ...]]
) -> tuple[HostedState, ...]:
    tensors: dict[str, list[HostedTensor]] = defaultdict(list)
    for name, unit_set in units.items():
        tensors[ids[unit_set]].append(HostedTensor(name=name, shape=shapes[name]))
    return tuple(HostedState(id=state, tensors=tuple(tensors[state])) for state in dict.fromkeys(ids.values()))
