"""Materializing: rows end up where rotating halves needs them, bytes are counted, staging is small and given back."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from inferswarm.backends import states as states_module
from inferswarm.backends.registry import make_executor
from inferswarm.backends.states import assigned_states
from inferswarm.backends.torch_backend.rope import RotaryTable, halves_row, rotate
from inferswarm.backends.torch_backend.weights import WeightLoader
from inferswarm.strategies.dense.description import Rope
from inferswarm.strategies.dense.model import DenseModel
from tests.models import write_small_llama
from tests.unit.backends.backends_support import assign, built, file_chain, small_description

CPU = torch.device("cpu")


class CountedRows:
    """Rows that say where they come from: row r of a tensor is filled with its own number, plus the tensor's."""

    bytes_read = 0

    def __init__(self, shapes, paired=("attn_q.weight", "attn_k.weight")):
        self.paired = paired
        self.shapes = {name: shape for tensors in shapes.values() for name, shape in tensors.items()}
        self.asked = []

    def number(self, name):
        return 1000 * sorted(self.shapes).index(name)

    def rows(self, name, first, end):
        self.asked.append((name, first, end))
        shape = self.shapes[name]
        values = np.arange(first, end, dtype=np.float32)[:, None] + self.number(name)
        return np.broadcast_to(values, (end - first, shape[-1])).copy()

    def is_paired(self, name):
        return name.endswith(self.paired)

    def finish(self):
        pass


def weight_rows(linear, columns):
    """The value of each row of a weight, read through the map itself."""
    with torch.inference_mode():
        inputs = torch.zeros(1, columns)
        inputs[0, 0] = 1.0
        return linear(inputs)[0].tolist()


@pytest.mark.parametrize("chunk_values", [64, 64 * 7, 2**18])
@pytest.mark.parametrize("head_size", [16, 20])
def test_pairs_become_halves_within_each_head(monkeypatch, chunk_values, head_size):
    monkeypatch.setattr(states_module, "CHUNK_VALUES", chunk_values)
    description = small_description(head_size=head_size, num_heads=4, num_key_value_heads=2)
    source = CountedRows(assigned_states(description, 1, 2))
    with torch.inference_mode():
        block = WeightLoader(description, source, torch.float32, CPU).block(0, 1)
    found = weight_rows(block.query_key_value, 64)
    half = head_size // 2

    def heads_of(name, count):
        base = source.number(f"blk.0.{name}.weight")
        return [
            base + head * head_size + 2 * pair + member
            for head in range(count)
            for member in (0, 1)
            for pair in range(half)
        ]

    values = source.number("blk.0.attn_v.weight")
    expected = heads_of("attn_q", 4) + heads_of("attn_k", 2) + [values + row for row in range(2 * head_size)]
    assert found == expected
    gate, up = source.number("blk.0.ffn_gate.weight"), source.number("blk.0.ffn_up.weight")
    assert weight_rows(block.gate_up, 64) == [gate + row for row in range(128)] + [up + row for row in range(128)]


def test_rows_stored_for_halves_stay_where_they_are():
    description = small_description()
    source = CountedRows(assigned_states(description, 1, 2), paired=())
    with torch.inference_mode():
        block = WeightLoader(description, source, torch.float32, CPU).block(0, 1)
    base = source.number("blk.0.attn_q.weight")
    assert weight_rows(block.query_key_value, 64)[:64] == [base + row for row in range(64)]


def test_each_row_is_asked_for_once_and_in_order():
    description = small_description()
    source = CountedRows(assigned_states(description, 0, 2))
    with torch.inference_mode():
        loader = WeightLoader(description, source, torch.bfloat16, CPU)
        loader.table("token_embd.weight")
        loader.block(0, 1)
    for name, shape in source.shapes.items():
        parts = [(first, end) for asked, first, end in source.asked if asked == name]
        assert [first for first, _ in parts] == [0, *(end for _, end in parts[:-1])]
        assert parts[-1][1] == (shape[0] if len(shape) > 1 else 1)


def test_rotating_halves_of_reordered_rows_rotates_the_stored_pairs():
    generator = torch.Generator().manual_seed(1)
    stored = torch.randn(5, 3, 8, generator=generator, dtype=torch.float32)
    table = RotaryTable(Rope(base=10000.0, rotated_size=8), (), 32, CPU)
    places = halves_row(np.arange(8), 8)
    reordered = torch.empty_like(stored)
    reordered[..., torch.from_numpy(places)] = stored
    turned = rotate(reordered, *table.at(7, 5))[..., torch.from_numpy(places)]
    for position in range(5):
        for pair in range(4):
            angle = (7 + position) / 10000.0 ** (2 * pair / 8)
            expected = torch.view_as_complex(stored[position, :, 2 * pair : 2 * pair + 2].contiguous())
            expected = torch.view_as_real(expected * complex(np.cos(angle), np.sin(angle)))
            torch.testing.assert_close(turned[position, :, 2 * pair : 2 * pair + 2], expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize(("representation", "value_bytes"), [("fp32", 4), ("bf16", 2)])
@pytest.mark.parametrize("tied", [True, False])
def test_states_have_the_bytes_that_the_problem_states(tmp_path, representation, value_bytes, tied):
    model = DenseModel.open(write_small_llama(tmp_path / "small.gguf", tied=tied))
    planned = {
        state.id: size.bytes
        for state in model.problem().states
        for size in state.sizes
        if size.representation == representation
    }
    (executor,) = file_chain(model, (0, 6), representation=representation)
    assert executor.counters().materialized_bytes == sum(planned.values())
    assert planned["token-table"] == 320 * 64 * value_bytes
    for first, end in ((0, 2), (2, 5), (5, 6)):
        requirement = model.requirement(model.problem(), "part", first, end)
        part = make_executor(
            assign(model.description, first, end, representation=representation, requirement=requirement)
        )
        states = part.materialize(lambda done, total: None)
        assert {state.state_id: state.bytes for state in states} == {
            name: planned[name] for name in requirement.state_ids
        }
        assert part.counters().source_bytes_read == requirement.bytes


def test_a_tied_table_in_one_place_is_one_table():
    executor = built(assign(small_description()))
    assert executor._head.table is executor._embedding.table


_MEASURE = """
import sys
from inferswarm.backends.torch_backend import bench, probing  # loads everything first
from inferswarm.backends.torch_backend.device import release_freed_memory
from inferswarm.strategies.dense.model import DenseModel
from tests.unit.backends.backends_support import assign
from inferswarm.backends.registry import make_executor
import torch
torch.set_num_threads(1)
model = DenseModel.open(sys.argv[1])
representation, first, end = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])


def unbuilt(first, end):
    requirement = model.requirement(model.problem(), "part", first, end)
    return make_executor(
        assign(model.description, first, end, representation=representation, requirement=requirement)
    )


unbuilt(1, 2).materialize(lambda done, total: None)  # what loads lazily has loaded
executor = unbuilt(first, end)
release_freed_memory()
assert bench.reset_peak()
before = bench.resident_bytes("VmRSS")
executor.materialize(lambda done, total: None)
kept = executor.counters().materialized_bytes + executor.cache.num_bytes
print(kept, bench.resident_bytes("VmRSS") - before, bench.resident_bytes("VmHWM") - before)
"""


@pytest.mark.parametrize(("representation", "first", "end"), [("fp32", 1, 9), ("bf16", 0, 6)])
def test_staging_stays_below_sixteen_mebibytes_and_is_given_back(smollm2_path, representation, first, end):
    command = [sys.executable, "-c", _MEASURE, str(smollm2_path), representation, str(first), str(end)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    kept, resident, peak = (int(number) for number in answer.stdout.split())
    assert peak - kept < 16 * 2**20
    assert resident - kept < 4 * 2**20
    assert resident > 0.95 * kept
