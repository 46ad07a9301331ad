"""docs/doctrine.md says what the rules are and what the tests show, and cannot drift from either."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests import doctrine_index
from tests.doctrine_index import Rule, RuleTest, Term, collect_rule_tests, load_doctrine, render_page

TERMS, RULES = load_doctrine()
TESTS = collect_rule_tests()


def write_test_file(root: Path, text: str) -> list[RuleTest]:
    folder = root / "tests" / "doctrine"
    folder.mkdir(parents=True)
    (folder / "test_sample.py").write_text("import pytest\n" + text)
    return collect_rule_tests(root)


def test_page_is_what_the_generator_writes():
    page = doctrine_index.PAGE.read_text(encoding="utf-8")
    assert page == render_page(TERMS, RULES, TESTS), f"docs/doctrine.md is out of date; run: {doctrine_index.COMMAND}"


def test_every_marked_rule_exists():
    known = {rule.id for rule in RULES}
    assert {f"{test.path}::{test.name}: {test.rule_id}" for test in TESTS if test.rule_id not in known} == set()


def test_every_marked_test_names_the_mutation_that_turns_it_red():
    unnamed = {f"{test.path}::{test.name}" for test in TESTS if not re.search(r"Mutation: \S", test.docstring)}
    assert unnamed == set()


def test_rule_ids_are_unique_and_complete():
    ids = [rule.id for rule in RULES]
    assert [rule_id for rule_id, count in Counter(ids).items() if count > 1] == []
    assert [rule_id for rule_id in ids if rule_id.isdigit()] == [str(number) for number in range(1, 103)]
    lettered = [rule_id for rule_id in ids if not rule_id.isdigit()]
    assert lettered == ["14a", "36a", "43a", "59a", "64a", "64b", "75a", "75b", "99a"]


def test_lettered_rules_follow_the_number_that_they_belong_to():
    keys = [(int(re.match(r"\d+", rule.id)[0]), rule.id) for rule in RULES]
    assert keys == sorted(keys)


def test_terms_are_defined_once():
    assert [name for name, count in Counter(term.name for term in TERMS).items() if count > 1] == []


def test_a_mark_becomes_a_link_and_a_missing_one_stays_open(tmp_path):
    tests = write_test_file(tmp_path, '@pytest.mark.rule("1", 2)\ndef test_a():\n    """Mutation: x."""\n')
    rules = [Rule(str(number), "S", "must", "does") for number in (1, 2, 3)]
    page = render_page([Term("G", "word", "means")], rules, tests)
    assert page.count("[`test_a`](../tests/doctrine/test_sample.py)") == 2
    assert "| 3 | must | does | *open* |" in page
    assert "2 of 3 rules are shown by a test; 1 are open." in page


@pytest.mark.parametrize("mark", ["skip(reason='later')", "xfail", "skip"])
def test_a_test_that_does_not_have_to_pass_shows_nothing(tmp_path, mark):
    tests = write_test_file(tmp_path, f"@pytest.mark.rule(1)\n@pytest.mark.{mark}\ndef test_a(): pass\n")
    assert "0 of 1 rules" in render_page([], [Rule("1", "S", "must", "does")], tests)


def test_marks_of_a_class_and_of_a_module_reach_their_tests(tmp_path):
    tests = write_test_file(
        tmp_path,
        "pytestmark = [pytest.mark.rule(1)]\n@pytest.mark.rule(2)\nclass TestA:\n    def test_b(self): pass\n",
    )
    assert [(test.rule_id, test.name) for test in tests] == [("1", "TestA.test_b"), ("2", "TestA.test_b")]


@pytest.mark.parametrize(
    "text",
    [
        "NUMBER = 3\n@pytest.mark.rule(NUMBER)\ndef test_a(): pass\n",
        "@pytest.mark.rule()\ndef test_a(): pass\n",
        "@pytest.mark.rule(number=3)\ndef test_a(): pass\n",
        "@pytest.mark.rule(3)\ndef helper(): pass\n",
        "CASES = [pytest.param(1, marks=pytest.mark.rule(3))]\n",
    ],
)
def test_a_mark_that_cannot_be_read_is_an_error(tmp_path, text):
    with pytest.raises(ValueError, match=r"tests/doctrine/test_sample\.py:\d+: a rule mark"):
        write_test_file(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        '[[term]]\ngroup = "g"\nname = "n"\nmeaning = "m"\n',
        '[[term]]\ngroup = "g"\nname = "n"\nmeaning = ""\n[[rule]]\nid="1"\nsection="s"\nstatement="s"\ntest="t"\n',
        '[[term]]\ngroup = "g"\nname = "n"\nmeaning = "m"\n[[rule]]\nid=1\nsection="s"\nstatement="s"\ntest="t"\n',
        '[[term]]\ngroup = "g"\nname = "n"\nmeaning = "m"\n[[rule]]\nid="1"\nsection="s"\nstatement="s"\n',
    ],
)
def test_an_incomplete_source_is_refused(tmp_path, text):
    source = tmp_path / "doctrine.toml"
    source.write_text(text)
    with pytest.raises(ValueError, match=r"fields|every field|tables"):
        load_doctrine(source)
