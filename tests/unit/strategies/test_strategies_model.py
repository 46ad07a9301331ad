"""A model opened from its header alone, without torch."""

import subprocess
import sys

import pytest

from inferswarm.errors import ModelError, SpecError
from inferswarm.strategies.dense.model import DenseModel
from inferswarm.strategies.problem import make_problem
from tests.models import small_vocabulary, write_small_llama


def test_the_real_model_opens_by_name_reading_only_its_header():
    model = DenseModel.open("smollm2-135m")
    assert model.name == "smollm2-135m"
    assert model.description.num_blocks == 30
    assert model.bytes_read < 3 * 2**20
    assert model.problem() == make_problem(model.description)


def test_a_small_model_opens_by_path(tmp_path):
    path = write_small_llama(tmp_path / "small.gguf")
    model = DenseModel.open(path)
    assert (model.name, model.path, model.object.length) == ("small", path, path.stat().st_size)
    assert model.text.codec.decode(model.text.codec.encode("hello there")) == "hello there"
    assert model.text.codec.eos_ids == {0, 2}
    prompt = model.chat.render([{"role": "user", "content": "Hi"}])
    assert model.text.codec.encode(prompt, parse_special=True)[0] == 1


def test_equal_arguments_write_equal_models(tmp_path):
    first, second, other = (
        write_small_llama(tmp_path / f"{name}.gguf", seed=seed).read_bytes()
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first == second != other


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path):
    tokens, types, _ = small_vocabulary(330)
    path = write_small_llama(
        tmp_path / "m.gguf",
        num_blocks=1,
        vocab=320,
        metadata={"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types},
    )
    with pytest.raises(ModelError, match="330 tokens and the model 320"):
        _ = DenseModel.open(path).text


def test_a_missing_model_is_the_callers_error(tmp_path):
    with pytest.raises(SpecError, match="nothing is there"):
        DenseModel.open(tmp_path / "no.gguf")


def test_opening_a_model_and_its_text_needs_no_torch():
    code = (
        "import sys\n"
        "from inferswarm.strategies.dense.model import DenseModel\n"
        "import inferswarm.backends.assignment\n"
        "model = DenseModel.open('smollm2-135m')\n"
        "model.problem()\n"
        "assert not {'torch', 'transformers', 'gguf', 'tokenizers', 'jinja2'} & set(sys.modules)\n"
        "model.text.codec.encode(model.chat.render([{'role': 'user', 'content': 'Hi'}]), parse_special=True)\n"
        "assert not {'torch', 'transformers', 'gguf'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
