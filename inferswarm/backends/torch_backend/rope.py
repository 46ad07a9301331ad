"""Rotary positions: heads turned by position, in fp32, halves against each other."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch


class RotaryTable:
    """Cosines and signed sines of every position, computed once.

    `cosines[p, 0, i]` and `sines[p, 0, i]` are [positions, 1, head_size] in fp32. The sines of the first half carry
    the minus sign, so that a rotation is `x * cosine + roll(x, half) * sine` (`rotate`).
    """

    def __init__(self, head_size: int, base: float, num_positions: int, device: torch.device) -> None:
        exponents = torch.arange(0, head_size, 2, dtype=torch.int64).to(torch.float32) / head_size
        frequencies = 1.0 / base**exponents
        angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * frequencies[None, :]
        cosines, sines = angles.cos(), angles.sin()
        self.cosines = torch.cat((cosines, cosines), dim=1)[:, None, :].contiguous().to(device)
        self.sines = torch.cat((-sines, sines), dim=1)[:, None, :].contiguous().to(device)

    def at(self, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines of the positions [start, start + count)."""
        return self.cosines.narrow(0, start, count), self.sines.narrow(0, start, count)


def rotate(heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Turn `heads`, [count, heads, head size] of any type, by their positions; the result is fp32."""
    return torch.addcmul(heads * cosines, torch.roll(heads, heads.shape[-1] // 2, -1), sines)


def halves_row(source_rows: npt.NDArray[np.int64], head_size: int) -> npt.NDArray[np.int64]:
    """Return where rows stored for rotating neighboring pairs go when halves are rotated against each other.

    Row 2i + j of a head goes to row i + j × head_size / 2 of the same head.

    >>> halves_row(np.arange(4), 4).tolist()
    [0, 2, 1, 3]
    """
    head, row = np.divmod(source_rows, head_size)
    pair, member = np.divmod(row, 2)
    places: npt.NDArray[np.int64] = head * head_size + member * (head_size // 2) + pair
    return places
