"""Keys and values of all blocks and sessions of one participant, in pages of one preallocated pool.

The pool is written once when it is made (with NaNs, so that its memory is really there, and so that reading a
position before it was computed cannot go unnoticed). A session whose pages form one run is read in place; otherwise
its positions are gathered into a copy of the same layout, which gives the same bits.
"""

from __future__ import annotations

import torch

from inferswarm.backends.torch_backend.pages import PAGE_POSITIONS, PageTable
from inferswarm.strategies.dense.description import DecoderDescription

ALIGNMENT_BYTES = 64
"""What torch aligns its memory to; kernels may compute other bits from elsewhere."""


class SessionView:
    """One session's place in the pool for one step: where new positions go, where all visible ones are."""

    def __init__(self, cache: PagedCache, start: int, count: int, pages: tuple[int, ...], run: int | None) -> None:
        self._cache = cache
        self._count = count
        self._visible = start + count
        self._first: int | None = None
        if run is not None:
            self._first = run * PAGE_POSITIONS
            self._written = self._first + start
        else:
            base = torch.tensor(pages, dtype=torch.int64, device=cache.device)[:, None] * PAGE_POSITIONS
            slots = (base + torch.arange(PAGE_POSITIONS, device=cache.device)).flatten()[: self._visible]
            self._slots, self._written_slots = slots, slots[start:]

    def write(self, block: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store the new positions' [count, key-value heads, head size], cast to the cache's type."""
        pools = (self._cache.keys[block], self._cache.values[block])
        for pool, new in zip(pools, (keys, values), strict=True):
            if self._first is not None:
                pool.narrow(0, self._written, self._count).copy_(new)
            else:
                pool.index_copy_(0, self._written_slots, new.to(pool.dtype))

    def read(self, block: int, first: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values of the positions from `first` on, [positions, key-value heads, head size]."""
        keys, values = self._cache.keys[block], self._cache.values[block]
        if self._first is None:
            slots = self._slots[first:] if first else self._slots
            return keys.index_select(0, slots), values.index_select(0, slots)
        begin, length = self._first + first, self._visible - first
        keys, values = keys.narrow(0, begin, length), values.narrow(0, begin, length)
        if first and not self._cache.rows_are_aligned:
            return keys.clone(), values.clone()  # a page begins where torch aligns, a row within it might not
        return keys, values


class PagedCache:
    """The pool and its page table. Errors are the page table's."""

    def __init__(
        self,
        description: DecoderDescription,
        num_blocks: int,
        *,
        max_positions: int,
        sessions: int,
        dtype: torch.dtype,
        device: torch.device,
        num_pages: int | None = None,
    ) -> None:
        """Allocate `num_pages` (default: enough for every session at its longest)."""
        if num_pages is None:
            num_pages = sessions * -(-max_positions // PAGE_POSITIONS)
        self.pages = PageTable(num_pages, sessions)
        self.device = device
        shape = (num_pages * PAGE_POSITIONS, description.num_key_value_heads, description.head_size)
        pool = torch.full((2, num_blocks, *shape), float("nan"), dtype=dtype, device=device)
        self.keys = pool[0].unbind(0)
        self.values = pool[1].unbind(0)
        self.num_bytes = pool.nbytes
        self.rows_are_aligned = shape[1] * shape[2] * dtype.itemsize % ALIGNMENT_BYTES == 0
        """Whether every position begins where memory that torch allocates may begin."""

    def extend(self, session: str, count: int) -> SessionView:
        """Lengthen a session by `count` positions and return its view for the step that computes them."""
        start = self.pages.length(session)
        self.pages.extend(session, count)
        return SessionView(self, start, count, self.pages.pages(session), self.pages.first_of_run(session))

    def check_integrity(self) -> None:
        """Audit the page table. Raises AssertionError."""
        self.pages.check_integrity()
