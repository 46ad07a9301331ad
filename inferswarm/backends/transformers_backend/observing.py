"""Watching one forward pass, operator by operator: what uses which weight, and what passes from block to block.

The pass runs on the meta device; where the host's code needs numbers to go on (experts that are chosen), on the CPU
with weights that take no memory. Everything computed from token ids or weights is followed. After a block has given
its result, nothing else that was computed from them may be used again: this is what makes a cut behind it possible.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakIdKeyDictionary
from transformers.cache_utils import DynamicCache

from inferswarm.backends.transformers_backend.matching import stored_entries
from inferswarm.backends.transformers_backend.skeleton import Skeleton, make_buffers
from inferswarm.errors import UnsupportedModel

POSITIONS: Final = 3
_SHAPE_ONLY: Final = frozenset(
    {"zeros_like", "ones_like", "empty_like", "full_like", "new_zeros", "new_ones", "new_empty", "new_full"}
)
"""Operators that take a tensor for its shape and type alone."""
_PRODUCTS: Final = frozenset({"mm", "addmm", "bmm", "baddbmm"})
_NUMBER: Final = 0.01
EMBEDDING_PHASE: Final = -1


@dataclass
class Observation:
    """What one forward pass showed. Phases: -1 up to the first block, i in block i, the number of blocks after."""

    phases: dict[str, set[int]] = field(default_factory=dict)
    """Entry of the module tree → the phases that use it."""
    kept_values: list[int] = field(default_factory=list)
    hidden_size: int = 0
    vocabulary_size: int = 0
    results_are_tuples: bool = False
    """Whether blocks give their hidden states as the first of a tuple."""
    activation_values: int = 0
    """The most that the operators of one block wrote, for each position."""


def observe(model: Skeleton, source: str) -> Observation:
    """Run a few positions through the whole model and return what was seen.

    Raises UnsupportedModel, saying what passes where, for a model that cannot be cut between its blocks: something
    else than the hidden states passes, a block keeps no keys and values, the head uses more than the last block's
    result.
    """
    try:
        return _observe(model, "meta", source)
    except (RuntimeError, NotImplementedError):  # the host's code asks for numbers, which meta tensors do not have
        try:
            with _weightless(model, source):
                return _observe(model, "cpu", source)
        except (RuntimeError, NotImplementedError) as error:
            found = type(model.module).__name__
            raise UnsupportedModel(
                source, "architecture", found, f"models that run as configured ({error})"
            ) from error


@contextmanager
def _weightless(model: Skeleton, source: str) -> Iterator[None]:
    """Give every weight a CPU tensor of its shape whose numbers all lie in one place, and take it away again."""
    changed: list[tuple[nn.Module, str, nn.Parameter]] = []
    buffers: list[tuple[nn.Module, str, torch.Tensor]] = []
    made: dict[int, nn.Parameter] = {}
    for module in model.module.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                changed.append((module, name, parameter))
                value = made.setdefault(id(parameter), placeholder(parameter))
                module._parameters[name] = value
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                buffers.append((module, name, buffer))
                if name not in module._non_persistent_buffers_set:
                    module._buffers[name] = torch.zeros_like(buffer, device="cpu")
    try:
        make_buffers(model.module, source)
        yield
    finally:
        for module, name, parameter in changed:
            module._parameters[name] = parameter
        for module, name, buffer in buffers:
            module._buffers[name] = buffer


def placeholder(parameter: torch.Tensor) -> nn.Parameter:
    """Return a CPU parameter of this shape and type that holds one number and takes no memory."""
    value = torch.full((1,), _NUMBER, dtype=parameter.dtype).expand(parameter.shape)
    return nn.Parameter(value, requires_grad=False)


def hidden_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """Return the hidden states among a block's arguments."""
    value = args[0] if args else kwargs["hidden_states"]
    assert isinstance(value, torch.Tensor)
    return value


def result_of(output: object) -> torch.Tensor:
    """Return the hidden states that a block gave, alone or first in a tuple."""
    value = output[0] if isinstance(output, tuple | list) else output
    assert isinstance(value, torch.Tensor)
    return value


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operator; products with weights that take no memory are not computed, only their shape is right."""
    inputs = [item for item in tree_leaves((args, kwargs)) if isinstance(item, torch.Tensor)]
    if func.overloadpacket.__name__ not in _PRODUCTS or not any(_is_weightless(item) for item in inputs):
        return func(*args, **kwargs)
    shape = func(*tree_map_only(torch.Tensor, lambda item: item.to("meta"), args), **kwargs)
    return torch.full(shape.shape, _NUMBER, dtype=shape.dtype)


def _is_weightless(tensor: torch.Tensor) -> bool:
    return not tensor.is_meta and tensor.numel() > 1 and tensor.untyped_storage().nbytes() == tensor.itemsize


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows what depends on token ids and weights, and in which phase each weight is used."""

    def __init__(self, entries: dict[int, str], tokens: torch.Tensor, num_blocks: int, source: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._entries = entries
        self._num_blocks = num_blocks
        self._source = source
        self._generation = WeakIdKeyDictionary()
        """What depends on token ids or weights → the phase that made it; a block's result is the next phase's."""
        self._generation[tokens] = EMBEDDING_PHASE
        self.phase = EMBEDDING_PHASE
        self.phases: dict[str, set[int]] = {name: set() for name in entries.values()}
        self.written = [0]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = _run(func, args, kwargs or {})
        inputs = [item for item in tree_leaves((args, kwargs or {})) if isinstance(item, torch.Tensor)]
        outputs = [item for item in tree_leaves(output) if isinstance(item, torch.Tensor)]
        weights = [name for item in inputs if (name := self._entries.get(id(item))) is not None]
        for name in weights:
            self.phases[name].add(self.phase)
        if func.overloadpacket.__name__ in _SHAPE_ONLY:
            return output
        followed = [item for item in inputs if item in self._generation]
        for item in followed:
            if self._generation[item] != self.phase:
                self._refuse(func.overloadpacket.__name__)
        if followed or weights:
            for item in outputs:
                self._generation[item] = self.phase
        if not any(alias.alias_info is not None for alias in func._schema.returns):
            self.written[-1] += sum(item.numel() for item in outputs)
        return output

    def _refuse(self, operator: str) -> None:
        where = "the head" if self.phase == self._num_blocks else f"block {self.phase}"
        found = f"{where} uses ({operator}) more of what came before it than the hidden states"
        raise UnsupportedModel(self._source, "architecture", found, "blocks that take the hidden states alone")

    def begin_first(self, hidden: torch.Tensor) -> None:
        """The embedding side is done."""
        self._advance(0, hidden)

    def end_block(self, index: int, hidden: torch.Tensor) -> None:
        """Block `index` has given its result."""
        self._advance(index + 1, hidden)

    def _advance(self, phase: int, hidden: torch.Tensor) -> None:
        self.phase = phase
        self._generation[hidden] = phase
        self.written.append(0)


@torch.no_grad()
def _observe(model: Skeleton, device: str, source: str) -> Observation:
    entries = {id(tensor): name for name, tensor in stored_entries(model.module).items()}
    ids = torch.arange(POSITIONS, device=device)[None]
    watch = _Watch(entries, ids, len(model.blocks), source)
    shapes: list[tuple[int, ...]] = []
    kinds: set[bool] = set()
    cache = DynamicCache()
    handles = []

    def before(index: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            hidden = hidden_of(args, kwargs)
            if index == 0:
                watch.begin_first(hidden)
            elif watch.phase != index:
                raise UnsupportedModel(source, "architecture", f"block {index} runs out of turn", "blocks in order")
            shapes.append(tuple(hidden.shape))

        return hook

    def after(index: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], output: object) -> None:
            kinds.add(isinstance(output, tuple | list))
            watch.end_block(index, result_of(output))

        return hook

    for index, block in enumerate(model.blocks):
        handles.append(block.register_forward_pre_hook(before(index), with_kwargs=True))
        handles.append(block.register_forward_hook(after(index)))
    try:
        with watch:
            output = model.module(**forward_arguments(model, ids, 0, cache), **_last_only(model))
    except (AttributeError, KeyError, TypeError, ValueError, AssertionError, IndexError) as error:
        raise UnsupportedModel(
            source, "architecture", type(model.module).__name__, f"blocks with keys and values ({error})"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    if len(kinds) != 1:
        raise UnsupportedModel(source, "architecture", "blocks that give different things", "blocks of one kind")
    return Observation(
        results_are_tuples=kinds.pop(),
        phases=watch.phases,
        kept_values=_kept(cache, len(model.blocks), source),
        hidden_size=_hidden_size(shapes, len(model.blocks), source),
        vocabulary_size=output.logits.shape[-1],
        activation_values=-(-max(watch.written[1:-1]) // POSITIONS),
    )


def forward_arguments(model: Skeleton, ids: torch.Tensor, start: int, cache: DynamicCache) -> dict[str, Any]:
    """Return the arguments of a forward pass over `ids`, [1, count], whose first position is `start`."""
    positions = torch.arange(start, start + ids.shape[1], device=ids.device)
    arguments: dict[str, Any] = {"input_ids": ids, model.cache_argument: cache, "use_cache": True}
    if "position_ids" in model.arguments:
        arguments["position_ids"] = positions[None]
    if "cache_position" in model.arguments:
        arguments["cache_position"] = positions
    return arguments


def _last_only(model: Skeleton) -> dict[str, int]:
    return {"logits_to_keep": 1} if "logits_to_keep" in model.arguments else {}


def _kept(cache: DynamicCache, num_blocks: int, source: str) -> list[int]:
    """Return how many numbers each block keeps for one position."""
    kept = []
    for index in range(num_blocks):
        layer = cache.layers[index] if index < len(cache.layers) else None
        tensors = [getattr(layer, name, None) for name in ("keys", "values")]
        if not all(isinstance(item, torch.Tensor) and item.shape[-2] == POSITIONS for item in tensors):
            found = f"block {index} keeps no keys and values of its own"
            raise UnsupportedModel(source, "architecture", found, "blocks that do")
        kept.append(sum(math.prod(item.shape) // POSITIONS for item in tensors if item is not None))
    if len(cache.layers) != num_blocks:
        raise UnsupportedModel(source, "architecture", f"{len(cache.layers)} caches", f"one for each of {num_blocks}")
    return kept


def _hidden_size(shapes: list[tuple[int, ...]], num_blocks: int, source: str) -> int:
    if len(shapes) != num_blocks:
        raise UnsupportedModel(source, "architecture", f"{len(shapes)} calls of blocks", f"{num_blocks}, each once")
    sizes = {shape[-1] for shape in shapes if shape[:2] == (1, POSITIONS) and len(shape) == 3}
    if len(sizes) != 1 or any(shape != shapes[0] for shape in shapes):
        raise UnsupportedModel(
            source, "architecture", f"hidden states {sorted(set(shapes))}", "one shape at all cuts"
        )
    return sizes.pop()
