"""One participant's slice of the host's module tree: its own weights and blocks, everything else without weights.

The host's own forward pass runs whole, so masks, positions and rotations are its own. Blocks of other participants
let hidden states pass; the state that came over the boundary replaces the input of the first own block (of the head,
where there is none). Weights of other participants outside the blocks become placeholders of one number: what is
computed with them is replaced or thrown away.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import DynamicCache, DynamicLayer

from inferswarm.backends.transformers_backend.observing import (
    forward_arguments,
    hidden_of,
    placeholder,
    result_of,
)
from inferswarm.backends.transformers_backend.skeleton import Skeleton, make_buffers
from inferswarm.errors import FabricError
from inferswarm.strategies.hosted.description import HostedDescription


class ForeignLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """The cache of a block that another participant holds: as long as that one's, and empty."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_initialized = True
        self.num_positions = 0

    def get_seq_length(self) -> int:
        """Return how many positions the block has seen."""
        return self.num_positions


class SessionCache(DynamicCache):
    """Keys and values of the own blocks of one session, all positions of each, and the lengths of the others.

    Every length at every moment of a pass is what it would be if all blocks were here.
    """

    def __init__(self, num_blocks: int, first: int, end: int) -> None:
        """Make an empty cache for the blocks [first, end) of `num_blocks`."""
        super().__init__()
        self.own = {index: _empty_layer() for index in range(first, end)}
        self.foreign = {index: ForeignLayer() for index in range(num_blocks) if not first <= index < end}
        self.layers = [self.own.get(index) or self.foreign[index] for index in range(num_blocks)]

    def passed(self, index: int, count: int) -> None:
        """Another participant's block has seen `count` more positions."""
        self.foreign[index].num_positions += count

    def advance(self, length: int) -> None:
        """Every block of other participants has seen `length` positions."""
        for foreign in self.foreign.values():
            foreign.num_positions = length

    def cut(self, length: int) -> None:
        """Forget positions from `length` on, in every block that has more."""
        for foreign in self.foreign.values():
            foreign.num_positions = min(foreign.num_positions, length)
        for layer in self.own.values():
            if layer.get_seq_length() <= length:
                continue
            if length == 0:
                layer.reset()
            else:
                keys, values = kept_of(layer)
                layer.keys, layer.values = keys[..., :length, :], values[..., :length, :]

    def check(self, length: int) -> None:
        """Raise FabricError when a block has not exactly `length` positions."""
        lengths = {layer.get_seq_length() for layer in (*self.own.values(), *self.foreign.values())}
        if lengths != {length}:
            raise FabricError(f"after a step to position {length} the blocks keep {sorted(lengths)} positions")


def kept_of(layer: DynamicLayer) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the keys and values of a block that has computed something."""
    keys, values = layer.keys, layer.values
    assert isinstance(keys, torch.Tensor)
    assert isinstance(values, torch.Tensor)
    return keys, values


def _empty_layer() -> DynamicLayer:
    return DynamicLayer()  # type: ignore[no-untyped-call]


class ForeignBlock(nn.Module):
    """Stands where another participant's block is: hidden states pass."""

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        for name, value in vars(original).items():  # a model may ask a block what kind it is
            if not name.startswith("_") and name != "training" and isinstance(value, str | int | float):
                setattr(self, name, value)
        self.returns_tuple = False
        self.on_pass: Callable[[torch.Tensor], torch.Tensor] = lambda hidden: hidden

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the hidden states, in the shape in which the real block would."""
        hidden = self.on_pass(hidden_of(args, kwargs))
        return (hidden, None) if self.returns_tuple else hidden


class Slice:
    """The blocks [first, end) of a model, with embedding and head where they are held.

    `forward` runs one step of one session. Block threads are set by `on_unit(unit)` before each own unit.
    """

    def __init__(
        self,
        model: Skeleton,
        description: HostedDescription,
        units: tuple[int, int],
        on_unit: Callable[[int], None],
        source: str,
    ) -> None:
        """Cut `model` in place to the units [first, end). Raises UnsupportedModel for buffers that cannot be made."""
        first_unit, end_unit = units
        num_blocks = len(model.blocks)
        self._first_unit = first_unit
        self._hidden_size = description.hidden_size
        self._model = model
        self._on_unit = on_unit
        self.first = min(max(first_unit - 1, 0), num_blocks)
        self.end = max(min(end_unit - 1, num_blocks), self.first)
        self.has_embedding = first_unit == 0
        self.has_head = end_unit == num_blocks + 2
        self._cache: SessionCache | None = None
        self._received: torch.Tensor | None = None
        self._given: torch.Tensor | None = None
        self._count = 0
        for index in range(num_blocks):
            if not self.first <= index < self.end:
                model.blocks[index] = self._foreign(index, model.blocks[index], description.results_are_tuples)
            else:
                model.blocks[index].register_forward_pre_hook(self._before(index), with_kwargs=True)
                model.blocks[index].register_forward_hook(self._after(index))
        make_buffers(model.module, source)

    def set_placeholders(self) -> None:
        """Give every weight that was not loaded one number."""
        made: dict[int, nn.Parameter] = {}
        for module in self._model.module.modules():
            for name, parameter in list(module._parameters.items()):
                if parameter is not None and parameter.is_meta:
                    module._parameters[name] = made.setdefault(id(parameter), placeholder(parameter))
            for name, buffer in list(module._buffers.items()):
                if buffer is not None and buffer.is_meta:
                    module._buffers[name] = torch.zeros_like(buffer, device="cpu")

    def new_cache(self) -> SessionCache:
        """Return an empty cache for a session."""
        return SessionCache(len(self._model.blocks), self.first, self.end)

    def forward(self, inputs: torch.Tensor, start: int, cache: SessionCache, *, wants_logits: bool) -> torch.Tensor:
        """Return the logits of the last position, [vocabulary], or the hidden states behind the last own unit.

        `inputs` are token ids, [count], or hidden states, [count, hidden], whose first position is `start`.
        """
        self._cache, self._count, self._given = cache, len(inputs), None
        if self.has_embedding:
            ids, self._received = inputs[None], None
        else:
            ids, self._received = torch.zeros(1, len(inputs), dtype=torch.int64), inputs[None]
        self._on_unit(self._first_unit)
        try:
            arguments = forward_arguments(self._model, ids, start, cache)
            if wants_logits:
                if "logits_to_keep" in self._model.arguments:
                    arguments["logits_to_keep"] = 1
                logits: torch.Tensor = self._model.module(**arguments).logits
                return logits[0, -1].contiguous()
            self._model.base(**arguments)
            return self._taken()
        finally:
            self._cache = self._received = self._given = None

    # -- what happens at blocks --

    def _taken(self) -> torch.Tensor:
        assert self._given is not None, "no unit gave hidden states"
        return self._given[0].contiguous()

    def _passed(self, index: int) -> None:
        assert self._cache is not None
        self._cache.passed(index, self._count)

    def _foreign(self, index: int, original: nn.Module, returns_tuples: bool) -> ForeignBlock:
        block = ForeignBlock(original)
        block.returns_tuple = returns_tuples

        def on_pass(hidden: torch.Tensor) -> torch.Tensor:
            self._check(hidden)
            self._passed(index)
            if index == self.end and self._given is None:
                self._given = hidden
            is_last = index == len(self._model.blocks) - 1
            if is_last and self.first == self.end == index + 1 and self._received is not None:
                hidden = self._received  # the head alone is here
                self._given = hidden
            return hidden

        block.on_pass = on_pass
        return block

    def _check(self, hidden: torch.Tensor) -> None:
        """Refuse hidden states of another shape: the host would be another one than at the description."""
        if hidden.shape != (1, self._count, self._hidden_size):
            raise FabricError(f"a block got hidden states {tuple(hidden.shape)} for {self._count} positions")

    def _before(self, index: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            self._check(hidden_of(args, kwargs))
            self._on_unit(index + 1)
            if index != self.first or self._received is None:
                return None
            if args:
                return (self._received, *args[1:]), kwargs
            return args, {**kwargs, "hidden_states": self._received}

        return hook

    def _after(self, index: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], output: object) -> None:
            if index == self.end - 1:
                self._given = result_of(output)
                if self.has_head:
                    self._on_unit(index + 2)

        return hook
