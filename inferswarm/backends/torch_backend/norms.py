"""Root-mean-square norms: fp32 inside, rounded to the type of their input, as Hugging Face does."""

from __future__ import annotations

import torch


class Norm:
    """The usual order: the normed row is rounded, then multiplied by the weight."""

    def __init__(self, weight: torch.Tensor, epsilon: float) -> None:
        self._weight = weight
        self._columns = weight.numel()
        self._epsilon = torch.full((1, 1, 1), epsilon, dtype=torch.float32, device=weight.device)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the normed rows, [rows, columns], in their own type."""
        return self._scaled(rows).to(rows.dtype).mul_(self._weight)

    def _scaled(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the rows over their root mean square, in fp32 and in memory of their own."""
        exact = rows.float()
        row = exact.view(-1, 1, self._columns)
        # mean of squares + epsilon in one operator: at one row, operators cost more than arithmetic
        scale = torch.baddbmm(self._epsilon, row, row.transpose(1, 2), alpha=1.0 / self._columns).rsqrt_()
        return exact * scale.view(-1, 1)


class AddOneNorm(Norm):
    """Gemma's order: the normed row is multiplied by 1 + weight in fp32, then rounded."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the normed rows, [rows, columns], in their own type."""
        scaled = self._scaled(rows)
        return scaled.addcmul_(scaled, self._weight.float()).to(rows.dtype)


class HeadNorms(Norm):
    """Norms of the heads of query and key, each head by itself, with one weight for queries and one for keys."""

    def __init__(
        self, query: torch.Tensor, key: torch.Tensor, num_heads: int, epsilon: float, *, adds_one: bool
    ) -> None:
        super().__init__(query, epsilon)
        self._key_weight = key
        self._num_heads = num_heads
        self._adds_one = adds_one

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the normed heads, [count, query heads + key heads, head size], in their own type."""
        scaled = self._scaled(rows.reshape(-1, self._columns)).view(rows.shape)
        if not self._adds_one:
            scaled = scaled.to(rows.dtype)
        queries = scaled.narrow(1, 0, self._num_heads)
        keys = scaled.narrow(1, self._num_heads, rows.shape[1] - self._num_heads)
        for part, weight in ((queries, self._weight), (keys, self._key_weight)):
            if self._adds_one:
                part.addcmul_(part, weight.float())
            else:
                part.mul_(weight)
        return scaled.to(rows.dtype)


def make_norm(weight: torch.Tensor, epsilon: float, *, adds_one: bool) -> Norm:
    """Return the norm of rows as long as `weight`."""
    return AddOneNorm(weight, epsilon) if adds_one else Norm(weight, epsilon)
