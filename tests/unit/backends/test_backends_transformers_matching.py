"""Which tensors of the files become which weights of the host, and how they are put there without holding both."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from inferswarm.backends.transformers_backend.matching import check_shapes, match, stored_entries
from inferswarm.backends.transformers_backend.skeleton import build_skeleton
from inferswarm.errors import ModelError
from tests.hosted import FAMILIES, save_family


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory):
    path = save_family("mixtral", tmp_path_factory.mktemp("mixtral"))
    return load_file(path / "model.safetensors"), built("mixtral")


def built(family):
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return build_skeleton(CONFIG_MAPPING[family](**FAMILIES[family]), torch.float32, "a test").module


def test_rows_go_where_the_host_would_put_them(mixtral):
    """The host stacks experts and joins their maps; row by row the same stack comes out."""
    tensors, module = mixtral
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    entries = stored_entries(module)
    stacked = 0
    for recipe in match(module, shapes, "a test"):
        made = recipe.make(tensors.__getitem__, module, "a test")
        plan = recipe.rows(module, shapes, entries)
        assert set(plan) == set(made)
        for entry, runs in plan.items():
            rows = [tensors[run.source].reshape(-1, shapes[run.source][-1])[run.first : run.end] for run in runs]
            assert torch.equal(torch.cat(rows).view(made[entry].shape), made[entry])
            stacked += len(runs) > 1
    assert stacked == 2 * FAMILIES["mixtral"]["num_hidden_layers"]


def test_what_mixes_more_than_rows_is_left_to_the_host(mixtral, monkeypatch):
    tensors, module = mixtral
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    recipe = next(recipe for recipe in match(module, shapes, "a test") if recipe.converter is not None)
    make = type(recipe).make

    def turned(self, *arguments):
        return {name: value.transpose(-1, -2) for name, value in make(self, *arguments).items()}

    monkeypatch.setattr(type(recipe), "make", turned)
    assert recipe.rows(module, shapes, stored_entries(module)) is None


def test_a_weight_that_is_there_twice_is_refused(mixtral):
    tensors, module = mixtral
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    twice = {**shapes, "norm.weight": shapes["model.norm.weight"]}  # the same one without the prefix
    with pytest.raises(ModelError, match=r"model\.norm\.weight more than once"):
        match(module, twice, "a test")


def test_an_expert_that_is_missing_is_refused(mixtral):
    tensors, module = mixtral
    name = next(name for name in tensors if "experts.2" in name)
    shapes = {other: tuple(tensor.shape) for other, tensor in tensors.items() if other != name}
    with pytest.raises(ModelError, match="experts"):
        check_shapes(module, match(module, shapes, "a test"), shapes, "a test")
