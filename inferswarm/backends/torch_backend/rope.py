"""Rotary positions: heads turned by position, in fp32, halves against each other."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from inferswarm.strategies.dense.description import Rope


class RotaryTable:
    """Cosines and signed sines of every position, computed once, for one set of a rope's factors.

    `cosines[p, 0, i]` and `sines[p, 0, i]` are [positions, 1, rotated size] in fp32, times the rope's magnitude.
    The sines of the first half carry the minus sign: a rotation is `x * cosine + roll(x, half) * sine` (`rotate`).
    """

    def __init__(self, rope: Rope, factors: tuple[float, ...], num_positions: int, device: torch.device) -> None:
        """`factors` are one of the rope's two sets; empty: all 1."""
        exponents = torch.arange(0, rope.rotated_size, 2, dtype=torch.int64).to(torch.float32) / rope.rotated_size
        lengths = rope.base**exponents
        if factors:
            lengths = lengths * torch.tensor(factors, dtype=torch.float32)
        angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * (1.0 / lengths)[None, :]
        cosines, sines = angles.cos(), angles.sin()
        if rope.magnitude != 1.0:
            cosines, sines = cosines * rope.magnitude, sines * rope.magnitude
        self.cosines = torch.cat((cosines, cosines), dim=1)[:, None, :].contiguous().to(device)
        self.sines = torch.cat((-sines, sines), dim=1)[:, None, :].contiguous().to(device)

    def at(self, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines of the positions [start, start + count)."""
        return self.cosines.narrow(0, start, count), self.sines.narrow(0, start, count)


def rotate(heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Turn `heads`, [count, heads, head size] of any type, by their positions; the result is fp32."""
    return torch.addcmul(heads * cosines, torch.roll(heads, heads.shape[-1] // 2, -1), sines)


def rotate_part(heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """As `rotate`, for tables of a rotated size smaller than the head's: the numbers behind it stay."""
    size = cosines.shape[-1]
    turned = rotate(heads.narrow(-1, 0, size), cosines, sines)
    return torch.cat((turned, heads.narrow(-1, size, heads.shape[-1] - size).float()), dim=-1)


def halves_row(
    source_rows: npt.NDArray[np.int64], head_size: int, rotated_size: int | None = None
) -> npt.NDArray[np.int64]:
    """Return where rows stored for rotating neighboring pairs go when halves are rotated against each other.

    Row 2i + j of a head goes to row i + j × rotated_size / 2 of the same head; rows from `rotated_size` (default:
    all of the head) on stay.

    >>> halves_row(np.arange(4), 4).tolist()
    [0, 2, 1, 3]
    >>> halves_row(np.arange(6), 6, 4).tolist()
    [0, 2, 1, 3, 4, 5]
    """
    size = head_size if rotated_size is None else rotated_size
    head, row = np.divmod(source_rows, head_size)
    pair, member = np.divmod(row, 2)
    places: npt.NDArray[np.int64] = head * head_size + np.where(row < size, member * (size // 2) + pair, row)
    return places
