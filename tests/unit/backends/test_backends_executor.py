"""The torch executor at its seam: what it refuses, what it counts, and that splits change no bit."""

from __future__ import annotations

import msgspec
import pytest
import torch

from inferswarm.backends.base import StageExecutor, StepOutput, UnitBinding
from inferswarm.backends.direct import run_direct, run_split_direct
from inferswarm.backends.registry import make_executor
from inferswarm.backends.torch_backend import executor as executor_module
from inferswarm.errors import FabricError, SpecError
from tests.unit.backends.backends_support import (
    assign,
    built,
    chain,
    same_bits,
    small_description,
    tokens_payload,
)

DESCRIPTION = small_description(tied_head=False)
PROMPT = [(17 * index + 3) % 320 for index in range(131)]
REPRESENTATIONS = pytest.mark.parametrize("representation", ["fp32", "bf16"])


@pytest.fixture(scope="module")
def whole():
    return built(assign(DESCRIPTION))


@pytest.fixture
def session(whole):
    whole.open("a")
    yield whole
    whole.close("a")


@REPRESENTATIONS
@pytest.mark.parametrize("cuts", [(0, 3, 6), (0, 1, 6), (0, 5, 6), (0, 1, 5, 6), (0, 1, 2, 3, 4, 5, 6)])
def test_a_split_has_the_bits_of_the_whole(representation, cuts):
    expected = run_direct(
        built(assign(DESCRIPTION, representation=representation)), PROMPT, max_tokens=24, chunk_positions=64
    )
    split = chain(DESCRIPTION, cuts, representation=representation)
    assert same_bits(run_split_direct(split, PROMPT, max_tokens=24, chunk_positions=64), expected)
    assert len(set(expected.tokens)) > 1


@REPRESENTATIONS
@pytest.mark.parametrize(
    "changes",
    [
        {"tied_head": True},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1},
        {"head_size": 20},
        {"vocabulary_size": 321, "hidden_size": 36, "feed_forward_size": 50},
    ],
)
def test_other_shapes_split_bit_for_bit_too(representation, changes):
    description = small_description(**changes)
    prompt = PROMPT[:70]
    expected = run_direct(
        built(assign(description, representation=representation)), prompt, max_tokens=8, chunk_positions=64
    )
    split = chain(description, (0, 2, 5, 6), representation=representation)
    assert same_bits(run_split_direct(split, prompt, max_tokens=8, chunk_positions=64), expected)


@REPRESENTATIONS
def test_a_replay_of_the_recorded_partition_has_the_same_bits(representation):
    executor = built(assign(DESCRIPTION, representation=representation))
    first = run_direct(executor, PROMPT, max_tokens=16, chunk_positions=64)
    assert [(step.start, step.count) for step in first.steps[:3]] == [(0, 64), (64, 64), (128, 3)]
    other = built(assign(DESCRIPTION, representation=representation))
    again = run_direct(other, PROMPT, max_tokens=16, chunk_positions=64, steps=first.steps, forced=first.tokens)
    assert same_bits(first, again)


@REPRESENTATIONS
def test_changing_threads_within_one_process_changes_no_bit(representation):
    expected = [
        run_direct(
            built(assign(DESCRIPTION, representation=representation, threads=((0, 6, threads),))),
            PROMPT,
            max_tokens=8,
            chunk_positions=64,
        )
        for threads in (1, 2)
    ]
    spans = ((0, 2, 1), (2, 4, 2), (4, 6, 1))
    mixed = built(assign(DESCRIPTION, representation=representation, threads=spans))
    split = chain(DESCRIPTION, (0, 2, 4, 6), representation=representation, threads=spans)
    alone = run_direct(mixed, PROMPT, max_tokens=8, chunk_positions=64)
    torch.set_num_threads(2)
    assert same_bits(alone, run_split_direct(split, PROMPT, max_tokens=8, chunk_positions=64))
    assert len(expected[0].tokens) == len(expected[1].tokens) == 8


def test_threads_are_set_for_each_span(whole, monkeypatch):
    asked = []
    monkeypatch.setattr(executor_module, "set_threads", asked.append)
    spans = ((0, 2, 1), (2, 4, 2), (4, 6, 3))
    executor = built(assign(DESCRIPTION, threads=spans))
    asked.clear()
    run_direct(executor, [1, 2, 3], max_tokens=1, chunk_positions=64)
    assert asked == [1, 1, 2, 3, 3]


@REPRESENTATIONS
@pytest.mark.parametrize("shift", [1, 3, 7])
def test_a_payload_anywhere_in_memory_gives_the_same_bits(representation, shift):
    first, last = chain(DESCRIPTION, (0, 3, 6), representation=representation)
    first.open("a")
    boundary = first.step("a", 0, 40, tokens_payload(PROMPT[:40]), sample=False).payload
    outputs = []
    for payload in (boundary, memoryview(b"x" * shift + boundary)[shift:]):
        last.open("a")
        outputs.append(last.step("a", 0, 40, payload, sample=True))
        last.close("a")
    assert outputs[0] == outputs[1]


def test_an_unsampled_step_of_the_head_gives_nothing(session):
    assert session.step("a", 0, 5, tokens_payload(PROMPT[:5]), sample=False) == StepOutput()


def test_a_boundary_has_the_bytes_of_its_representation():
    for representation, size in (("fp32", 4), ("bf16", 2)):
        part = built(assign(DESCRIPTION, 0, 3, representation=representation))
        part.open("a")
        output = part.step("a", 0, 5, tokens_payload(PROMPT[:5]), sample=True)
        assert len(output.payload) == 5 * 64 * size
        assert output.token is None


@pytest.mark.parametrize(
    ("start", "count", "payload", "finding"),
    [
        (1, 1, tokens_payload([1]), "has 0 positions; a step from 1 on does not continue it"),
        (0, 0, b"", "1 to 64 positions, not 0"),
        (0, 65, tokens_payload([1] * 65), "1 to 64 positions, not 65"),
        (0, 2, tokens_payload([1]), "2 positions take 8 B; the payload has 4 B"),
        (0, 1, tokens_payload([320]), "token id 320 is not in the vocabulary of 320"),
        (0, 2, tokens_payload([5, -1]), "token id -1 is not in the vocabulary"),
    ],
)
def test_a_wrong_step_is_refused_and_changes_nothing(session, start, count, payload, finding):
    with pytest.raises(FabricError, match=finding):
        session.step("a", start, count, payload, sample=False)
    assert session.length("a") == 0
    session.cache.check_integrity()


def test_a_session_ends_at_its_planned_length():
    executor = built(assign(DESCRIPTION, max_positions=70))
    executor.open("a")
    executor.step("a", 0, 64, tokens_payload(PROMPT[:64]), sample=False)
    with pytest.raises(FabricError, match="may have 70 positions; the step ends at 71"):
        executor.step("a", 64, 7, tokens_payload(PROMPT[:7]), sample=False)
    executor.step("a", 64, 6, tokens_payload(PROMPT[:6]), sample=False)


def test_sessions_are_opened_once_closed_once_and_bounded(session):
    with pytest.raises(FabricError, match="'a' is open already"):
        session.open("a")
    with pytest.raises(FabricError, match="all 1 sessions are taken"):
        session.open("b")
    for call in (session.close, session.length, lambda name: session.truncate(name, 0)):
        with pytest.raises(FabricError, match="'b' is not open"):
            call("b")
    with pytest.raises(FabricError, match="cannot be cut to 1"):
        session.truncate("a", 1)
    with pytest.raises(FabricError, match="'b' is not open"):
        session.step("b", 0, 1, tokens_payload([1]), sample=False)


def test_before_materializing_nothing_works_and_afterwards_not_again():
    executor = make_executor(assign(DESCRIPTION))
    with pytest.raises(FabricError, match="not materialized"):
        executor.open("a")
    executor.materialize(lambda done, total: None)
    with pytest.raises(FabricError, match="materialized already"):
        executor.materialize(lambda done, total: None)


def test_logits_that_are_not_finite_fail_the_step_and_leave_the_session():
    executor = built(assign(DESCRIPTION))
    executor.open("a")
    executor.step("a", 0, 3, tokens_payload([1, 2, 3]), sample=True)
    with torch.inference_mode():
        executor._head._norm._weight[7] = float("inf")
    with pytest.raises(FabricError, match=r"session 'a', positions 3 to 4: the logits are not finite"):
        executor.step("a", 3, 1, tokens_payload([4]), sample=True)
    assert executor.length("a") == 3
    executor.cache.check_integrity()


def test_counters_count_positions_and_steps(whole):
    before = whole.counters()
    run_direct(whole, PROMPT, max_tokens=5, chunk_positions=64)
    after = whole.counters()
    assert after.positions - before.positions == len(PROMPT) + 5 - 1
    assert after.steps - before.steps == 3 + 4
    assert after.state_bytes_moved_after_materialization == 0


@REPRESENTATIONS
def test_the_kernel_line_names_what_decides_the_bits(representation):
    line = built(assign(DESCRIPTION, representation=representation)).kernel()
    for part in (
        f"torch {torch.__version__}",
        f"dtype {representation}",
        "gate_up ",
        "mkl ",
        "onednn ",
        "attention ",
    ):
        assert part in line
    assert "unknown" not in line


def test_participants_of_one_chain_state_one_kernel():
    lines = {executor.kernel() for executor in chain(DESCRIPTION, (0, 1, 3, 5, 6))}
    assert len(lines) == 1


def test_an_unserved_kind_of_compute_unit_is_refused():
    def on(kind):
        return msgspec.structs.replace(assign(DESCRIPTION), compute_unit=UnitBinding(id="unit-1", kind=kind))

    with pytest.raises(SpecError, match="'npu'"):
        executor_module.TorchExecutor(on("npu"))
    if not torch.cuda.is_available():
        with pytest.raises(SpecError, match="cuda 0"):
            executor_module.TorchExecutor(on("cuda"))
    with pytest.raises(SpecError, match="cpu, which is all that primitive transformers computes on"):
        make_executor(msgspec.structs.replace(on("cuda"), primitive="transformers"))


def test_the_executor_fits_the_seam(whole):
    names = [name for name in vars(StageExecutor) if not name.startswith("_")]
    assert [name for name in names if not callable(getattr(whole, name))] == []
