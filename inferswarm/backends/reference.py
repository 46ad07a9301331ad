"""The oracle: a decoder in plain fp32 torch, written for reading. It keeps no keys and values.

Every step recomputes the whole prefix, head by head, from the tensors as the file stores them: nothing is fused,
reordered, packed or cached, and no code of the fast backend is used. What it covers: the same units, sessions and
payloads as every backend, fp32, on a CPU. What it does not: speed, and bits (its tokens are compared, and the
distance of its logits; its bits are its own).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from inferswarm.backends.base import Counters, MaterializedState, StageAssignment, StepOutput
from inferswarm.backends.sessions import check_step
from inferswarm.backends.states import assigned_states, open_tensors, rows_at_once
from inferswarm.errors import FabricError, SpecError


class ReferenceExecutor:
    """Implements `StageExecutor`. Raises SpecError for any representation but fp32."""

    def __init__(self, assignment: StageAssignment) -> None:
        if assignment.representation != "fp32":
            raise SpecError("representation", assignment.representation, "fp32, the reference's only one")
        self._assignment = assignment
        self._description = assignment.description
        self._tensors: dict[str, torch.Tensor] = {}
        self._sessions: dict[str, torch.Tensor] = {}
        self._positions = self._steps = self._source_bytes = 0
        self._last_logits: torch.Tensor | None = None

    def materialize(self, progress: Callable[[int, int], None]) -> tuple[MaterializedState, ...]:
        """Read exactly the assigned tensors as fp32. Errors as `StageExecutor.materialize`."""
        if self._tensors:
            raise FabricError(f"{self._assignment.participant} is materialized already")
        assignment = self._assignment
        shapes = assigned_states(self._description, assignment.first_unit, assignment.end_unit)
        source = open_tensors(assignment, shapes, progress)
        states = []
        for state, tensors in shapes.items():
            for name, shape in tensors.items():
                rows, step = math.prod(shape[:-1]), rows_at_once(shape[-1])
                tensor = torch.empty(rows, shape[-1])
                for first in range(0, rows, step):
                    end = min(first + step, rows)
                    tensor[first:end] = torch.from_numpy(source.rows(name, first, end))
                self._tensors[name] = tensor.reshape(shape)
            size = sum(self._tensors[name].nbytes for name in tensors)
            states.append(MaterializedState(state, assignment.representation, size))
        source.finish()
        self._source_bytes = source.bytes_read
        return tuple(states)

    def open(self, session: str) -> None:
        """Begin a session. Raises FabricError when the id is in use or all sessions are taken."""
        if not self._tensors:
            raise FabricError(f"{self._assignment.participant} is not materialized")
        if session in self._sessions:
            raise FabricError(f"session {session!r} is open already")
        if len(self._sessions) >= self._assignment.sessions:
            raise FabricError(f"session {session!r}: all {self._assignment.sessions} sessions are taken")
        self._sessions[session] = torch.empty(0, dtype=torch.int64)

    @torch.inference_mode()
    def step(self, session: str, start: int, count: int, payload: bytes | memoryview, *, sample: bool) -> StepOutput:
        """Append to the session's inputs and recompute all of it; see `StageExecutor.step`."""
        inputs = self._get(session)
        check_step(self._assignment, session, len(inputs), start, count, payload)
        if self._assignment.first_unit == 0:
            new = torch.tensor(np.frombuffer(payload, dtype="<i4").astype(np.int64))
        else:
            new = torch.tensor(np.frombuffer(payload, dtype="<f4")).view(count, self._description.hidden_size)
        inputs = torch.cat((inputs, new)) if len(inputs) else new
        torch.set_num_threads(self._assignment.threads[0].threads)
        output = self._compute(inputs, count, sample)
        self._sessions[session] = inputs
        self._positions += count
        self._steps += 1
        return output

    def _compute(self, inputs: torch.Tensor, count: int, sample: bool) -> StepOutput:
        hidden = inputs
        for unit in range(self._assignment.first_unit, self._assignment.end_unit):
            if unit == 0:
                hidden = self._tensors["token_embd.weight"][hidden]
            elif unit <= self._description.num_blocks:
                hidden = self._block(unit - 1, hidden)
            else:
                return self._sample(hidden[-1]) if sample else StepOutput()
        return StepOutput(payload=hidden[-count:].numpy().tobytes())

    def _block(self, index: int, hidden: torch.Tensor) -> torch.Tensor:
        """Attention and gated MLP over all positions, [positions, hidden]."""
        prefix = f"blk.{index}."
        normed = self._norm(hidden, f"{prefix}attn_norm.weight")
        hidden = hidden + self._attention(prefix, normed) @ self._tensors[f"{prefix}attn_output.weight"].T
        normed = self._norm(hidden, f"{prefix}ffn_norm.weight")
        gate = normed @ self._tensors[f"{prefix}ffn_gate.weight"].T
        up = normed @ self._tensors[f"{prefix}ffn_up.weight"].T
        return hidden + (gate * torch.sigmoid(gate) * up) @ self._tensors[f"{prefix}ffn_down.weight"].T

    def _attention(self, prefix: str, normed: torch.Tensor) -> torch.Tensor:
        """Each query head by itself over the key head that it shares; positions see what lies before them."""
        description, size = self._description, self._description.head_size
        queries = normed @ self._tensors[f"{prefix}attn_q.weight"].T
        keys = normed @ self._tensors[f"{prefix}attn_k.weight"].T
        values = normed @ self._tensors[f"{prefix}attn_v.weight"].T
        positions = len(normed)
        later = torch.ones(positions, positions).triu(1).bool()
        heads = []
        for head in range(description.num_heads):
            shared = head * description.num_key_value_heads // description.num_heads
            query = self._rotate(queries[:, head * size : (head + 1) * size])
            key = self._rotate(keys[:, shared * size : (shared + 1) * size])
            scores = (query @ key.T / math.sqrt(size)).masked_fill(later, float("-inf"))
            heads.append(torch.softmax(scores, dim=1) @ values[:, shared * size : (shared + 1) * size])
        return torch.cat(heads, dim=1)

    def _rotate(self, head: torch.Tensor) -> torch.Tensor:
        """Turn each pair of numbers of one head, [positions, head size], by its position's angle."""
        size = head.shape[1]
        frequencies = self._description.rope_base ** (-torch.arange(0, size, 2) / size)
        angles = torch.arange(len(head))[:, None] * frequencies
        if self._description.interleaved_rope_rows:
            first, second = head[:, 0::2], head[:, 1::2]
        else:
            first, second = head[:, : size // 2], head[:, size // 2 :]
        turned_first = first * angles.cos() - second * angles.sin()
        turned_second = first * angles.sin() + second * angles.cos()
        # scores only sum over pairs, so the order in which the pairs are laid out does not matter
        return torch.cat((turned_first, turned_second), dim=1)

    def _norm(self, hidden: torch.Tensor, name: str) -> torch.Tensor:
        mean_square = (hidden * hidden).mean(dim=1, keepdim=True)
        return hidden / torch.sqrt(mean_square + self._description.norm_epsilon) * self._tensors[name]

    def _sample(self, hidden: torch.Tensor) -> StepOutput:
        """Return the most likely next token, the lowest id of equals. Raises FabricError for no numbers."""
        name = "token_embd.weight" if self._description.tied_head else "output.weight"
        logits = self._tensors[name] @ self._norm(hidden[None, :], "output_norm.weight")[0]
        if not torch.isfinite(logits).all():
            raise FabricError("the logits are not finite: nothing is sampled")
        self._last_logits = logits
        best = logits.max()
        token = int(torch.nonzero(logits == best)[0])
        second = torch.cat((logits[:token], logits[token + 1 :])).max() if len(logits) > 1 else best
        digest = xxhash.xxh3_128_hexdigest(logits.numpy().tobytes())
        return StepOutput(token=token, logits_digest=digest, margin=float(best) - float(second))

    def last_logits(self) -> npt.NDArray[np.float32]:
        """Return the logits of the last sampled position. Raises FabricError when nothing was sampled yet."""
        if self._last_logits is None:
            raise FabricError(f"{self._assignment.participant} has sampled nothing")
        logits: npt.NDArray[np.float32] = self._last_logits.numpy()
        return logits

    def length(self, session: str) -> int:
        """Return a session's positions. Raises FabricError when it is unknown."""
        return len(self._get(session))

    def truncate(self, session: str, length: int) -> None:
        """Forget positions from `length` on. Raises FabricError for an unknown session or one that is shorter."""
        inputs = self._get(session)
        if not 0 <= length <= len(inputs):
            raise FabricError(f"session {session!r} has {len(inputs)} positions and cannot be cut to {length}")
        self._sessions[session] = inputs[:length]

    def close(self, session: str) -> None:
        """End a session. Raises FabricError when it is unknown."""
        self._get(session)
        del self._sessions[session]

    def counters(self) -> Counters:
        """Return what was done so far. `positions` are those asked for, however often they were recomputed."""
        held = sum(tensor.nbytes for tensor in self._tensors.values())
        return Counters(self._positions, self._steps, held, self._source_bytes, 0)

    def kernel(self) -> str:
        """Return what decides the bits; they are not compared with another backend's."""
        return f"reference torch {torch.__version__}; fp32; whole prefix"

    def _get(self, session: str) -> torch.Tensor:
        if session not in self._sessions:
            raise FabricError(f"session {session!r} is not open")
        return self._sessions[session]
