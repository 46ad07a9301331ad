"""Chat templates: golden renderings of transformers, what templates may use, and clear refusals."""

import json
from datetime import datetime
from pathlib import Path

import pytest

from inferswarm.errors import ModelError, SpecError
from inferswarm.strategies.dense.model import DenseModel
from inferswarm.strategies.text.chat import ChatTemplate
from tests.models import write_small_llama

GOLDEN = json.loads((Path(__file__).resolve().parents[2] / "golden" / "smollm2_tokenizer.json").read_text())
HELLO = [{"role": "user", "content": "Hi"}]


def render(template, messages=HELLO, **arguments):
    return ChatTemplate(template, "test", special_tokens={"bos_token": "<s>", "eos_token": "</s>"}).render(
        messages, **arguments
    )


@pytest.mark.parametrize("case", GOLDEN["chats"], ids=lambda case: str(len(case["rendered"])))
def test_the_real_template_renders_as_transformers_renders_it(smollm2_path, case):
    chat = DenseModel.open(smollm2_path).chat
    assert chat.render(case["messages"], add_generation_prompt=case["add_generation_prompt"]) == case["rendered"]


def test_blocks_leave_no_blank_lines():
    template = "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\nend"
    assert render(template) == "Hi\nend"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ bos_token }}{{ messages[0]['content'] }}{{ eos_token }}", "<s>Hi</s>"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "Hi"}]'),
        ("{{ {'a': '<é>'} | tojson }}", '{"a": "<é>"}'),
        ("{% for m in messages %}{% break %}{% endfor %}x", "x"),
        ("{{ tools is none }} {{ add_generation_prompt }}", "True True"),
        ("{{ thinking }}", "deep"),
    ],
)
def test_templates_get_what_they_expect(template, text):
    assert render(template, thinking="deep") == text


def test_the_clock_of_a_template_is_given_to_it():
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", "test", now=lambda: datetime(2024, 7, 26))
    assert template.render(HELLO) == "26 Jul 2024"


def test_a_model_without_a_template_says_so(tmp_path):
    model = DenseModel.open(write_small_llama(tmp_path / "m.gguf", num_blocks=1, chat_template=None))
    with pytest.raises(SpecError, match="chat template"):
        model.chat.render(HELLO)


def test_what_a_template_refuses_is_the_callers_error_in_its_words():
    with pytest.raises(SpecError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "user"}],
        [{"content": "Hi"}],
        [{"role": "user", "content": None}],
        [{"role": 1, "content": "Hi"}],
        ["Hi"],
    ],
)
def test_messages_without_role_or_text_are_refused(messages):
    with pytest.raises(SpecError, match="messages"):
        render("{{ messages }}", messages)


@pytest.mark.parametrize("template", ["{% if %}", "{{ unclosed", "{% unknown %}"])
def test_a_template_that_cannot_be_compiled_is_a_model_error(template):
    with pytest.raises(ModelError, match="cannot be compiled"):
        render(template)


@pytest.mark.parametrize(
    "template",
    [
        "{{ nothing.there }}",
        "{{ 1 + 'a' }}",
        "{{ 1 // 0 }}",
        "{{ messages | no_such_filter }}",
    ],
)
def test_a_template_that_fails_is_a_model_error(template):
    with pytest.raises(ModelError):
        render(template)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ raise_exception.__globals__.os }}",
        "{% for i in range(10**9) %}{% endfor %}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(template):
    with pytest.raises(ModelError):
        render(template)


def test_rendering_leaves_the_messages_alone():
    messages = [{"role": "user", "content": "Hi"}]
    render("{{ messages[0]['content'] }}", messages)
    assert messages == HELLO
