"""Every family in both formats against transformers on the same weights: tokens, logits, and a split's bits.

A model's prompt lengths lie on and around the edges of chunks, windows and the context. The run without a mark takes
one length for each model and format, so that every family, format and edge is met; `make matrix` takes all of them.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from inferswarm.backends.direct import DirectResult, run_direct, run_split_direct
from inferswarm.documents import digest
from inferswarm.strategies.dense.description import BlockKind, DecoderDescription, Rope
from inferswarm.strategies.dense.model import DenseModel
from tests import families
from tests.families import (
    BY_REFERENCE,
    CONTEXT,
    FAMILIES,
    IN_BOTH_FORMATS,
    LENGTHS,
    ORIGINAL,
    TOKENS,
    VOCABULARY,
    WINDOW,
)
from tests.matrix_record import CaseName, CaseResult
from tests.unit.backends.backends_support import LogitsRecorder, compare_logits, file_chain, same_bits

CHUNK = 64
TOLERANCE = 1e-3
"""Of a logit, times the spread of the reference's logits where that is larger than 1."""
MODELS = [(name, "directory") for name in FAMILIES] + [(name, "gguf") for name in IN_BOTH_FORMATS]
SAMPLE = [(*model, LENGTHS[index * 5 % len(LENGTHS)]) for index, model in enumerate(MODELS)]
REST = [(*model, length) for model in MODELS for length in LENGTHS if (*model, length) not in SAMPLE]


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)


@pytest.fixture
def record(request, record_testsuite_property):
    """Keep a measured number under the test's name, for whoever asks for a report."""
    return lambda name, value: record_testsuite_property(f"{request.node.name}: {name}", value)


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Write and open a model once."""

    @functools.cache
    def open_model(name: str, form: str) -> DenseModel:
        folder = tmp_path_factory.mktemp(name)
        if form == "gguf":
            return DenseModel.open(families.write_gguf(name, folder / "model.gguf"))
        return DenseModel.open(families.write_directory(name, folder / "model"))

    return open_model


def prompt_of(name: str, length: int) -> tuple[int, ...]:
    generator = np.random.default_rng(length)
    return tuple(int(token) for token in generator.integers(3, VOCABULARY, length))


def reference(name: str, prompt: tuple[int, ...], tokens: tuple[int, ...]) -> tuple[DirectResult, list[np.ndarray]]:
    """What transformers says to the prompt and the tokens that follow it, all in one pass."""
    model = families.build(name)
    known = torch.tensor([[*prompt, *tokens[:-1]]])
    with torch.inference_mode():
        logits = model(known, use_cache=False).logits[0, len(prompt) - 1 :].float()
    best = logits.topk(2, dim=1)
    margins = (best.values[:, 0] - best.values[:, 1]).tolist()
    result = DirectResult(tuple(best.indices[:, 0].tolist()), ("",) * len(tokens), tuple(margins), ())
    return result, list(logits.numpy())


def agree(model: DenseModel, name: str, length: int, record) -> CaseResult:
    prompt = prompt_of(name, length)
    cuts = (0, 1 + len(prompt) % model.description.num_blocks, model.description.num_blocks + 2)
    positions = min(length + TOKENS, CONTEXT)
    (whole,) = file_chain(model, (0, cuts[-1]), max_positions=positions)
    recorder = LogitsRecorder(whole)
    run = run_direct(recorder, prompt, max_tokens=TOKENS, chunk_positions=CHUNK)
    expected, rows = reference(name, prompt, run.tokens)
    scale = max(1.0, float(np.std(rows)))
    agreement = compare_logits(expected, rows, run, recorder.rows)
    record("max_abs_logit_difference", agreement.max_difference)
    record("near_ties", agreement.near_ties)
    assert agreement.max_difference < TOLERANCE * scale
    assert agreement.violations == ()
    split = run_split_direct(
        file_chain(model, cuts, max_positions=positions), prompt, max_tokens=TOKENS, chunk_positions=CHUNK
    )
    assert same_bits(split, run)
    return CaseResult(length + TOKENS - 1, TOKENS, agreement.near_ties, agreement.max_difference, num_splits=1)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("name", "form", "length"), [*SAMPLE, *(pytest.param(*case, marks=pytest.mark.slow) for case in REST)]
)
def test_a_family_agrees_with_transformers_and_a_split_has_the_bits_of_the_whole(
    opened, record, matrix, name, form, length
):
    result = agree(opened(name, form), name, length, record)
    matrix.add(CaseName(name, form, "torch", f"{length} tokens"), result)


def test_every_length_and_every_model_is_in_the_sample():
    assert {length for _, _, length in SAMPLE} == set(LENGTHS)
    assert {(name, form) for name, form, _ in SAMPLE} == set(MODELS)


@pytest.mark.parametrize("name", IN_BOTH_FORMATS)
def test_both_formats_describe_the_same_model(opened, name):
    """Save for factors and magnitudes that GGUF rounds to 32 bits."""
    directory, gguf_file = (opened(name, form).description for form in ("directory", "gguf"))
    assert rounded(directory) == rounded(gguf_file)
    if FAMILIES[name].arguments.get("rope_parameters", {}).get("rope_type") not in ("llama3", "longrope"):
        assert digest(directory) == digest(gguf_file)


def rounded(description: DecoderDescription) -> DecoderDescription:
    kinds = []
    for kind in description.block_kinds:
        assert kind.rope is not None
        factors = tuple(float(np.float32(factor)) for factor in kind.rope.factors)
        rope = replace(kind.rope, factors=factors, magnitude=float(np.float32(kind.rope.magnitude)))
        kinds.append(replace(kind, rope=rope))
    return replace(description, block_kinds=tuple(kinds))


@pytest.mark.parametrize("length", [ORIGINAL - TOKENS, ORIGINAL + 1])
@pytest.mark.parametrize("form", ["directory", "gguf"])
def test_longrope_takes_the_factors_of_its_session_s_length(opened, record, form, length):
    agree(opened("phi3-longrope", form), "phi3-longrope", length, record)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_weights_of_two_bytes_in_several_files_give_the_numbers_that_they_hold(tmp_path, dtype):
    """The rounded weights, loaded by transformers as fp32 again, are the reference."""
    import transformers

    path = families.write_directory("qwen3-tied", tmp_path / "model", max_shard_size="100KB", dtype=dtype)
    assert len(list(path.glob("*.safetensors"))) > 1
    model = DenseModel.open(path)
    (whole,) = file_chain(model, (0, model.description.num_blocks + 2))
    recorder = LogitsRecorder(whole)
    prompt = prompt_of("qwen3-tied", 40)
    run_direct(recorder, prompt, max_tokens=1, chunk_positions=CHUNK)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.inference_mode():
        logits = loaded(torch.tensor([prompt]), use_cache=False).logits[0, -1].numpy()
    assert np.abs(recorder.rows[0] - logits).max() < TOLERANCE


@pytest.mark.parametrize("name", BY_REFERENCE)
def test_the_reference_backend_agrees_with_the_torch_backend(opened, name):
    """Two implementations of one description."""
    model, prompt = opened(name, "gguf"), prompt_of(name, WINDOW + 9)
    runs, rows = [], []
    for primitive in ("torch", "reference"):
        (executor,) = file_chain(model, (0, model.description.num_blocks + 2), primitive=primitive)
        recorder = LogitsRecorder(executor)
        runs.append(run_direct(recorder, prompt, max_tokens=6, chunk_positions=16))
        rows.append(recorder.rows)
    assert compare_logits(runs[1], rows[1], runs[0], rows[0]).max_difference < TOLERANCE
    assert runs[0].tokens == runs[1].tokens


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3", "phi3"])
def test_quantized_files_are_computed_as_what_they_encode(tmp_path, name):
    """Q8_0, fused tensors included: the reference is transformers with the numbers that the file encodes."""
    import copy

    import gguf

    model = DenseModel.open(families.write_gguf(name, tmp_path / "m.gguf", "Q8_0"))
    rounded = copy.deepcopy(families.build(name))
    kind = gguf.GGMLQuantizationType.Q8_0
    with torch.no_grad():
        for parameter in {id(parameter): parameter for parameter in rounded.parameters()}.values():
            if parameter.ndim == 2:
                packed = gguf.quants.quantize(parameter.numpy(), kind)
                parameter.copy_(torch.from_numpy(gguf.quants.dequantize(packed, kind)))
    (whole,) = file_chain(model, (0, model.description.num_blocks + 2))
    recorder = LogitsRecorder(whole)
    prompt = prompt_of(name, 70)
    run_direct(recorder, prompt, max_tokens=1, chunk_positions=CHUNK)
    with torch.inference_mode():
        logits = rounded(torch.tensor([prompt]), use_cache=False).logits[0, -1].numpy()
    assert np.abs(recorder.rows[0] - logits).max() < TOLERANCE


CHANGES = [
    ("mistral-window", {"window": WINDOW + 1}),
    ("mistral-window", {"window": None}),
    ("llama", {"base": 10100.0}),
    ("llama", {"norm_epsilon": 1e-1}),
    ("llama-yarn", {"magnitude": 1.0}),
    ("llama-yarn", {"factors": ()}),
    ("gemma3", {"window": WINDOW - 1}),
    ("gemma3", {"norm_adds_one": False}),
    ("gemma3", {"block_pattern": (0, 0, 0, 0, 1, 0)}),
    ("gemma3", {"activation": "silu"}),
    ("gemma2", {"attention_soft_cap": None}),
    ("gemma2", {"logit_soft_cap": None}),
    ("gemma2", {"attention_scale": 0.25}),
    ("gemma2", {"embedding_scale": 1.0}),
    ("phi3-longrope", {"rotated_size": 16, "factors": (), "long_factors": (), "original_positions": None}),
    ("phi3-longrope", {"long_factors": (), "original_positions": None}),
    ("granite", {"residual_scale": 1.0}),
    ("granite", {"logit_scale": 1.0}),
]


@pytest.mark.parametrize(("name", "change"), CHANGES)
def test_a_description_that_says_otherwise_does_not_agree(opened, name, change):
    """Everything that a family states matters to these models: a reader that loses it is caught above."""
    model, length = opened(name, "directory"), ORIGINAL + 10
    prompt = prompt_of(name, length)
    description = model.description
    inner = {"window"} | set(Rope.__struct_fields__)
    outer = {key: value for key, value in change.items() if key not in inner}
    kinds = tuple(
        changed_kind(kind, {key: change[key] for key in inner & set(change)}) for kind in description.block_kinds
    )
    changed = dataclasses.replace(model, description=replace(description, block_kinds=kinds, **outer))
    (whole,) = file_chain(changed, (0, description.num_blocks + 2), max_positions=length + 1)
    recorder = LogitsRecorder(whole)
    run = run_direct(recorder, prompt, max_tokens=1, chunk_positions=CHUNK)
    _, rows = reference(name, prompt, run.tokens)
    assert np.abs(recorder.rows[0] - rows[0]).max() > 10 * TOLERANCE * max(1.0, float(np.std(rows)))


def changed_kind(kind: BlockKind, change: dict) -> BlockKind:
    window = change.pop("window", kind.window) if kind.window is not None else kind.window
    change.pop("window", None)
    return BlockKind(rope=replace(kind.rope, **change), window=window)
