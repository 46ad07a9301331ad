"""Rules that the backends make true."""

from __future__ import annotations

import functools
import hashlib
import sys

import pytest
import torch

from inferswarm.artifacts.assembly import assemble
from inferswarm.backends.direct import run_direct, run_split_direct
from inferswarm.backends.registry import make_executor
from inferswarm.backends.torch_backend import executor as torch_executor
from inferswarm.backends.torch_backend.bench import resident_bytes
from inferswarm.backends.torch_backend.device import release_freed_memory
from inferswarm.errors import FabricError
from inferswarm.planner import Workload
from inferswarm.planner.memory import RangeMemory
from inferswarm.strategies.dense.model import DenseModel
from inferswarm.strategies.problem import TORCH, make_problem
from inferswarm.strategies.sampling import choose_sampling
from tests.models import write_small_llama
from tests.unit.backends.backends_support import assign, built, chain, file_chain, same_bits, small_description

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


class Disturbed:
    """A participant that something is done to before its step number `at`."""

    def __init__(self, executor, at, disturb):
        self._executor, self._left, self._disturb = executor, at, disturb

    def __getattr__(self, name):
        return getattr(self._executor, name)

    def step(self, *arguments, **options):
        self._left -= 1
        if self._left == 0:
            self._disturb()
        return self._executor.step(*arguments, **options)


def forget_memoized():
    """Forget what every memoizing function of the package remembers. Returns how many results those were."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("inferswarm.")]
    memoized = {item for module in modules for item in vars(module).values() if hasattr(item, "cache_clear")}
    forgotten = sum(function.cache_info().currsize for function in memoized)
    for function in memoized:
        function.cache_clear()
    return forgotten


@pytest.mark.rule(17)
def test_an_answer_needs_no_copy_that_is_only_kept_to_save_work(tmp_path):
    """The file that slices were put together into and every memoized result go in mid-run: the bits stay, and so do
    those of whoever puts it together again.

    Mutation: look an embedding's rows up in the file at each step, or let `assemble` insist on its earlier file.
    """
    data = write_small_llama(tmp_path / "whole.gguf").read_bytes()
    slices = [tmp_path / "first", tmp_path / "second"]
    for path, part in zip(slices, (data[:99_999], data[99_999:]), strict=True):
        path.write_bytes(part)
    kept = tmp_path / "cache" / "model.gguf"
    place = functools.partial(assemble, slices, kept, len(data), hashlib.sha256(data).hexdigest())
    model = DenseModel.open(place())
    executors = file_chain(model, (0, 3, 6))
    run = {"max_tokens": 12, "chunk_positions": 64}
    expected = run_split_direct(executors, PROMPT, **run)

    def drop():
        kept.unlink()
        assert forget_memoized() > 0

    disturbed = run_split_direct([Disturbed(executors[0], 6, drop), executors[1]], PROMPT, **run)
    assert not kept.exists()
    assert same_bits(disturbed, expected)
    assert place().read_bytes() == data
    assert same_bits(run_split_direct(file_chain(DenseModel.open(kept), (0, 3, 6)), PROMPT, **run), expected)


@pytest.mark.rule(21)
def test_what_an_accelerator_holds_has_no_equal_copy_in_ram(smollm2_path, monkeypatch):
    """Every state is built on the device as planned, and RAM has not grown by it.

    Torch's `meta` device stands for an accelerator: it takes no RAM, so whatever has grown there is a mirror.

    Mutation: fill weights in RAM and keep them beside what `.to(device)` gives, in `WeightLoader` or `build_linear`.
    """
    model = DenseModel.open(smollm2_path)
    file_chain(model, (6, 7))  # what loads lazily has loaded
    requirement = model.requirement(model.problem(), "part", 6, 14)
    monkeypatch.setattr(torch_executor, "device_of", lambda binding: torch.device("meta"))
    executor = make_executor(assign(model.description, 6, 14, requirement=requirement))
    release_freed_memory()
    before = resident_bytes("VmRSS")
    states = executor.materialize(lambda done, total: None)
    grown = resident_bytes("VmRSS") - before
    planned = {state.id: state.sizes[0].bytes for state in model.problem().states}
    assert [(state.state_id, state.bytes) for state in states] == [
        (name, planned[name]) for name in requirement.state_ids
    ]
    assert executor.cache.keys[0].device.type == "meta"
    assert sum(state.bytes for state in states) > 100 * 2**20
    assert grown < 4 * 2**20


@pytest.mark.rule(25)
def test_what_a_session_let_go_of_is_kept_and_what_is_released_is_gone():
    """A closed session's room is free for the next, and still resident and required; the memory is back when the
    participant has gone.

    Mutation: let `PagedCache` count or fill only the pages that sessions have, or keep its pool behind the executor.
    """
    description = small_description(num_blocks=2, context_positions=2**15)
    build = functools.partial(built, assign(description, 1, 3, max_positions=2**15, chunk_positions=2**10))
    build()  # what loads lazily has loaded
    release_freed_memory()
    before = resident_bytes("VmRSS")
    executor = build()
    release_freed_memory()
    full, pool = resident_bytes("VmRSS"), executor.cache.num_bytes
    workload = Workload(prompt_tokens=2**15 - 1, output_tokens=1)
    terms = RangeMemory(make_problem(description), TORCH[0], workload).terms(1, 3)
    required = next(term.bytes for term in terms if term.name == "mutable state")
    assert required == pool == 16 * 2**20

    executor.open("first")
    with pytest.raises(FabricError, match="all 1 sessions are taken"):
        executor.open("second")
    executor.close("first")
    executor.open("second")  # the room was let go of
    executor.close("second")
    release_freed_memory()
    assert executor.cache.num_bytes == pool
    assert resident_bytes("VmRSS") > full - 2**20  # and is kept

    del executor
    release_freed_memory()
    assert resident_bytes("VmRSS") < before + 2**20  # given back


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
