"""Hidden states as payloads: bytes in the representation that payloads have, tensors in the one that computes."""

from __future__ import annotations

import numpy as np
import torch

from inferswarm.backends.base import StageAssignment
from inferswarm.backends.torch_backend.device import dtype_of


class Payloads:
    """Reads and writes one participant's hidden states.

    Where payloads hold more than the participant computes in, reading rounds each number once, to the nearest and
    halves to even; writing is exact. Raises SpecError for a representation that this backend does not have.
    """

    def __init__(self, assignment: StageAssignment, device: torch.device) -> None:
        self._carried = dtype_of(assignment.boundary_representation)
        self._computed = dtype_of(assignment.representation)
        self._hidden_size = assignment.description.hidden_size
        self._device = device

    def read(self, count: int, payload: bytes | memoryview) -> torch.Tensor:
        """Return [count, hidden], in memory that torch aligned.

        The payload may lie anywhere; an unaligned input can change bits, so it is always copied.
        """
        hidden = torch.empty(count, self._hidden_size, dtype=self._carried)
        hidden.view(torch.uint8).numpy().reshape(-1)[:] = np.frombuffer(payload, dtype=np.uint8)
        return hidden.to(self._device, self._computed)

    def write(self, hidden: torch.Tensor) -> bytes:
        """Return the bytes of hidden states, [count, hidden]."""
        return hidden.to(self._carried).cpu().view(torch.uint8).numpy().tobytes()
