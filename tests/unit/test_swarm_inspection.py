"""What `model inspect` finds out: sizes that add up, who computes a model, and who refused it and why."""

from __future__ import annotations

import json

import pytest

from inferswarm.documents import read_document, write_document
from inferswarm.errors import ArtifactError, SpecError
from inferswarm.planner.problem import bytes_in
from inferswarm.strategies.inspection import EncodingUse, Inspection, count_encodings
from inferswarm.swarm import Model, opening
from inferswarm.swarm.inspection import inspect_model
from tests.gguf_bytes import split_model
from tests.hosted import change_configuration, save_family
from tests.models import write_small_llama


@pytest.fixture(scope="module")
def gpt_neox(tmp_path_factory):
    return save_family("gpt_neox", tmp_path_factory.mktemp("models") / "gpt-neox")


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "small.gguf"
    return write_small_llama(path, encoding="Q4_1", embedding_encoding="Q8_0", tied=False)


def test_encodings_are_counted_the_largest_first(llama):
    tensors = Model(llama).opened.object.tensors
    uses = count_encodings(tensors)
    assert [(use.encoding, use.num_tensors) for use in uses] == [("Q4_1", 28), ("Q8_0", 2), ("F32", 9)]
    assert sum(use.bytes for use in uses) == sum(tensor.range.length for tensor in tensors)
    assert list(uses) == sorted(uses, key=lambda use: -use.bytes)
    assert count_encodings(()) == ()


def test_units_take_the_bytes_of_their_states(llama):
    inspection = inspect_model(llama)
    model = Model(llama)
    problem = model.opened.problem()
    assert [unit.unit for unit in inspection.units] == list(model.description.unit_ids)
    assert sum(unit.file_bytes for unit in inspection.units) == sum(use.bytes for use in inspection.encodings)
    for index, unit in enumerate(inspection.units):
        requirement = model.opened.requirement(problem, "one", index, index + 1)
        assert unit.file_bytes == requirement.bytes, unit.unit
        sizes = {state.id: state.sizes for state in problem.states}
        for size in unit.sizes:
            wanted = sum(bytes_in(sizes[state], size.representation) for state in problem.units[index].states)
            assert size.bytes == wanted


def test_a_tied_table_counts_in_both_of_its_units(tmp_path):
    inspection = inspect_model(write_small_llama(tmp_path / "tied.gguf", encoding="F32"))
    table = 320 * 64 * 4
    assert inspection.units[0].file_bytes == table
    assert inspection.units[-1].file_bytes == table + 64 * 4
    in_files = sum(use.bytes for use in inspection.encodings)
    assert sum(unit.file_bytes for unit in inspection.units) == in_files + table


def test_keys_and_values_of_a_position_are_those_of_all_blocks(llama):
    kept = {size.representation: size.bytes for size in inspect_model(llama).kept_bytes_per_position}
    blocks, heads, head_size = 4, 2, 16
    assert kept["fp32"] == blocks * 2 * heads * head_size * 4
    assert kept["bf16"] == kept["fp32"] // 2


def test_what_is_understood_is_refused_by_nobody(llama):
    inspection = inspect_model(llama)
    assert (inspection.name, inspection.architecture, inspection.backend) == ("small", "llama", "torch")
    assert inspection.refusals == ()
    assert inspection.text is not None
    assert inspection.text.num_tokens == 320
    assert inspection.text.begins_with == "<|im_start|>"
    assert inspection.text.ends_with == ("<|endoftext|>", "<|im_end|>")
    assert inspection.text.chat_templates == ("default",)


def test_the_document_survives_writing(llama, gpt_neox):
    for path in (llama, gpt_neox):
        inspection = inspect_model(path)
        assert read_document(Inspection, write_document(inspection), "here") == inspection


def test_all_parts_of_a_split_model_are_listed_and_any_may_be_named(tmp_path):
    parts = split_model(write_small_llama(tmp_path / "whole.gguf"), tmp_path / "model", 3)
    inspection = inspect_model(parts[0])
    assert len(inspection.files) == 3
    assert inspect_model(parts[1]).units == inspection.units


def test_a_known_model_has_its_known_name():
    inspection = inspect_model("smollm2-135m")
    assert (inspection.name, inspection.backend, inspection.refusals) == ("smollm2-135m", "torch", ())
    assert inspection.encodings[0] == EncodingUse(encoding="Q4_1", num_tensors=210, bytes=66_355_200)


def test_what_only_the_host_computes_says_why(gpt_neox):
    inspection = inspect_model(gpt_neox)
    assert inspection.backend == "transformers"
    by_host = [refusal for refusal in inspection.refusals if refusal.by == "described decoder"]
    assert ["gpt_neox" in refusal.reason for refusal in by_host] == [True]
    assert sum(unit.file_bytes for unit in inspection.units) == sum(use.bytes for use in inspection.encodings)


def test_a_directory_without_a_tokenizer_takes_ids_only(gpt_neox):
    inspection = inspect_model(gpt_neox)
    assert inspection.text is None
    assert [refusal.by for refusal in inspection.refusals] == ["described decoder", "text"]


def test_a_backend_that_is_asked_for_is_the_only_one_that_is_tried(gpt_neox, llama):
    inspection = inspect_model(gpt_neox, "torch")
    assert (inspection.backend, inspection.description, inspection.units) == (None, None, ())
    assert inspection.kept_bytes_per_position == ()
    assert [refusal.by for refusal in inspection.refusals if refusal.by != "text"] == ["described decoder"]
    other = inspect_model(llama, "transformers")
    assert [refusal.by for refusal in other.refusals] == ["transformers"]
    assert other.text is not None


def test_what_nobody_computes_is_still_shown(tmp_path):
    path = save_family("gpt_neox", tmp_path / "model")
    change_configuration(path, quantization_config={"quant_method": "gptq"})
    inspection = inspect_model(path)
    assert (inspection.backend, inspection.description) == (None, None)
    assert inspection.architecture == "GPTNeoXForCausalLM"
    assert [use.encoding for use in inspection.encodings] == ["F32"]
    assert [refusal.by for refusal in inspection.refusals] == ["described decoder", "transformers", "text"]


def test_a_backend_that_is_not_installed_is_a_refusal(gpt_neox, monkeypatch):
    monkeypatch.setattr(opening, "_unavailable", lambda: "transformers is not installed")
    inspection = inspect_model(gpt_neox)
    assert inspection.backend is None
    assert "not installed" in inspection.refusals[1].reason


def test_an_architecture_may_be_named_in_odd_ways(tmp_path):
    path = save_family("gpt_neox", tmp_path / "model")
    for value, shown in ((["A", "B"], "A, B"), (None, "gpt_neox"), ("One", "One")):
        change_configuration(path, architectures=value)
        assert inspect_model(path).architecture == shown
    configuration = json.loads((path / "config.json").read_text())
    del configuration["model_type"], configuration["architectures"]
    (path / "config.json").write_text(json.dumps(configuration))
    assert inspect_model(path).architecture == "not named"


def test_there_must_be_something_to_look_at(tmp_path):
    with pytest.raises(SpecError, match="nothing is there"):
        inspect_model(tmp_path / "absent.gguf")
    with pytest.raises(SpecError, match="'jax'"):
        inspect_model("smollm2-135m", "jax")
    parts = split_model(write_small_llama(tmp_path / "whole.gguf"), tmp_path / "model", 3)
    parts[1].unlink()
    with pytest.raises(ArtifactError, match="1 of 3 parts"):
        inspect_model(parts[0])
