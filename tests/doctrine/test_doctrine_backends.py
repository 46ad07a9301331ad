"""Rules that the backends make true."""

from __future__ import annotations

import pytest
import torch

from inferswarm.backends.direct import run_direct, run_split_direct
from inferswarm.backends.registry import make_executor
from inferswarm.backends.torch_backend.bench import resident_bytes
from inferswarm.backends.torch_backend.device import release_freed_memory
from inferswarm.strategies.dense.model import DenseModel
from inferswarm.strategies.sampling import choose_sampling
from tests.models import write_small_llama
from tests.unit.backends.backends_support import assign, chain, file_chain, same_bits, small_description

PROMPT = [(23 * index + 5) % 320 for index in range(90)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return DenseModel.open(write_small_llama(tmp_path_factory.mktemp("model") / "small.gguf"))


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.mark.rule(16)
def test_staging_is_given_back_and_is_no_state(smollm2_path):
    """After materializing, memory has grown by the states and the sessions' pages, and only states are listed.

    Mutation: keep each packed weight's plain copy, or the decoded rows, or do not give freed memory back.
    """
    model = DenseModel.open(smollm2_path)
    file_chain(model, (4, 6))  # what loads lazily has loaded
    problem = model.problem()
    requirement = model.requirement(problem, "part", 6, 14)
    executor = make_executor(assign(model.description, 6, 14, requirement=requirement, max_positions=64))
    release_freed_memory()
    before = resident_bytes("VmRSS")
    states = executor.materialize(lambda done, total: None)
    grown = resident_bytes("VmRSS") - before
    planned = {state.id: state.sizes[0].bytes for state in problem.states}
    assert [(state.state_id, state.bytes) for state in states] == [
        (name, planned[name]) for name in requirement.state_ids
    ]
    kept = sum(state.bytes for state in states) + executor.cache.num_bytes
    assert grown - kept < 4 * 2**20


@pytest.mark.rule(74)
def test_no_state_moves_while_a_session_runs(model):
    """States are read once, when they are materialized; steps move only boundaries.

    Mutation: look an embedding's rows up in the file at each step.
    """
    executors = file_chain(model, (0, 2, 4, 6))
    reads = [executor.counters().source_bytes_read for executor in executors]
    run_split_direct(executors, PROMPT, max_tokens=20, chunk_positions=64)
    for executor, read in zip(executors, reads, strict=True):
        counters = executor.counters()
        assert counters.positions == len(PROMPT) + 20 - 1
        assert counters.source_bytes_read == read > 0
        assert counters.state_bytes_moved_after_materialization == 0


@pytest.mark.rule("75a")
def test_a_fused_and_an_unfused_realization_match_one_plan(model):
    """The fast backend fuses maps and shares tables, the reference does neither: the states are the plan's in both.

    Mutation: report a fused weight as a state of its own, or count the shared table twice.
    """
    problem = model.problem()
    planned = {state.id: state.sizes[0].bytes for state in problem.states}
    requirement = model.requirement(problem, "all", 0, 6)
    held = []
    for primitive in ("torch", "reference"):
        executor = make_executor(assign(model.description, requirement=requirement, primitive=primitive))
        held.append([state[:3] for state in executor.materialize(lambda done, total: None)])
    assert held[0] == held[1] == [(name, "fp32", planned[name]) for name in requirement.state_ids]


@pytest.mark.rule("75b")
@pytest.mark.parametrize("representation", ["fp32", "bf16"])
def test_one_path_sampled_twice_agrees_in_every_token(representation):
    """Tokens drawn by chance are the same however the chain is cut, and another seed gives others.

    Mutation: key the random number by anything but seed and position, or leave the seed out; draw at a stage that is
    not the last; give the sampler another history.
    """
    sampling = choose_sampling(temperature=2.0, top_p=0.98, repetition_penalty=1.2, seed=2**64 - 1, logprobs=2)
    run = {"max_tokens": 24, "chunk_positions": 64}
    description = small_description()
    (whole,) = chain(description, (0, 6), representation=representation)
    expected = run_direct(whole, PROMPT, sampling=sampling, **run)
    for cuts in ((0, 6), (0, 3, 6), (0, 1, 4, 6)):
        answer = run_split_direct(
            chain(description, cuts, representation=representation), PROMPT, sampling=sampling, **run
        )
        assert same_bits(answer, expected)
        assert answer.logprobs == expected.logprobs
    assert run_direct(whole, PROMPT, sampling=sampling.with_seed(1), **run).tokens != expected.tokens


@pytest.mark.rule("75b")
@pytest.mark.parametrize("representation", ["fp32", "bf16"])
def test_one_path_executed_twice_agrees_in_every_bit(representation):
    """The same representation and partition, cut differently, give the same logits, bit for bit.

    Mutation: let the number of threads, the alignment of a payload or a page's place choose another kernel.
    """
    description = small_description()
    run = {"max_tokens": 16, "chunk_positions": 64}
    (whole,) = chain(description, (0, 6), representation=representation)
    expected = run_direct(whole, PROMPT, **run)
    for cuts in ((0, 6), (0, 3, 6), (0, 1, 4, 6)):
        assert same_bits(
            run_split_direct(chain(description, cuts, representation=representation), PROMPT, **run), expected
        )
