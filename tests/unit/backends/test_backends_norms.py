"""Norms: which numbers are rounded when, and that heads are normed one by one."""

from __future__ import annotations

import pytest
import torch

from inferswarm.backends.torch_backend.norms import HeadNorms, make_norm

EPSILON = 1e-5
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
ADDS_ONE = pytest.mark.parametrize("adds_one", [False, True])


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def exact_norm(rows, weight, dtype, *, adds_one):
    """The definition in fp64, rounded where the order of operations says."""
    exact = rows.double() / (rows.double().pow(2).mean(-1, keepdim=True) + EPSILON).sqrt()
    if adds_one:
        return (exact * (1 + weight.double())).to(dtype)
    return (exact.to(dtype).double() * weight.double()).to(dtype)


def share_of_equals(found, expected):
    return (found == expected).double().mean()


@pytest.mark.parametrize("count", [1, 5])
@ADDS_ONE
def test_half_precision_is_rounded_in_the_order_of_the_family(count, adds_one):
    rows, weight = (numbers(count, 4096) * 3).bfloat16(), numbers(4096, seed=1).bfloat16()
    found = make_norm(weight, EPSILON, adds_one=adds_one)(rows)
    assert found.dtype == torch.bfloat16
    assert share_of_equals(found, exact_norm(rows, weight, torch.bfloat16, adds_one=adds_one)) > 0.995
    other = exact_norm(rows, weight - 1 if not adds_one else weight + 1, torch.bfloat16, adds_one=not adds_one)
    assert share_of_equals(found, other) < 0.9


@DTYPES
@ADDS_ONE
def test_heads_are_normed_one_by_one_and_by_their_own_weights(dtype, adds_one):
    heads, query, key = (
        value.to(dtype) for value in (numbers(7, 9, 16), numbers(16, seed=1) / 4, numbers(16, seed=2) / 4)
    )
    projected = torch.cat((heads.flatten(1), numbers(7, 40).to(dtype)), dim=1)
    before = projected.clone()
    view = projected.narrow(1, 0, 9 * 16).view(7, 9, 16)
    found = HeadNorms(query, key, 6, EPSILON, adds_one=adds_one)(view)
    expected = torch.cat(
        (
            exact_norm(heads[:, :6], query, dtype, adds_one=adds_one),
            exact_norm(heads[:, 6:], key, dtype, adds_one=adds_one),
        ),
        dim=1,
    )
    torch.testing.assert_close(found, expected)
    assert torch.equal(projected, before), "what was projected is still needed: the values lie behind the heads"
