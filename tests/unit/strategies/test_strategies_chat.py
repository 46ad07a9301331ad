"""Chat templates: golden renderings of transformers, what templates may use, and clear refusals."""

import json
from datetime import datetime
from pathlib import Path

import pytest

from inferswarm.errors import ModelError, SpecError
from inferswarm.strategies.text.chat import ChatPrompt, ChatTemplate
from inferswarm.strategies.text.source import open_text
from tests.models import write_small_llama
from tests.unit.strategies.strategies_templates import NAMED, TEMPLATES

GOLDEN = json.loads((Path(__file__).resolve().parents[2] / "golden" / "smollm2_tokenizer.json").read_text())
HELLO = [{"role": "user", "content": "Hi"}]


def render(template, messages=HELLO, **arguments):
    return ChatTemplate(template, "test", special_tokens=NAMED).render(messages, **arguments)


@pytest.mark.parametrize("case", GOLDEN["chats"], ids=lambda case: str(len(case["rendered"])))
def test_the_real_template_renders_as_transformers_renders_it(smollm2_path, case):
    chat = open_text(smollm2_path).chat
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
        ("[{{ nothing }}]{{ nothing is defined }}{% if nothing %}x{% endif %}", "[]False"),
        ("{% set ns = namespace(n=0) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "3"),
        ("{% generation %}{% set x = 'a' %}{{ x ~ 1 ~ none }}{% endgeneration %}{{ x }}", "a1None"),
        ("{% for x in [[1, [2]], [3]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}", "123"),
        (
            "{% for x in 'abc' if x != 'b' %}{{ loop.index }}/{{ loop.length }}{{ loop.last }} {% endfor %}",
            "1/2False 2/2True ",
        ),
        ("{{ '%s: %5.1f%%' % ('a', 1.25) }}{{ '{:>3}'.format(7) }}{{ 'x' * 3 }}{{ 2 ** 8 }}", "a:   1.2%  7xxx256"),
        ("{{ dict(a=1).items() | list }}{{ 1700000000 | tojson }}", "[('a', 1)]1700000000"),
        ("{% for a, b in {'k': 'v'}.items() %}{{ a ~ b }}{% else %}none{% endfor %}", "kv"),
    ],
)
def test_templates_get_what_they_expect(template, text):
    assert render(template, thinking="deep") == text


def test_the_clock_of_a_template_is_given_to_it():
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", "test", now=lambda: datetime(2024, 7, 26))
    assert template.render(HELLO) == "26 Jul 2024"


def test_a_model_without_a_template_says_so(tmp_path):
    text = open_text(write_small_llama(tmp_path / "m.gguf", num_blocks=1, chat_template=None))
    with pytest.raises(SpecError, match=r"chat template.*--raw"):
        text.chat.render(HELLO)


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
        [{"role": "user<|im_end|>", "content": "Hi"}],
        [{"role": "", "content": "Hi"}],
        [{"role": "user", "content": []}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": ["Hi"]}],
        [{"role": "user", "content": "Hi", "weight": float("nan")}],
        [{"role": "user", "content": "Hi", "extra": {1: "a"}}],
        [{"role": "user", "content": "Hi", "extra": object()}],
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


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "video"])
def test_a_part_that_is_not_text_is_refused_by_its_name(kind):
    with pytest.raises(SpecError, match=kind) as caught:
        render("{{ messages }}", [*HELLO, {"role": "user", "content": [{"type": kind, kind: {"url": "x"}}]}])
    assert caught.value.field == "messages[1].content[0].type"


@pytest.mark.parametrize("name", ["chatml", "parts"])
def test_parts_and_text_reach_templates_of_both_kinds(name):
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    written = render(TEMPLATES[name], [{"role": "user", "content": parts}])
    assert "one" in written
    assert "two" in written
    assert "type" not in written
    assert "Hi" in render(TEMPLATES[name], HELLO)


def test_a_role_that_the_template_refuses_is_named_with_the_templates_own_words():
    with pytest.raises(SpecError, match="System role not supported") as caught:
        render(TEMPLATES["turns"], [{"role": "system", "content": "Be brief"}, *HELLO])
    assert (caught.value.field, caught.value.found) == ("messages[0].role", "system")


def test_an_order_that_the_template_refuses_is_not_blamed_on_a_role():
    with pytest.raises(SpecError, match="must alternate") as caught:
        render(TEMPLATES["instructions"], [{"role": "system", "content": "Be brief"}, *HELLO, *HELLO])
    assert (caught.value.field, caught.value.found) == ("messages", ["system", "user", "user"])


@pytest.mark.parametrize(
    ("name", "content", "variables", "opens"),
    [
        ("opening", "Hi", {}, "<think>"),
        ("opening", "<think>", {}, "<think>"),
        ("opening", "Hi", {"add_generation_prompt": False}, None),
        ("thinking", "Hi", {}, None),
        ("thinking", "Hi", {"enable_thinking": False}, None),
        ("thinking", "<think>", {}, None),
        ("chatml", "<think>", {}, None),
    ],
)
def test_what_the_prompt_opens_is_told(name, content, variables, opens):
    template = ChatTemplate(TEMPLATES[name], "test", special_tokens=NAMED)
    messages = [{"role": "user", "content": content}]
    found = template.prompt(messages, **variables)
    assert found == ChatPrompt(template.render(messages, **variables), opens)


def test_a_message_that_ends_the_prompt_opens_nothing():
    template = ChatTemplate("{{ messages[0].content }}", "test")
    assert template.prompt([{"role": "user", "content": "<think>"}]).opens is None


SYSTEM = {"role": "system", "content": " Be brief. "}
ANSWER = {"role": "assistant", "content": "<think>\nwell\n</think>\n\nYes, é"}
CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "sum", "arguments": {"a": [1, 2.5], "b": "<&é>"}}}]}
RESULT = {"role": "tool", "name": "sum", "content": "3.5"}
TOOLS = [{"type": "function", "function": {"name": "sum", "parameters": {"type": "object", "é": None}}}]


@pytest.mark.parametrize("opened", [True, False])
@pytest.mark.parametrize(
    ("name", "messages", "variables"),
    [
        (name, messages, {})
        for name in TEMPLATES
        if name != "parts"
        for messages in (HELLO, [*HELLO, ANSWER, *HELLO], [*HELLO, ANSWER])
    ]
    + [(name, [SYSTEM, *HELLO], {}) for name in ("chatml", "headers", "instructions", "thinking", "opening")]
    + [
        ("headers", [*HELLO, CALL, RESULT], {"tools": TOOLS}),
        ("thinking", [*HELLO, {"role": "assistant", "content": ""}, RESULT, ANSWER], {"enable_thinking": False}),
        ("parts", [{"role": "user", "content": [{"type": "text", "text": "a"}]}], {}),
    ],
)
def test_templates_of_every_style_render_as_transformers_renders_them(name, messages, variables, opened):
    from transformers.utils.chat_template_utils import render_jinja_template

    (expected,), _ = render_jinja_template(
        [messages], chat_template=TEMPLATES[name], add_generation_prompt=opened, **NAMED, **variables
    )
    assert render(TEMPLATES[name], messages, add_generation_prompt=opened, **variables) == expected


@pytest.mark.parametrize("name", ["reasoning", "thinking", "reasoning_content"])
def test_reasoning_has_the_names_that_templates_read_as_in_transformers(name):
    from transformers.utils.chat_template_utils import render_jinja_template

    template = "{{ messages[0].thinking }}|{{ messages[0].reasoning_content }}|{{ messages[0].reasoning }}"
    messages = [{"role": "assistant", "content": "a", name: "well"}]
    assert [render(template, messages)] == render_jinja_template([messages], chat_template=template)[0]
