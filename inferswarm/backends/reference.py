"""The oracle: a decoder in plain fp32 torch, written for reading. It keeps no keys and values.

Every step recomputes the whole prefix, head by head, from the tensors as the model names them: nothing is fused,
packed or cached, and no code of the fast backend is used. What it covers: the same units, sessions and
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

from inferswarm.backends.base import (
    Counters,
    MaterializedState,
    Sampler,
    StageAssignment,
    StepOutput,
    described_decoder,
)
from inferswarm.backends.sampling import GREEDY
from inferswarm.backends.sessions import check_step
from inferswarm.backends.states import assigned_states, open_tensors, rows_at_once, source_digests
from inferswarm.errors import FabricError, SpecError
from inferswarm.strategies.dense.description import BlockKind, Rope


class ReferenceExecutor:
    """Implements `StageExecutor`. Raises SpecError for any representation but fp32."""

    def __init__(self, assignment: StageAssignment) -> None:
        if assignment.representation != "fp32":
            raise SpecError("representation", assignment.representation, "fp32, the reference's only one")
        self._assignment = assignment
        self._description = described_decoder(assignment)
        self._tensors: dict[str, torch.Tensor] = {}
        self._sessions: dict[str, torch.Tensor] = {}
        self._samplers: dict[str, Sampler] = {}
        self._session_positions: dict[str, int] = {}
        self._factors_for = 0
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
                tensor = tensor.reshape(shape)
                self._tensors[name] = self._in_halves(name, tensor) if source.is_paired(name) else tensor
            size = sum(self._tensors[name].nbytes for name in tensors)
            states.append(MaterializedState(state, assignment.representation, size))
        source.finish()
        self._source_bytes = source.bytes_read
        digests = source_digests(source, shapes)
        return tuple(state._replace(source_digest=digests[state.state_id]) for state in states)

    def open(self, session: str, sampler: Sampler | None = None, *, session_positions: int | None = None) -> None:
        """Begin a session. Raises FabricError when the id is in use or all sessions are taken."""
        if not self._tensors:
            raise FabricError(f"{self._assignment.participant} is not materialized")
        if session in self._sessions:
            raise FabricError(f"session {session!r} is open already")
        if len(self._sessions) >= self._assignment.sessions:
            raise FabricError(f"session {session!r}: all {self._assignment.sessions} sessions are taken")
        self._sessions[session] = torch.empty(0, dtype=torch.int64)
        self._samplers[session] = sampler or GREEDY
        self._session_positions[session] = session_positions or self._assignment.max_positions

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
        self._factors_for = self._session_positions[session]
        output = self._compute(inputs, count, self._samplers[session] if sample else None)
        self._sessions[session] = inputs
        self._positions += count
        self._steps += 1
        return output

    def _in_halves(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor whose heads are stored in turning pairs with the first members before the second ones."""
        description = self._description
        rope = description.kind_of(int(name.split(".")[1])).rope
        turning = description.head_size if rope is None else rope.rotated_size
        heads = tensor.reshape(-1, description.head_size, *tensor.shape[1:]).clone()
        pairs = heads[:, :turning].clone()
        heads[:, : turning // 2], heads[:, turning // 2 : turning] = pairs[:, 0::2], pairs[:, 1::2]
        return heads.reshape(tensor.shape)

    def _compute(self, inputs: torch.Tensor, count: int, sampler: Sampler | None) -> StepOutput:
        hidden = inputs
        for unit in range(self._assignment.first_unit, self._assignment.end_unit):
            if unit == 0:
                hidden = self._tensors["token_embd.weight"][hidden] * self._description.embedding_scale
            elif unit <= self._description.num_blocks:
                hidden = self._block(unit - 1, hidden)
            else:
                return StepOutput() if sampler is None else self._sample(hidden[-1], sampler, len(inputs))
        return StepOutput(payload=hidden[-count:].numpy().tobytes())

    def _block(self, index: int, hidden: torch.Tensor) -> torch.Tensor:
        """Attention and gated MLP over all positions, [positions, hidden]."""
        prefix, scale = f"blk.{index}.", self._description.residual_scale
        normed = self._norm(hidden, f"{prefix}attn_norm")
        attended = self._attention(prefix, self._description.kind_of(index), normed)
        hidden = hidden + scale * self._post_norm(attended, f"{prefix}post_attention_norm")
        normed = self._norm(hidden, f"{prefix}ffn_norm")
        gate = self._map(normed, f"{prefix}ffn_gate")
        up = self._map(normed, f"{prefix}ffn_up")
        fed = self._map(self._activate(gate) * up, f"{prefix}ffn_down")
        return hidden + scale * self._post_norm(fed, f"{prefix}post_ffw_norm")

    def _activate(self, gate: torch.Tensor) -> torch.Tensor:
        if self._description.activation == "silu":
            return gate * torch.sigmoid(gate)
        bent = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
        return gate * (1 + torch.tanh(bent)) / 2

    def _attention(self, prefix: str, kind: BlockKind, normed: torch.Tensor) -> torch.Tensor:
        """Each query head by itself over the key head that it shares; positions see what lies before them."""
        description, size = self._description, self._description.head_size
        queries = self._map(normed, f"{prefix}attn_q")
        keys = self._map(normed, f"{prefix}attn_k")
        values = self._map(normed, f"{prefix}attn_v")
        at = torch.arange(len(normed))
        distance = at[:, None] - at[None, :]
        unseen = distance < 0
        if kind.window is not None:
            unseen = unseen | (distance >= kind.window)
        heads = []
        for head in range(description.num_heads):
            shared = head * description.num_key_value_heads // description.num_heads
            query = self._head(queries[:, head * size : (head + 1) * size], f"{prefix}attn_q_norm", kind.rope)
            key = self._head(keys[:, shared * size : (shared + 1) * size], f"{prefix}attn_k_norm", kind.rope)
            scores = query @ key.T * description.attention_scale
            scores = _soft_cap(scores, description.attention_soft_cap).masked_fill(unseen, float("-inf"))
            heads.append(torch.softmax(scores, dim=1) @ values[:, shared * size : (shared + 1) * size])
        return self._map(torch.cat(heads, dim=1), f"{prefix}attn_output")

    def _head(self, head: torch.Tensor, norm: str, rope: Rope | None) -> torch.Tensor:
        """Return one head of query or key, [positions, head size], normed and turned as the model does it."""
        if self._description.query_key_norms:
            head = self._norm(head, norm)
        return head if rope is None else self._rotate(head, rope)

    def _rotate(self, head: torch.Tensor, rope: Rope) -> torch.Tensor:
        """Turn each pair of numbers of one head, [positions, head size], by its position's angle."""
        half = rope.rotated_size // 2
        factors = torch.tensor(rope.factors_for(self._factors_for) or (1.0,) * half)
        angles = torch.arange(len(head))[:, None] / (rope.base ** (torch.arange(half) / half) * factors)
        cosines, sines = rope.magnitude * angles.cos(), rope.magnitude * angles.sin()
        first, second, rest = head[:, :half], head[:, half : 2 * half], head[:, 2 * half :]
        turned_first = first * cosines - second * sines
        turned_second = first * sines + second * cosines
        return torch.cat((turned_first, turned_second, rest), dim=1)

    def _map(self, rows: torch.Tensor, name: str) -> torch.Tensor:
        """Return rows times a weight, plus its bias where the model has one."""
        mapped = rows @ self._tensors[f"{name}.weight"].T
        return mapped + self._tensors[f"{name}.bias"] if f"{name}.bias" in self._tensors else mapped

    def _norm(self, hidden: torch.Tensor, name: str) -> torch.Tensor:
        mean_square = (hidden * hidden).mean(dim=1, keepdim=True)
        weight = self._tensors[f"{name}.weight"] + (1.0 if self._description.norm_adds_one else 0.0)
        return hidden / torch.sqrt(mean_square + self._description.norm_epsilon) * weight

    def _post_norm(self, part: torch.Tensor, name: str) -> torch.Tensor:
        return self._norm(part, name) if self._description.post_norms else part

    def _sample(self, hidden: torch.Tensor, sampler: Sampler, position: int) -> StepOutput:
        """Return the token at `position`. Raises FabricError for no numbers."""
        table = "token_embd" if self._description.tied_head else "output"
        logits = self._description.logit_scale * self._map(self._norm(hidden[None, :], "output_norm"), table)[0]
        logits = _soft_cap(logits, self._description.logit_soft_cap)
        self._last_logits = logits
        token, margin, logprobs = sampler.draw(logits.numpy(), position)
        digest = xxhash.xxh3_128_hexdigest(logits.numpy().tobytes())
        return StepOutput(token=token, logits_digest=digest, margin=margin, logprobs=logprobs)

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
        del self._sessions[session], self._samplers[session], self._session_positions[session]

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


def _soft_cap(values: torch.Tensor, cap: float | None) -> torch.Tensor:
    """Return the values bent so that none exceeds the cap."""
    return values if cap is None else cap * torch.tanh(values / cap)
