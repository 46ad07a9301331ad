"""Opening a model: our own blocks when they can, the host library's when they cannot, and the reasons of both."""

from __future__ import annotations

import pytest

from inferswarm.backends.registry import BackendStatus
from inferswarm.errors import ModelError, SpecError, UnsupportedModel
from inferswarm.planner import Workload
from inferswarm.swarm import Model, opening
from tests.hosted import change_configuration, save_family
from tests.models import write_small_llama


@pytest.fixture(scope="module")
def gpt_neox(tmp_path_factory):
    return save_family("gpt_neox", tmp_path_factory.mktemp("gpt-neox"))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return save_family("llama", tmp_path_factory.mktemp("llama"))


def test_what_our_blocks_can_compute_they_compute(llama):
    assert Model(llama).backend == "torch"
    assert {
        item.primitive for item in Model(llama).problem(Workload(prompt_tokens=8, output_tokens=8)).implementations
    } == {"torch"}


def test_what_they_cannot_the_host_computes_and_says_why(gpt_neox):
    model = Model(gpt_neox)
    assert model.backend == "transformers"
    assert len(model.notes) == 1
    assert "gpt_neox" in model.notes[0] or "GPTNeoX" in model.notes[0]
    problem = model.problem(Workload(prompt_tokens=8, output_tokens=8))
    assert {item.required_capabilities[0] for item in problem.implementations} == {"backend:transformers"}
    requirement = model.opened.requirement(problem, "all", 0, len(problem.units))
    assert requirement.bytes == sum(tensor.range.length for tensor in model.opened.object.tensors)


@pytest.mark.parametrize("backend", ["torch", "transformers"])
def test_a_backend_can_be_asked_for(llama, backend):
    assert Model(llama, backend=backend).backend == backend


def test_a_backend_that_cannot_is_not_replaced_by_another(gpt_neox, tmp_path):
    with pytest.raises(UnsupportedModel):
        Model(gpt_neox, backend="torch")
    with pytest.raises(UnsupportedModel, match="a directory as Hugging Face lays it out"):
        Model(write_small_llama(tmp_path / "m.gguf"), backend="transformers")
    with pytest.raises(SpecError, match="'jax'"):
        Model(gpt_neox, backend="jax")


def test_when_nobody_can_both_reasons_are_given(tmp_path):
    path = save_family("gpt_neox", tmp_path)
    change_configuration(path, quantization_config={"quant_method": "gptq"})
    with pytest.raises(ModelError, match=r"quantization_config.*nor is it a described decoder"):
        Model(path)


def test_a_field_that_nobody_knows_is_not_ignored_unless_that_is_asked_for(tmp_path):
    path = save_family("llama", tmp_path)
    change_configuration(path, attention_sinks=4)
    with pytest.raises(UnsupportedModel, match=r"attention_sinks.*ignores this field"):
        Model(path)
    (note,) = Model(path, backend="transformers").notes
    assert "attention_sinks" in note


@pytest.mark.parametrize("family", ["gpt_neox", "gpt2", "phi", "olmo2", "stablelm", "bloom", "mixtral"])
def test_what_the_host_writes_itself_it_knows(tmp_path, family):
    assert not any("ignores" in note for note in Model(save_family(family, tmp_path), backend="transformers").notes)


def test_without_the_host_library_its_absence_is_the_hint(gpt_neox, monkeypatch):
    absent = (BackendStatus("transformers", False, "not installed: transformers"),)
    monkeypatch.setattr(opening, "available_backends", lambda: absent)
    with pytest.raises(UnsupportedModel, match="could be tried, but not installed: transformers"):
        Model(gpt_neox)
    with pytest.raises(SpecError, match="not installed: transformers"):
        Model(gpt_neox, backend="transformers")


def test_both_kinds_are_shown_with_their_sizes(gpt_neox, llama):
    for model in (Model(gpt_neox), Model(llama)):
        assert "3 blocks" in repr(model)
        assert f"<td style='text-align:left'>{model.backend}</td>" in model._repr_html_()
