"""A hostile template is stopped: whatever it repeats, joins or multiplies, and however little it writes."""

import time
from datetime import datetime

import pytest
from jinja2 import nodes

from inferswarm.errors import ModelError, SpecError
from inferswarm.strategies.text.chat import ChatTemplate
from inferswarm.strategies.text.sandbox import TemplateEnvironment

HELLO = [{"role": "user", "content": "Hi"}]


class CountingClock:
    """Each look at it takes a millisecond."""

    def __init__(self):
        self.looks = 0

    def __call__(self):
        self.looks += 1
        return self.looks / 1000


@pytest.mark.parametrize(
    "template",
    [
        "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
        "{% set r = range(99999) %}{% for a in r if a < 0 %}{% endfor %}{% for b in r if b < 0 %}{% endfor %}",
        "{% macro f(n) %}{{ f(n - 1) }}{{ f(n - 1) if n > 0 }}{% endmacro %}{% macro g(n) %}{% if n %}"
        "{{ g(n - 1) }}{{ g(n - 1) }}{% endif %}{% endmacro %}{{ g(40) }}",
        "{% for a in messages[0].content * 9000 %}{{ a.upper() }}{% endfor %}",
        "{% for x in [1] recursive %}{{ loop([x]) }}{% endfor %}",
    ],
)
def test_a_template_that_runs_long_is_stopped_by_the_clock(template):
    clock = CountingClock()
    with pytest.raises(ModelError, match=r"runs too long|RecursionError"):
        ChatTemplate(template, "test", clock=clock).render(HELLO)
    assert clock.looks < 60_000


def test_an_endless_template_is_stopped_in_real_time():
    template = ChatTemplate(
        "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
        "test",
        clock=lambda: 50 * time.monotonic(),
    )
    started = time.monotonic()
    with pytest.raises(ModelError, match="runs too long"):
        template.render(HELLO)
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'a' * 10**9 }}",
        "{{ 10**9 * 'a' }}",
        "{{ [1] * 10**9 }}",
        "{% set x = namespace(t='aaaaaaaa') %}{% for i in range(60) %}{% set x.t = x.t ~ x.t %}{% endfor %}",
        "{% set x = namespace(t='aaaaaaaa') %}{% for i in range(60) %}{% set x.t = 'b' ~ (x.t ~ x.t) %}{% endfor %}",
        "{% set x = namespace(t='aaaaaaaa') %}{% for i in range(60) %}{% set x.t = x.t + x.t %}{% endfor %}",
        "{% set x = namespace(t=[1]) %}{% for i in range(60) %}{% set x.t = x.t + x.t %}{% endfor %}",
        "{% set x = 'a' * 60000 %}{% for i in range(60000) %}{{ x }}{% endfor %}",
        "{{ 10 ** (10 ** 10) }}",
        "{{ 3 ** 2000 * 3 ** 2000 }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '%999999999d' | format(1) }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ '{:{}}'.format(1, 999999999) }}",
        "{{ '{a:{w}}'.format_map({'w': '999999999', 'a': 1}) }}",
        "{{ ('{0:99999}' * 1000).format(1) }}",
        "{{ ('%99999d' * 1000) % ((1,) * 1000) }}",
        "{{ 'a'.ljust(999999999) }}",
        "{{ 'a' | center(999999999) }}",
        "{{ 'a' | center(width=999999999) }}",
        "{{ [1] | tojson(indent=999999999) }}",
        "{{ ('a' * 4000000) | replace('a', 'bb') }}",
        "{{ [['a' * 1000000] * 1000] * 10 }}",
        "{{ [['a' * 1000000] * 1000] ~ 'b' }}",
        "{{ {'k': [['a' * 1000000] * 1000]} | string | length }}",
        "{{ [[['a' * 1000000] * 1000]] | join }}",
        "{% set t = 'a' * 1000000 %}{{ t.replace('a', t) }}",
        "{% set t = 'a' * 1000000 %}{{ t | replace('a', t) }}",
        "{% set t = 'a' * 1000000 %}{{ t.replace('', t) }}",
        "{% set t = 'a' * 1000000 %}{{ t.translate({97: t}) }}",
        "{% set t = 'a' * 4000000 %}{{ ([t] * 100000) | join }}",
        "{% set t = 'a' * 4000000 %}{{ ([1] * 100000) | join(t) }}",
        "{% set t = 'a' * 4000000 %}{{ ([{'t': t}] * 100000) | join(attribute='t') }}",
        "{% set t = 'a' * 4000000 %}{{ ''.join([t] * 100000) }}",
        "{% set t = 'a' * 4000000 %}{{ t.join('bb' | list * 100000) }}",
        "{% set t = 'a' * 4000000 %}{{ ('{0}' * 100000).format(t) }}",
        "{% set t = 'a' * 4000000 %}{{ ('{t[0]}' * 100000).format_map({'t': [t]}) }}",
        "{% set t = 'a' * 4000000 %}{{ ('%s' * 100000) % ((t,) * 100000) }}",
        "{% set t = 'a' * 4000000 %}{{ ('%(t)s' * 100000) | format(t=t) }}",
    ],
)
def test_a_template_that_makes_something_huge_is_stopped(template):
    started = time.monotonic()
    with pytest.raises(ModelError):
        ChatTemplate(template, "test").render(HELLO)
    assert time.monotonic() - started < 5


def test_texts_that_a_template_joins_replaces_and_formats_within_the_bounds_are_as_python_makes_them():
    template = (
        "{{ [1, 'b'] | join(', ') }}|{{ messages | join('-', attribute='content') }}|{{ '+'.join('abc') }}"
        "|{{ '+'.join(['a', 'b'] | map('upper')) }}|{{ 'aba'.replace('a', 'cc') }}|{{ 'aba' | replace('a', 'c', 1) }}"
        "|{{ 'a'.translate({97: 'z'}) }}|{{ '{} {x}'.format(1, x='y') }}|{{ '%s %s' % (1, 'y') }}|"
        "{{ [] | join('x') }}"
    )
    expected = "1, b|Hi|a+b+c|A+B|ccbcc|cba|z|1 y|1 y|"
    assert ChatTemplate(template, "test").render(HELLO) == expected


def test_a_fault_of_the_template_engine_itself_is_the_models_error():
    with pytest.raises(ModelError, match="at least one item"):
        ChatTemplate("{{ cycler() }}", "test").render(HELLO)


def test_messages_that_are_too_long_are_the_callers_error():
    with pytest.raises(SpecError, match="messages"):
        ChatTemplate("{{ messages[0].content }}", "test").render([{"role": "user", "content": "a" * (1 << 22) + "b"}])


@pytest.mark.parametrize("template", ["{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "a" * (1 << 20) + "b"])
def test_a_template_that_is_too_deep_or_too_long_is_not_compiled(template):
    with pytest.raises(ModelError, match=r"compiled|too long"):
        ChatTemplate(template, "test")


@pytest.mark.parametrize(
    "template",
    [
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{{ dict.mro() }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        "{{ lipsum() }}",
        "{{ (messages | map(attribute='__class__') | list)[0].x }}",
    ],
)
def test_what_the_bounds_replace_is_no_way_out_of_the_sandbox(template):
    with pytest.raises(ModelError):
        ChatTemplate(template, "test").render(HELLO)


def test_one_rendering_does_not_use_up_the_time_of_the_next():
    clock = CountingClock()
    template = ChatTemplate("{% for a in range(3000) %}{% endfor %}done", "test", clock=clock)
    for _ in range(5):
        assert template.render(HELLO) == "done"


def test_every_concatenation_and_loop_of_a_template_is_bounded():
    environment = TemplateEnvironment(datetime.now)
    tree = environment.parse(
        "{% set a = 'x' ~ ('y' ~ ('z' ~ 1)) %}{% for i in ['b' ~ a] %}{% for j in i %}{{ (a ~ j) ~ i }}{% endfor %}"
        "{% endfor %}{% macro m(b='c' ~ a) %}{{ f(b ~ a, k=[a ~ b])[a ~ 1] }}{% endmacro %}"
    )
    assert not list(tree.find_all(nodes.Concat))
    assert all(isinstance(loop.iter, nodes.Filter) for loop in tree.find_all(nodes.For))
    assert environment.from_string("{{ 'a' ~ ('b' ~ (1 ~ none)) ~ nothing }}").render() == "ab1None"
