"""The executor of hosted models with a clock around its units, for probes."""

from __future__ import annotations

import time

import torch

from inferswarm.backends.torch_backend.bench import SESSION
from inferswarm.backends.transformers_backend.executor import TransformersExecutor
from inferswarm.backends.transformers_backend.slicing import SessionCache, kept_of


class TimedExecutor(TransformersExecutor):
    """The real executor, with a clock around its units and contexts that nobody computed."""

    unit_seconds = 0.0
    _kept: dict[int, tuple[torch.Tensor, torch.Tensor]] | None = None

    def compute(self, inputs: torch.Tensor, start: int, cache: SessionCache, *, wants_logits: bool) -> torch.Tensor:
        """As the executor's own, timed."""
        started = time.perf_counter()
        result = super().compute(inputs, start, cache, wants_logits=wants_logits)
        self.unit_seconds = time.perf_counter() - started
        return result

    @torch.inference_mode()
    def make_contexts(self, positions: int) -> None:
        """Make ordinary keys and values of so many positions, of the sizes that the last step left in the cache."""
        generator = torch.Generator().manual_seed(0)

        def make(like: torch.Tensor) -> torch.Tensor:
            shape = (*like.shape[:-2], positions, like.shape[-1])
            return torch.randn(shape, generator=generator).to(like.dtype)

        own = self._get(SESSION).cache.own
        self._kept = {}
        for index, layer in own.items():
            keys, values = kept_of(layer)
            self._kept[index] = (make(keys), make(values))

    @torch.inference_mode()
    def assume_context(self, length: int) -> None:
        """Make the probe's session `length` positions long without computing them."""
        held = self._get(SESSION)
        held.cache.cut(0)
        held.length = length
        held.cache.advance(length)
        if length:
            for index, kept in (self._kept or {}).items():
                keys, values = (part[..., :length, :].contiguous() for part in kept)
                layer = held.cache.own[index]
                layer.lazy_initialization(keys, values)
                layer.keys, layer.values = keys, values
