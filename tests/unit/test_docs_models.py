"""docs/guides/models.md says what the tests' tables say, and a record that is not whole does not look whole."""

from __future__ import annotations

import json

import pytest

from tests import models_index
from tests.matrix_record import CaseName, CaseResult, MatrixRecorder, expected_cases, read_record
from tests.models_index import COMMAND, MATRIX, PAGE, matrix_table, with_sections
from tests.refusals import REFUSED

RESULT = CaseResult(num_positions=12, num_tokens=4, near_ties=0, max_difference=1e-5, num_splits=1)
CONDITIONS = {"date": "2026-01-02", "torch": "9"}


@pytest.fixture
def whole():
    return dict.fromkeys(expected_cases(), RESULT)


def test_the_tables_are_what_the_generator_writes():
    page = PAGE.read_text(encoding="utf-8")
    assert with_sections(page) == page, f"{PAGE} is out of date; run: {COMMAND}"


def test_the_committed_record_is_whole():
    _, results = read_record(MATRIX)
    assert sorted(expected_cases() - set(results)) == []


def test_every_model_of_the_tests_is_in_the_tables():
    for name in models_index.families.FAMILIES:
        assert f"| `{name}` |" in models_index.families_table()
    for name in models_index.hosted.FAMILIES:
        assert f"`{name}`" in models_index.hosted_table()
    assert models_index.refusals_table().count("\n") == len(REFUSED) + 1


def test_every_encoding_is_read_or_refused():
    gguf, safetensors = models_index.encodings_table().splitlines()[2:]
    for row, names in (
        (gguf, [item.name for item in models_index.ENCODINGS.values()]),
        (safetensors, models_index.BITS),
    ):
        _, _, readable, refused, _ = (cell.strip() for cell in row.split("|"))
        assert sorted([*readable.split(", "), *refused.split(", ")]) == sorted(names)


def test_a_whole_record_says_so(whole):
    assert f"All {len(whole)} cases are there and held." in matrix_table(CONDITIONS, whole)


def test_a_record_without_a_case_names_it(whole):
    missing = CaseName("gemma3", "gguf", "torch", "513 tokens")
    del whole[missing]
    text = matrix_table(CONDITIONS, whole)
    assert f"**Incomplete: {len(whole)} of {len(whole) + 1} cases.** Missing: gemma3 gguf torch 513 tokens" in text
    assert "| `gemma3` | gguf | torch | **12 of 13** |" in text


def test_logits_that_were_not_compared_are_not_called_equal(whole):
    whole[CaseName("bloom", "directory", "transformers", "fp32")] = RESULT._replace(max_difference=0.0)
    whole[CaseName("bloom", "directory", "transformers", "bf16")] = RESULT._replace(max_difference=None)
    assert "same bits in 1 of 2 cases, tokens in all" in matrix_table(CONDITIONS, whole)


def test_a_record_can_be_written_and_read(tmp_path, whole):
    recorder = MatrixRecorder()
    for name, result in whole.items():
        recorder.add(name, result)
    recorder.write(tmp_path / "record.json")
    conditions, results = read_record(tmp_path / "record.json")
    assert results == whole
    assert {"date", "torch", "transformers", "cpu"} <= set(conditions)


def test_a_case_is_recorded_once_and_only_if_expected(tmp_path, whole):
    recorder = MatrixRecorder()
    name = min(whole)
    recorder.add(name, RESULT)
    with pytest.raises(ValueError, match="twice"):
        recorder.add(name, RESULT)
    with pytest.raises(ValueError, match="expected"):
        recorder.add(name._replace(case="another"), RESULT)
    (tmp_path / "other.json").write_text(json.dumps({"cases": []}))
    with pytest.raises(ValueError, match="not a record"):
        read_record(tmp_path / "other.json")


def test_a_page_without_marks_is_refused():
    with pytest.raises(ValueError, match="each once"):
        with_sections("# Models\n")
