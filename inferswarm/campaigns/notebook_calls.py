"""What an arm's notebook may not do: run other programs, reach behind what it is given, bind the run's names again.

A lint, made against mistakes and the lazy kind of cheating. It cannot be complete: code that is imported can do
all of this. Of that the package's is known by its digest and its commit.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from inferswarm.campaigns.spec import RUN_PARAMETER

ARM_MODULE: Final = "inferswarm.campaigns.arm"
ARM_CLASS: Final = "Arm"
ARM_NAME: Final = "arm"
OPENING: Final = 1
"""Place of the cell that opens the arm, among those with code."""
_MODULES: Final = frozenset(
    {
        "IPython",
        "_posixsubprocess",
        "atexit",
        "builtins",
        "ctypes",
        "importlib",
        "inferswarm.campaigns",
        "ipykernel",
        "multiprocessing",
        "pty",
        "runpy",
        "subprocess",
    }
)
"""Modules that start programs, run text, or make up what a run's records say."""
_CALLS: Final = re.compile(
    r"os\.(system|popen|_exit|abort|kill|killpg|fork|forkpty|posix_spawnp?|spawn\w*|exec\w*)"
    r"|posix\..*|asyncio\.(subprocess.*|create_subprocess_\w+)|contextlib\.suppress"
)
_NAMES: Final = frozenset(
    {
        "__builtins__",
        "__import__",
        "breakpoint",
        "compile",
        "delattr",
        "eval",
        "exec",
        "get_ipython",
        "getattr",
        "globals",
        "locals",
        "setattr",
        "vars",
    }
)
_RUN_VARIABLES: Final = "INFERSWARM_RUN_"


def forbidden(trees: Sequence[ast.Module], parameters: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield what cells of code do that no arm may, with the cell; the first two are parameters and opening."""
    imported = _imported(trees)
    kept = {RUN_PARAMETER, ARM_NAME, ARM_CLASS, *parameters}
    for place, tree in enumerate(trees):
        for node in ast.walk(tree):
            for fault in _faults(node, place, imported, kept):
                yield place, f"line {getattr(node, 'lineno', 1)}: {fault}"


def _faults(node: ast.AST, place: int, imported: Mapping[str, str], kept: set[str]) -> Iterator[str]:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from _import_faults(node, place)
    elif isinstance(node, ast.Name) and node.id in _NAMES:
        yield f"{node.id}: what it does cannot be read here"
    elif isinstance(node, ast.Attribute):
        yield from _attribute_faults(node, imported, kept)
    elif isinstance(node, ast.ExceptHandler) and all(_says_nothing(statement) for statement in node.body):
        yield "an exception that is passed over"
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _RUN_VARIABLES in node.value:
        yield "the run's directory is written by the arm only"
    if isinstance(node, ast.Name) and _CALLS.fullmatch(imported.get(node.id, "")):
        yield f"{imported[node.id]} does not say how it ended"
    for name in _bound(node):
        is_opened = place == OPENING and name in (ARM_NAME, ARM_CLASS)
        if name in kept and place != 0 and not is_opened:
            yield f"{name} is the run's, and may not be bound again"


def _import_faults(node: ast.Import | ast.ImportFrom, place: int) -> Iterator[str]:
    if place == OPENING and ast.unparse(node) == f"from {ARM_MODULE} import {ARM_CLASS}":
        return
    if isinstance(node, ast.ImportFrom):
        names = [f"{node.module or ''}.{item.name}" for item in node.names]
        if node.level or "*" in (item.name for item in node.names):
            yield "names that cannot be read here are imported"
    else:
        names = [item.name for item in node.names]
    for name in names:
        parts = name.split(".")
        if any(".".join(parts[: end + 1]) in _MODULES for end in range(len(parts))):
            yield f"{name} may not be imported"


def _attribute_faults(node: ast.Attribute, imported: Mapping[str, str], kept: set[str]) -> Iterator[str]:
    dotted = _dotted(node)
    root, _, rest = dotted.partition(".")
    if (said := f"{imported.get(root, root)}.{rest}") and _CALLS.fullmatch(said):
        yield f"{said} does not say how it ended"
    if node.attr.startswith("_"):
        yield f"{node.attr} is private"
    if not isinstance(node.ctx, ast.Load) and (root in imported or root in kept):
        yield f"{dotted} may not be another than it is"


def _imported(trees: Iterable[ast.Module]) -> dict[str, str]:
    """Return what names stand for that are imported anywhere: modules, and what is in them, with dots."""
    found: dict[str, str] = {}
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for item in node.names:
                    name = item.name if item.asname else item.name.split(".")[0]
                    found[item.asname or name] = name
            elif isinstance(node, ast.ImportFrom):
                found |= {item.asname or item.name: f"{node.module}.{item.name}" for item in node.names}
    return found


def _dotted(node: ast.expr) -> str:
    """Return names with dots between them; other expressions stand as they are."""
    return f"{_dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ast.unparse(node)


def _bound(node: ast.AST) -> Iterator[str]:
    """Yield the names that a piece of code binds or takes away."""
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (item.asname or item.name.split(".")[0] for item in node.names)
    elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
        yield node.name
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield node.rest


def _says_nothing(statement: ast.stmt) -> bool:
    is_constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return isinstance(statement, (ast.Pass, ast.Continue)) or is_constant
