"""Keys and values in pages: where they lie changes no bit, and what was never written cannot be used."""

from __future__ import annotations

import pytest
import torch

from inferswarm.backends.torch_backend.cache import PagedCache
from inferswarm.errors import FabricError
from tests.unit.backends.backends_support import assign, built, small_description, tokens_payload

DESCRIPTION = small_description()
CPU = torch.device("cpu")
REPRESENTATIONS = pytest.mark.parametrize("representation", ["fp32", "bf16"])


def make_cache(num_pages, sessions=2, num_blocks=3):
    return PagedCache(
        DESCRIPTION,
        num_blocks,
        max_positions=256,
        sessions=sessions,
        dtype=torch.float32,
        device=CPU,
        num_pages=num_pages,
    )


def rows(count, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 2, 16, generator=generator)


@pytest.mark.parametrize("free", [range(8), (1, 3, 4, 6, 7)], ids=["one run", "pieces"])
def test_written_positions_are_read_back_in_order(free):
    cache = make_cache(8)
    cache.pages._free = set(free)
    cache.pages.open("a")
    pieces = []
    for number, count in enumerate((40, 70, 3, 1, 64, 60)):
        keys, values = rows(count, number), rows(count, 100 + number)
        view = cache.extend("a", count)
        view.write(1, keys, values)
        pieces.append((keys, values))
    assert (cache.pages.first_of_run("a") is None) is (len(free) < 8)
    for found, expected in zip(view.read(1), zip(*pieces, strict=True), strict=True):
        assert torch.equal(found, torch.cat(expected))


def test_blocks_do_not_share_positions():
    cache = make_cache(8)
    cache.pages.open("a")
    view = cache.extend("a", 5)
    for block in range(3):
        view.write(block, rows(5, block), rows(5, 10 + block))
    for block in range(3):
        assert torch.equal(view.read(block)[0], rows(5, block))
        assert torch.equal(view.read(block)[1], rows(5, 10 + block))


def fragmented(representation):
    """An executor of two sessions in which the second session's pages cannot follow one another."""
    executor = built(assign(DESCRIPTION, representation=representation, sessions=3, max_positions=192))
    executor.open("low")
    executor.open("a")
    executor.cache.pages._free = {0, 2, 4, 6}
    executor.cache.pages.num_pages = 4
    return executor


@REPRESENTATIONS
def test_a_session_in_pieces_has_the_bits_of_one_in_one_run(representation):
    tokens = [(7 * index) % 320 for index in range(150)]
    results = []
    for executor in (built(assign(DESCRIPTION, representation=representation)), fragmented(representation)):
        if "a" not in executor.cache.pages._sessions:
            executor.open("a")
        outputs = [
            executor.step(
                "a", start, min(64, 130 - start), tokens_payload(tokens[start : min(start + 64, 130)]), sample=True
            )
            for start in range(0, 130, 64)
        ]
        outputs += [executor.step("a", at, 1, tokens_payload([tokens[at]]), sample=True) for at in range(130, 150)]
        results.append((outputs, executor.cache.pages.first_of_run("a")))
    assert results[0][1] is not None
    assert results[1][1] is None
    assert results[0][0] == results[1][0]


@REPRESENTATIONS
def test_neighbors_in_the_pool_change_no_bit(representation):
    tokens = [(11 * index) % 320 for index in range(80)]
    alone = built(assign(DESCRIPTION, representation=representation))
    shared = built(assign(DESCRIPTION, representation=representation, sessions=2))
    shared.open("other")
    shared.step("other", 0, 64, tokens_payload(tokens[16:]), sample=False)
    for executor in (alone, shared):
        executor.open("a")
    alone_outputs, shared_outputs = (
        [executor.step("a", 0, 64, tokens_payload(tokens[:64]), sample=True)]
        + [executor.step("a", at, 1, tokens_payload([tokens[at]]), sample=True) for at in range(64, 80)]
        for executor in (alone, shared)
    )
    assert alone.cache.pages.pages("a") != shared.cache.pages.pages("a")
    assert alone_outputs == shared_outputs


@REPRESENTATIONS
@pytest.mark.parametrize("length", [64, 63, 1, 70])
def test_truncating_and_recomputing_gives_the_same_bits(representation, length):
    tokens = [(13 * index) % 320 for index in range(72)]
    executor = built(assign(DESCRIPTION, representation=representation))
    executor.open("a")
    executor.step("a", 0, 64, tokens_payload(tokens[:64]), sample=False)
    steps = [(at, tokens[at]) for at in range(64, 72)]
    first = [executor.step("a", at, 1, tokens_payload([token]), sample=True) for at, token in steps]
    executor.truncate("a", length)
    executor.cache.check_integrity()
    if length < 64:
        executor.truncate("a", 0)
        executor.step("a", 0, 64, tokens_payload(tokens[:64]), sample=False)
    begin = max(length, 64)
    again = [executor.step("a", at, 1, tokens_payload([token]), sample=True) for at, token in steps if at >= begin]
    assert again == first[begin - 64 :]


def test_a_position_that_was_never_computed_poisons_the_logits():
    executor = built(assign(DESCRIPTION))
    executor.open("a")
    executor.cache.pages.extend("a", 3)  # claimed, and never computed
    with pytest.raises(FabricError, match="not finite"):
        executor.step("a", 3, 1, tokens_payload([5]), sample=True)


def test_a_full_pool_refuses_and_leaves_the_session_as_it_was():
    executor = built(assign(DESCRIPTION, sessions=2, max_positions=64))
    executor.cache.pages._free = {0}
    executor.cache.pages.num_pages = 1
    executor.open("a")
    executor.open("b")
    executor.step("a", 0, 10, tokens_payload(range(10)), sample=False)
    with pytest.raises(FabricError, match="0 of 1 are free"):
        executor.step("b", 0, 10, tokens_payload(range(10)), sample=False)
    assert (executor.length("a"), executor.length("b")) == (10, 0)
    executor.close("a")
    executor.step("b", 0, 10, tokens_payload(range(10)), sample=False)
    executor.cache.check_integrity()
