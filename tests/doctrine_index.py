"""Writes docs/doctrine.md: the project's vocabulary, and its rules with the tests that show them.

`python -m tests.doctrine_index` reads docs/doctrine.toml and the marks `@pytest.mark.rule(...)` in every test file
(by parsing, without importing them) and rewrites the page; with `--check` it writes nothing and exits with 1 when
the page differs. A rule without a test that runs is "open": tests that are skipped or expected to fail do not count.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "docs" / "doctrine.toml"
PAGE = ROOT / "docs" / "doctrine.md"
COMMAND = "python -m tests.doctrine_index"
_NOT_COUNTED = frozenset({"skip", "xfail"})


class Term(NamedTuple):
    """One word of the vocabulary."""

    group: str
    name: str
    meaning: str


class Rule(NamedTuple):
    """One rule, and what a test of it does."""

    id: str
    section: str
    statement: str
    test: str


class RuleTest(NamedTuple):
    """A test function that carries a rule's mark. `path` is relative to the repository."""

    rule_id: str
    path: str
    name: str
    docstring: str
    counted: bool


def load_doctrine(source: Path = SOURCE) -> tuple[list[Term], list[Rule]]:
    """Read the source. Raises ValueError for a field that is missing, unknown or empty."""
    data = tomllib.loads(source.read_text(encoding="utf-8"))
    if set(data) != {"term", "rule"}:
        raise ValueError(f"{source} has the tables {sorted(data)}, needed: rule, term")
    terms = [Term(**_exact_fields(entry, Term._fields)) for entry in data["term"]]
    rules = [Rule(**_exact_fields(entry, Rule._fields)) for entry in data["rule"]]
    return terms, rules


def _exact_fields(entry: dict[str, object], fields: tuple[str, ...]) -> dict[str, str]:
    if set(entry) != set(fields):
        raise ValueError(f"an entry has the fields {sorted(entry)}, needed: {sorted(fields)}")
    values = {name: value.strip() for name, value in entry.items() if isinstance(value, str)}
    if set(values) != set(fields) or not all(values.values()):
        raise ValueError(f"every field must be a text that is not empty: {entry}")
    return values


def collect_rule_tests(root: Path = ROOT) -> list[RuleTest]:
    """Find every marked test under `root`/tests, sorted by path and name.

    Raises ValueError for a mark that cannot be read from the source: one that is not on a test function, a test
    class or `pytestmark`, or whose arguments are not literal.
    """
    found: list[RuleTest] = []
    for path in sorted((root / "tests").rglob("*.py")):
        found.extend(_rule_tests_in(path, path.relative_to(root).as_posix()))
    return found


def _rule_tests_in(path: Path, name: str) -> Iterator[RuleTest]:
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=name)
    readable: set[ast.Call] = set()
    yield from _walk(tree.body, [*_module_marks(tree.body)], name, "", readable)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _mark_name(node.func) == "rule" and node not in readable:
            raise ValueError(f"{name}:{node.lineno}: a rule mark belongs on a test, a test class or pytestmark")


def _module_marks(body: list[ast.stmt]) -> Iterator[ast.expr]:
    for node in body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets
        ):
            yield from node.value.elts if isinstance(node.value, ast.List) else [node.value]


def _walk(
    body: list[ast.stmt], inherited: list[ast.expr], path: str, prefix: str, readable: set[ast.Call]
) -> Iterator[RuleTest]:
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            marks = [*inherited, *node.decorator_list, *_module_marks(node.body)]
            yield from _walk(node.body, marks, path, f"{prefix}{node.name}.", readable)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test"):
            marks = [*inherited, *node.decorator_list]
            names = {_mark_name(mark.func if isinstance(mark, ast.Call) else mark) for mark in marks}
            for rule_id in _rule_ids(marks, path, readable):
                yield RuleTest(
                    rule_id, path, prefix + node.name, ast.get_docstring(node) or "", not names & _NOT_COUNTED
                )


def _rule_ids(marks: list[ast.expr], path: str, readable: set[ast.Call]) -> Iterator[str]:
    for mark in marks:
        if not isinstance(mark, ast.Call) or _mark_name(mark.func) != "rule":
            continue
        readable.add(mark)
        values = [argument.value for argument in mark.args if isinstance(argument, ast.Constant)]
        if mark.keywords or not values or len(values) != len(mark.args):
            raise ValueError(f"{path}:{mark.lineno}: a rule mark takes literal numbers or texts, such as 24 or '36a'")
        yield from (str(value) for value in values)


def _mark_name(node: ast.expr) -> str | None:
    """Return NAME for the expression `pytest.mark.NAME`, else None."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr == "mark":
        return node.attr
    return None


def render_page(terms: Iterable[Term], rules: Iterable[Rule], tests: Iterable[RuleTest]) -> str:
    """Return the page as Markdown: vocabulary, then the rules by section with their status."""
    rules = list(rules)
    by_rule: dict[str, list[RuleTest]] = {rule.id: [] for rule in rules}
    for test in tests:
        if test.counted and test.rule_id in by_rule and test not in by_rule[test.rule_id]:
            by_rule[test.rule_id].append(test)
    shown = sum(1 for rule in rules if by_rule[rule.id])
    lines = [
        "# Doctrine",
        "",
        f"<!-- Written by `{COMMAND}` from docs/doctrine.toml and the rule marks in tests/. Do not edit. -->",
        "",
        "The words that this project uses, and the rules that it holds itself to. Each rule says what a test of it "
        "does. Its status is the test that does so, or *open* when there is none yet.",
        "",
        f"{shown} of {len(rules)} rules are shown by a test; {len(rules) - shown} are open.",
        "",
        "## Vocabulary",
    ]
    for group, members in _grouped(terms, "group"):
        lines += ["", f"### {group}", "", "| Term | Meaning |", "| --- | --- |"]
        lines += [f"| **{_cell(term.name)}** | {_cell(term.meaning)} |" for term in members]
    lines += ["", "## Rules"]
    for section, members in _grouped(rules, "section"):
        lines += [
            "",
            f"### {section}",
            "",
            "| Rule | Statement | What shows it | Status |",
            "| --- | --- | --- | --- |",
        ]
        lines += [
            f"| {rule.id} | {_cell(rule.statement)} | {_cell(rule.test)} | {_status(by_rule[rule.id])} |"
            for rule in members
        ]
    return "\n".join(lines) + "\n"


def _grouped(entries: Iterable[Term | Rule], field: str) -> Iterator[tuple[str, list[Term | Rule]]]:
    groups: dict[str, list[Term | Rule]] = {}
    for entry in entries:
        groups.setdefault(getattr(entry, field), []).append(entry)
    yield from groups.items()


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _status(tests: list[RuleTest]) -> str:
    if not tests:
        return "*open*"
    return "<br>".join(f"[`{test.name}`](../{test.path})" for test in tests)


def main(arguments: list[str]) -> int:
    """Write the page, or compare it when called with `--check`. Returns the exit status."""
    if arguments not in ([], ["--check"]):
        sys.stderr.write(f"usage: {COMMAND} [--check]\n")
        return 2
    terms, rules = load_doctrine()
    page = render_page(terms, rules, collect_rule_tests())
    if arguments == ["--check"]:
        current = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
        if current != page:
            sys.stderr.write(f"{PAGE.relative_to(ROOT)} is out of date; run: {COMMAND}\n")
            return 1
        return 0
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
