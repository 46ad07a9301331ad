"""The package's shape: small modules, explained ones, and no habits that hide faults."""

from __future__ import annotations

import ast
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = sorted((ROOT / "inferswarm").rglob("*.py"))
SOURCES = [*PACKAGE, *sorted((ROOT / "tests").rglob("*.py"))]
MAX_LINES = 500
MAX_MEDIAN_LINES = 150
PROCESS_BOUNDARIES = frozenset({"inferswarm/cli.py"})
"""Modules that turn whatever happened into an exit status or a message; fabric/*_main.py are such modules too."""
PRINTING = ("inferswarm/cli.py", "inferswarm/demo/")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=name_of(path))


def is_process_boundary(name: str) -> bool:
    return name in PROCESS_BOUNDARIES or (name.startswith("inferswarm/fabric/") and name.endswith("_main.py"))


def broad_handlers(tree: ast.Module) -> list[int]:
    """Return the lines that catch everything; cleaning up and raising again is not catching."""
    lines: list[int] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        names = {
            kind.id if isinstance(kind, ast.Name) else None if kind is None else ast.unparse(kind) for kind in kinds
        }
        raises_again = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
        if names & {None, "Exception"} or ("BaseException" in names and not raises_again):
            lines.append(node.lineno)
    return lines


def undocumented(tree: ast.Module) -> list[str]:
    """Return the public modules, classes and functions without a docstring."""
    missing = [] if ast.get_docstring(tree) else ["<module>"]

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) or node.name.startswith(
                "_"
            ):
                continue
            decorators = {ast.unparse(item) for item in node.decorator_list}
            if not ast.get_docstring(node) and not decorators & {"overload", "override"}:
                missing.append(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{prefix}{node.name}.")

    visit(tree.body, "")
    return missing


def test_there_is_a_package_to_look_at():
    assert len(PACKAGE) > 20


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_no_module_is_longer_than_the_limit(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


def test_the_median_module_reads_in_one_sitting():
    lengths = [len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE if path.name != "__init__.py"]
    assert statistics.median(lengths) <= MAX_MEDIAN_LINES


@pytest.mark.parametrize("path", PACKAGE, ids=name_of)
def test_faults_are_caught_by_kind(path):
    lines = broad_handlers(parse(path))
    assert lines == [] or is_process_boundary(name_of(path))


@pytest.mark.parametrize("path", PACKAGE, ids=name_of)
def test_everything_public_is_explained(path):
    assert undocumented(parse(path)) == []


@pytest.mark.parametrize("path", PACKAGE, ids=name_of)
def test_only_the_command_line_prints(path):
    prints = [
        node.lineno
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert prints == [] or name_of(path).startswith(PRINTING)


def test_no_module_is_a_drawer_for_odds_and_ends():
    drawers = {"utils.py", "util.py", "helpers.py", "common.py", "misc.py"}
    assert [name_of(path) for path in SOURCES if path.name in drawers] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("try: pass\nexcept Exception: pass", True),
        ("try: pass\nexcept: pass", True),
        ("try: pass\nexcept (OSError, Exception): pass", True),
        ("try: pass\nexcept BaseException: pass", True),
        ("try: pass\nexcept BaseException:\n    x = 1\n    raise", False),
        ("try: pass\nexcept OSError: pass", False),
    ],
)
def test_broad_handlers_are_recognized(text, found):
    assert bool(broad_handlers(ast.parse(text))) is found


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("x = 1", ["<module>"]),
        ("'''m'''\nclass A:\n    '''a'''\n    def f(self): pass\n    def _g(self): pass", ["A.f"]),
        ("'''m'''\nclass _A:\n    def f(self): pass", []),
        ("'''m'''\nasync def f(): pass", ["f"]),
    ],
)
def test_missing_docstrings_are_recognized(text, missing):
    assert undocumented(ast.parse(text)) == missing
