"""Models on the command line: looked at, planned and run from each format; refused with one exact line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from inferswarm.backends.direct import run_direct
from inferswarm.documents import read_document
from inferswarm.strategies.chain import Description
from inferswarm.strategies.dense.description import DecoderDescription
from inferswarm.strategies.inspection import Inspection
from inferswarm.swarm import Model
from tests import families
from tests.command_line import Outcome
from tests.families import CONTEXT, FAMILIES, IN_BOTH_FORMATS, VOCABULARY
from tests.hosted import FAMILIES as HOSTED_FAMILIES
from tests.hosted import hosted_chain, save_family
from tests.refusals import REFUSED, Refused
from tests.unit.backends.backends_support import file_chain

MODELS = [
    (name, form)
    for name in FAMILIES
    for form in ("directory", "gguf")
    if form == "directory" or name in IN_BOTH_FORMATS
]
HOSTED = [name for name in HOSTED_FAMILIES if name not in ("llama", "qwen2", "mistral", "gemma3_text")]
QUICKER = [("qwen3", "gguf"), ("qwen3", "directory")]
"""Two of one shape, whose speed is measured once."""
PROMPT = "the rat ran"
TOKENS = 4
NODE = "a:threads=1,memory=1200MB"


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    """One state directory: a shape that was measured is not measured again."""
    return str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Write a model once and return its path."""
    paths: dict[tuple[str, str], Path] = {}

    def write(name: str, form: str) -> Path:
        if (name, form) not in paths:
            folder = tmp_path_factory.mktemp(name)
            if form == "hosted":
                paths[name, form] = save_family(name, folder / name, vocab_size=VOCABULARY)
                families.write_tokenizer(paths[name, form])
            elif form == "gguf":
                paths[name, form] = families.write_gguf(name, folder / f"{name}.gguf")
            else:
                paths[name, form] = families.write_directory(name, folder / name)
        return paths[name, form]

    return write


def sizes_of(description: Description) -> tuple[int, int, int, int]:
    return (
        description.vocabulary_size,
        description.hidden_size,
        description.num_blocks,
        description.context_positions,
    )


@pytest.mark.parametrize(("name", "form"), MODELS)
def test_every_family_is_understood_from_each_format(cli, written, name, form):
    path = written(name, form)
    done = cli("model", "inspect", str(path), "--json")
    assert (done.status, done.err) == (0, "")
    inspection = read_document(Inspection, done.out, "standard output")
    configuration = families.make_configuration(name)
    description = inspection.description
    assert isinstance(description, DecoderDescription)
    assert inspection.backend == "torch"
    assert sizes_of(description) == (VOCABULARY, 64, configuration.num_hidden_layers, CONTEXT)
    assert inspection.refusals == ()
    assert [unit.unit for unit in inspection.units] == list(description.unit_ids)
    in_files = sum(use.bytes for use in inspection.encodings)
    shared = inspection.units[0].file_bytes if description.tied_head else 0  # it counts in embedding and head
    factors = 4 * (len(description.block_kinds[0].rope.long_factors or description.block_kinds[0].rope.factors))
    used = sum(unit.file_bytes for unit in inspection.units) - shared
    assert used <= in_files <= used + 2 * factors  # GGUF keeps factors of positions as tensors
    assert inspection.name == name


@pytest.mark.parametrize(
    "name", ["bloom", *(pytest.param(name, marks=pytest.mark.slow) for name in HOSTED if name != "bloom")]
)
def test_a_family_that_is_not_described_is_understood_by_its_host(cli, written, name):
    path = written(name, "hosted")
    done = cli("model", "inspect", str(path), "--json")
    inspection = read_document(Inspection, done.out, "standard output")
    assert (done.status, inspection.backend) == (0, "transformers")
    assert [refusal.by for refusal in inspection.refusals] == ["described decoder"]
    assert inspection.text is not None
    assert inspection.text.num_tokens == VOCABULARY


def expected_tokens(path: Path, backend: str | None) -> list[int]:
    """What the whole chain says in this process."""
    model = Model(path, backend)
    if backend == "transformers":
        (executor,) = hosted_chain(model.description, model.opened.object, chunk_positions=64)
    else:
        (executor,) = file_chain(model.opened, (0, len(model.description.unit_ids)))
    prompt = model.text.codec.encode(PROMPT)
    run = run_direct(executor, prompt, max_tokens=TOKENS, stop_ids=model.text.stop_ids, chunk_positions=64)
    return list(run.tokens)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        *(pytest.param(*case, marks=pytest.mark.long) for case in QUICKER),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (*MODELS, *((name, "hosted") for name in HOSTED))
            if case not in QUICKER
        ),
    ],
)
def test_a_model_is_planned_and_run_from_each_format(cli, written, state, name, form):
    path = written(name, form)
    backend = "transformers" if form == "hosted" else None
    asked = () if backend is None else ("--backend", backend)
    common = ("-m", str(path), *asked, "--node", NODE, "--state", state, "-r", "fp32")
    done = cli("run", "--raw", PROMPT, "--max-tokens", str(TOKENS), "--json", *common)
    assert done.status == 0, done.err
    answer: dict[str, Any] = json.loads(done.out)
    assert answer["tokens"] == expected_tokens(path, backend)
    assert f"{name} in fp32 on a\n" in done.err


@pytest.mark.slow
def test_two_nodes_answer_together_what_neither_could_alone(cli, state):
    """The example of the README: the same tokens as on a Node that holds everything."""

    def run(*nodes: str) -> tuple[list[int], str]:
        arguments = [argument for node in nodes for argument in ("--node", node)]
        common = (*arguments, "--state", state, "-r", "bf16", "--max-tokens", "8", "--json")
        done = cli("run", "Name three rivers in Europe.", *common)
        assert done.status == 0, done.err
        return json.loads(done.out)["tokens"], done.err

    together, said = run("amber:threads=1,memory=420MB", "birch:threads=1,memory=380MB")
    assert re.search(r"^smollm2-135m in bf16 on (amber → birch|birch → amber)$", said, re.MULTILINE)
    alone, said = run("amber:threads=1,memory=1200MB")
    assert "smollm2-135m in bf16 on amber\n" in said
    assert together == alone


@pytest.mark.parametrize("refused", REFUSED, ids=[refused.what for refused in REFUSED])
def test_a_refusal_is_one_exact_line(cli, tmp_path, refused):
    folder = tmp_path / "models"
    folder.mkdir()
    path = refused.build(folder)
    done = cli(*refused.command, "-m", str(path), "--state", str(tmp_path / "state"))
    assert (done.status, done.out) == (1, "")
    assert done.err == f"inferswarm: {refused.line}\n".replace("{path}", str(path))
    assert not (tmp_path / "state" / "observations").exists()  # nothing was started
    check_inspection(cli("model", "inspect", str(path), "--json"), refused, path)


def check_inspection(done: Outcome, refused: Refused, path: Path) -> None:
    if refused.inspection == "unreadable":
        assert (done.status, done.out) == (1, "")
        assert done.err == f"inferswarm: {refused.line}\n".replace("{path}", str(path))
        return
    inspection = read_document(Inspection, done.out, "standard output")
    assert inspection.encodings != ()
    assert done.status == (1 if refused.inspection == "refused" else 0)
    if refused.inspection == "refused":
        assert (inspection.backend, inspection.description, inspection.units) == (None, None, ())
        assert [refusal.by for refusal in inspection.refusals] == ["described decoder", "transformers"]
        reasons = refused.line.replace("{path}", str(path))
        assert inspection.refusals[0].reason in reasons


def test_at_least_ten_inputs_are_refused():
    assert len({refused.what for refused in REFUSED}) == len(REFUSED) >= 10
    assert len({refused.line for refused in REFUSED}) == len(REFUSED)
