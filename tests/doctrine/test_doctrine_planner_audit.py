"""The planner's source, read as text and loaded alone: what it must not know and must not need."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Collection
from pathlib import Path

import pytest

import inferswarm.planner

NOUNS = """
    activation adapter attention bf16 block cache cuda decoder embedding expert fp16 fp32 gemma gguf gpt gpu gqa head
    hip hidden kernel kv layer llama logit lora mamba mha mistral mixtral mla mlp moe mps norm numpy nvfp4 nvidia onnx
    opencl phi pytorch quantize quantized qwen rmsnorm rocm rope router safetensors smollm softmax ssm tensor
    tokenizer torch transformer triton vocabulary vram vulkan weights xpu
"""


def words_of(source: str) -> set[str]:
    """Every word of a source text: names split at underscores and capitals, comments, and the insides of strings."""
    words: set[str] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        for run in re.findall(r"[A-Za-z][A-Za-z0-9]*", token.string.replace("_", " ")):
            words |= {part.lower() for part in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z][A-Z0-9]*(?![a-z])", run)}
            words.add(run.lower())
    return words


def forbidden_words(source: str, forbidden: Collection[str]) -> set[str]:
    """Return the forbidden nouns, singular or plural, that a source text uses."""
    words = words_of(source)
    return {noun for noun in forbidden if noun in words or f"{noun}s" in words}


@pytest.mark.rule(40)
@pytest.mark.parametrize(
    "source",
    ["num_layers = 1\n", "class KvPlan: ...\n", "x = 1  # one per expert\n", 'y = "on CUDA"\n', "forLlamaOnly = 0\n"],
)
def test_the_audit_sees_names_comments_and_strings(source):
    """A forbidden noun is found wherever it hides in a source text.

    Mutation: audit identifiers only, or compare whole identifiers without splitting them.
    """
    assert forbidden_words(source, {"layer", "kv", "expert", "cuda", "llama"})


@pytest.mark.rule(40)
def test_the_planner_knows_no_noun_of_a_model_or_a_backend():
    """No module of the planner uses one of the forbidden nouns, in code, comment or text.

    Mutation: write any word of the list anywhere in the package.
    """
    files = sorted(Path(inferswarm.planner.__file__).parent.glob("**/*.py"))
    assert len(files) > 10
    found = {file.name: forbidden_words(file.read_text("utf-8"), NOUNS.split()) for file in files}
    assert {name: words for name, words in found.items() if words} == {}


@pytest.mark.rule(90)
def test_planning_loads_no_library_for_arrays():
    """A fresh interpreter that imports the planner has loaded no array, model or socket library.

    Mutation: import numpy anywhere below `inferswarm.planner`.
    """
    heavy = ("numpy", "torch", "scipy", "pandas", "polars", "zmq", "sqlite3")
    program = f"import sys, inferswarm.planner; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == "[]"
