"""The executor of hosted models: slices equal the whole, the whole equals the host, sessions are independent."""

from __future__ import annotations

import itertools
from functools import lru_cache
from pathlib import Path

import pytest
import torch

from inferswarm.backends.direct import run_split_direct
from inferswarm.backends.partition import Step
from inferswarm.backends.registry import make_executor
from inferswarm.backends.states import assigned_states
from inferswarm.backends.transformers_backend.describing import describe_hosted
from inferswarm.errors import ArtifactError, FabricError, SpecError
from tests.hosted import (
    PROMPT,
    hosted_assignment,
    hosted_chain,
    load_host,
    run_host,
    save_family,
)
from tests.unit.backends.backends_support import assign, small_description

FAMILIES = ("gpt_neox", "gemma3_text", "mixtral")
"""Another norm and biases; windows, tied tables and a scaled embedding; experts that files hold one by one."""


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    @lru_cache
    def save(family: str) -> Path:
        return save_family(family, tmp_path_factory.mktemp(family))

    return save


def payload(ids):
    return b"".join(token.to_bytes(4, "little") for token in ids)


def generate(executors, **options):
    return run_split_direct(executors, PROMPT, max_tokens=10, chunk_positions=16, **options)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_bytes_behind_a_state_have_one_digest_for_every_cut_and_representation(saved, family):
    description, files = describe_hosted(saved(family))

    def digests(representation, *edges):
        held = {}
        for first, end in itertools.pairwise(edges):
            part = hosted_assignment(description, files, first, end, representation=representation)
            for state in make_executor(part).materialize(lambda done, total: None):
                assert held.setdefault(state.state_id, state.source_digest) == state.source_digest
        return held

    whole = digests("bf16", 0, 5)
    assert None not in whole.values()
    assert digests("fp32", 0, 2, 3, 5) == whole


@pytest.mark.parametrize("representation", ["fp32", "bf16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_whole_chain_computes_what_the_unsliced_host_computes(saved, family, representation):
    description, files = describe_hosted(saved(family))
    result = generate(hosted_chain(description, files, representation=representation))
    known = (*PROMPT, *result.tokens)
    tokens, digests = run_host(load_host(saved(family), representation), known, result.steps)
    prompt_steps = len(result.steps) - len(result.tokens)
    assert result.tokens == tuple(tokens[prompt_steps:])
    assert result.logits_digests == tuple(digests[prompt_steps:])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_cut_gives_the_same_bits(saved, family):
    description, files = describe_hosted(saved(family))
    whole = generate(hosted_chain(description, files))
    units = range(1, len(description.unit_ids))
    for cuts in (*((cut,) for cut in units), tuple(units)):
        assert generate(hosted_chain(description, files, *cuts)) == whole, cuts


def test_units_keep_their_threads_wherever_the_chain_is_cut(saved):
    description, files = describe_hosted(saved("gpt_neox"))
    spans = ((0, 2, 1), (2, 3, 2), (3, 5, 1))
    whole = generate(hosted_chain(description, files, threads=spans))
    assert generate(hosted_chain(description, files, 2, 3, threads=spans)) == whole
    (executor,) = hosted_chain(description, files, threads=spans)
    seen = {}
    for index, block in enumerate(executor._slice._model.blocks):
        block.register_forward_pre_hook(lambda *_, index=index: seen.update({index: torch.get_num_threads()}))
    executor._slice._model.module.lm_head.register_forward_pre_hook(
        lambda *_: seen.update(head=torch.get_num_threads())
    )
    executor.open("s")
    executor.step("s", 0, 2, payload((1, 2)), sample=True)
    assert seen == {0: 1, 1: 2, 2: 1, "head": 1}


@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33])
def test_chunks_and_windows_have_no_seams(saved, length):
    """A window of 16 positions and chunks of 16: one chunk, smaller ones and single steps see the same."""
    description, files = describe_hosted(saved("gemma3_text"))
    prompt, chain = (PROMPT * 2)[:length], hosted_chain(description, files, 2)
    results = [run_split_direct(chain, prompt, max_tokens=4, chunk_positions=chunk).tokens for chunk in (1, 5, 16)]
    full = load_host(saved("gemma3_text"))
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(4):
            ids.append(int(full(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    assert results == [tuple(ids[length:])] * 3


@pytest.mark.parametrize("cut", [0, 1, 16, 20, 36])
def test_what_was_truncated_is_computed_again_with_the_same_bits(saved, cut):
    description, files = describe_hosted(saved("gpt_neox"))
    (executor,) = hosted_chain(description, files)
    executor.open("s")
    steps = [(0, 16), (16, 16), (32, 5), *((37 + index, 1) for index in range(3))]
    ids = (*PROMPT, 1, 2, 3)
    first = [executor.step("s", start, n, payload(ids[start : start + n]), sample=True) for start, n in steps]
    executor.truncate("s", cut)
    assert executor.length("s") == cut
    executor.step("s", cut, 1, payload(ids[cut : cut + 1]), sample=False)  # another partition in between
    executor.truncate("s", 0)
    again = [executor.step("s", start, n, payload(ids[start : start + n]), sample=True) for start, n in steps]
    assert again == first


@pytest.mark.parametrize("kept", [1, 3, 5])
def test_a_session_cut_where_a_step_ended_goes_on_with_the_same_bits(saved, kept):
    description, files = describe_hosted(saved("gemma3_text"))  # some of its blocks see a window only
    (executor,) = hosted_chain(description, files)
    executor.open("s")
    steps = [(0, 16), (16, 16), (32, 5), *((37 + index, 1) for index in range(3))]
    ids = (*PROMPT, 1, 2, 3)
    first = [executor.step("s", start, n, payload(ids[start : start + n]), sample=True) for start, n in steps]
    executor.truncate("s", steps[kept][0])
    again = [executor.step("s", start, n, payload(ids[start : start + n]), sample=True) for start, n in steps[kept:]]
    assert again == first[kept:]


def test_sessions_that_take_turns_do_not_touch_each_other(saved):
    description, files = describe_hosted(saved("gemma3_text"))
    first, last = hosted_chain(description, files, 2, sessions=2)
    alone = {
        name: run_split_direct([first, last], ids, max_tokens=3, chunk_positions=16).logits_digests
        for name, ids in (("a", PROMPT), ("b", PROMPT[::-1]))
    }
    for executor in (first, last):
        executor.open("a")
        executor.open("b")
    digests = {"a": [], "b": []}
    known = {"a": list(PROMPT), "b": list(PROMPT[::-1])}
    for start, count in ((0, 16), (16, 16), (32, 5), (37, 1), (38, 1)):
        for name in ("a", "b"):
            ids = payload(known[name][start : start + count])
            boundary = first.step(name, start, count, ids, sample=False).payload
            output = last.step(name, start, count, boundary, sample=start >= 32)
            if output.token is not None:
                known[name].append(output.token)
                digests[name].append(output.logits_digest)
    assert {name: tuple(found) for name, found in digests.items()} == alone


@pytest.mark.parametrize("units", [(0, 1), (0, 2), (1, 3), (3, 5), (4, 5)])
def test_exactly_the_required_bytes_are_read(saved, units):
    description, files = describe_hosted(saved("mixtral"))
    assignment = hosted_assignment(description, files, *units)
    executor = make_executor(assignment)
    states = executor.materialize(lambda done, total: None)
    assert executor.counters().source_bytes_read == assignment.requirement.bytes < files.length
    assert [state.state_id for state in states] == list(assignment.requirement.state_ids)
    assert executor.counters().materialized_bytes == assignment.requirement.bytes  # fp32 in the files as well


def test_only_the_own_weights_are_in_memory(saved):
    description, files = describe_hosted(saved("gpt_neox"))
    (first, middle, last) = hosted_chain(description, files, 2, 3)
    for executor, units in ((first, (0, 2)), (middle, (2, 3)), (last, (3, 5))):
        storages = {}
        for tensor in executor._slice._model.module.parameters():
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        wanted = sum(
            torch.Size(shape).numel() * 4
            for tensors in assigned_states(description, *units).values()
            for shape in tensors.values()
        )
        assert wanted <= sum(storages.values()) <= wanted + 4 * 64  # placeholders hold one number each


def test_random_states_need_no_file(saved):
    description, _ = describe_hosted(saved("mixtral"))
    executor = make_executor(hosted_assignment(description, None))
    executor.materialize(lambda done, total: None)
    executor.open("s")
    assert executor.step("s", 0, 3, payload((1, 2, 3)), sample=True).token is not None
    assert executor.counters().source_bytes_read == 0


def test_a_file_that_was_cut_short_is_refused(saved, tmp_path):
    path = save_family("gpt_neox", tmp_path)
    description, files = describe_hosted(path)
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(ArtifactError, match=r"has [0-9,]+ B"):
        hosted_chain(description, files)


REFUSED_STEPS = {
    "a gap": (17, 1, payload((1,)), "does not continue"),
    "too many": (16, 17, payload(range(17)), "1 to 16"),
    "a short payload": (16, 2, payload((1,)), "take 8 B"),
    "a foreign token": (16, 1, payload((97,)), "not in the vocabulary"),
}


@pytest.mark.parametrize(("start", "count", "ids", "message"), REFUSED_STEPS.values(), ids=REFUSED_STEPS)
def test_a_wrong_step_is_refused_and_changes_nothing(saved, start, count, ids, message):
    description, files = describe_hosted(saved("gpt_neox"))
    (executor,) = hosted_chain(description, files)
    executor.open("s")
    executor.step("s", 0, 16, payload(PROMPT[:16]), sample=False)
    with pytest.raises(FabricError, match=message):
        executor.step("s", start, count, ids, sample=True)
    assert executor.length("s") == 16
    before = executor.step("s", 16, 4, payload(PROMPT[16:20]), sample=True)
    executor.truncate("s", 16)
    assert executor.step("s", 16, 4, payload(PROMPT[16:20]), sample=True) == before


def test_logits_that_are_not_finite_leave_the_session_as_it_was(saved):
    description, files = describe_hosted(saved("gpt_neox"))
    (executor,) = hosted_chain(description, files)
    executor.open("s")
    executor.step("s", 0, 5, payload(PROMPT[:5]), sample=False)
    weight = executor._slice._model.module.lm_head.weight
    healthy = weight.data.clone()
    with torch.inference_mode():
        weight.data[3] = float("nan")
    with pytest.raises(FabricError, match="positions 5 to 7: the logits are not finite"):
        executor.step("s", 5, 2, payload(PROMPT[5:7]), sample=True)
    with torch.inference_mode():
        weight.data.copy_(healthy)
    assert executor.length("s") == 5
    assert executor.step("s", 5, 2, payload(PROMPT[5:7]), sample=True).token is not None


def test_sessions_are_limited_known_and_named(saved):
    description, files = describe_hosted(saved("gpt_neox"))
    executor = make_executor(hosted_assignment(description, files))
    with pytest.raises(FabricError, match="not materialized"):
        executor.open("a")
    executor.materialize(lambda done, total: None)
    executor.open("a")
    for refused, message in (
        (lambda: executor.open("a"), "open already"),
        (lambda: executor.open("b"), "all 1"),
        (lambda: executor.close("b"), "not open"),
        (lambda: executor.truncate("a", 1), "cut to 1"),
        (lambda: executor.materialize(lambda done, total: None), "materialized already"),
    ):
        with pytest.raises(FabricError, match=message):
            refused()
    executor.close("a")
    executor.open("b")


def test_a_described_decoder_is_not_for_this_backend():
    with pytest.raises(SpecError, match="host library computes"):
        make_executor(assign(small_description(), primitive="transformers"))


def test_the_kernel_names_the_versions_and_the_architecture(saved):
    description, files = describe_hosted(saved("gpt_neox"))
    first, last = hosted_chain(description, files, 2)
    assert first.kernel() == last.kernel()
    for part in ("torch ", "transformers ", "GPTNeoXForCausalLM", "attention eager", "fp32"):
        assert part in first.kernel()


def test_another_partition_is_given_by_its_steps(saved):
    """The recorded steps decide the bits, not how the session was split into calls before."""
    description, files = describe_hosted(saved("gpt_neox"))
    steps = tuple(Step(start, 1) for start in range(len(PROMPT)))
    whole = generate(hosted_chain(description, files), steps=steps)
    assert generate(hosted_chain(description, files, 1, 3), steps=steps) == whole
