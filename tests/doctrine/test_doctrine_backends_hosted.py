"""Rules that hold for models that a host library computes as well."""

from __future__ import annotations

import pytest
import torch

from inferswarm.backends.direct import run_split_direct
from inferswarm.backends.transformers_backend.describing import describe_hosted
from tests.hosted import PROMPT, hosted_assignment, hosted_chain, save_family


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return describe_hosted(save_family("gpt_neox", tmp_path_factory.mktemp("gpt-neox")))


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.mark.rule(74)
def test_keys_and_values_stay_with_their_block_and_only_hidden_states_cross(model):
    """A participant keeps keys and values of its own blocks alone, and reads no weight after it was materialized.

    Mutation: give every participant's cache real layers for all blocks; read rows of the table at each step.
    """
    description, files = model
    executors = hosted_chain(description, files, 2, 3)
    for executor in executors:
        executor.open("s")
    payload = b"".join(token.to_bytes(4, "little") for token in PROMPT[:9])
    for executor, (first, end) in zip(executors, ((0, 1), (1, 2), (2, 3)), strict=True):
        payload = executor.step("s", 0, 9, payload, sample=False).payload
        kept = executor._get("s").cache.own
        assert list(kept) == list(range(first, end))
        assert sum(layer.keys.numel() + layer.values.numel() for layer in kept.values()) == 9 * sum(
            description.kept_values_per_position[first:end]
        )
        assert payload is None or len(payload) == 9 * description.hidden_size * 4
        assert executor.counters().state_bytes_moved_after_materialization == 0


@pytest.mark.rule("75b")
@pytest.mark.parametrize("representation", ["fp32", "bf16"])
def test_one_path_executed_twice_agrees_in_every_bit(model, representation):
    """However the chain is cut, the same steps give the same logits, bit for bit.

    Mutation: put what came over the boundary in behind the first own block; let another participant's block change
    it; take the length of a cache from a block that is not there.
    """
    description, files = model
    results = [
        run_split_direct(
            hosted_chain(description, files, *cuts, representation=representation),
            PROMPT,
            max_tokens=12,
            chunk_positions=16,
        )
        for cuts in ((), (1,), (3,), (4,), (1, 2, 3, 4))
    ]
    assert all(result == results[0] for result in results)


@pytest.mark.rule(76)
def test_no_participant_reads_a_byte_that_it_does_not_need(model):
    """What all participants of a chain without shared weights read is the model once, each its own part exactly.

    Mutation: let the host load a file as it does by itself, or materialize a neighbor's block.
    """
    description, files = model
    cuts = (1, 3)
    read = [executor.counters().source_bytes_read for executor in hosted_chain(description, files, *cuts)]
    edges = ((0, 1), (1, 3), (3, 5))
    assert read == [hosted_assignment(description, files, *units).requirement.bytes for units in edges]
    assert sum(read) == sum(tensor.range.length for tensor in files.tensors)
