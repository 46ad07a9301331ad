"""What the code of an arm's notebook may look like: plain Python, literal parameters, one opening, one finish.

A lint, made to catch what ends without an error and yet was none of the arm's doing: shell lines, magics, processes
whose status nobody looks at. It does not defend against code that hides what it calls.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator

from inferswarm.campaigns.records import Parameter, Value
from inferswarm.campaigns.spec import RUN_PARAMETER

_CHECKED = frozenset({"check_call", "check_output"})
_SHELLS = frozenset({("os", "system"), ("os", "popen"), ("os", "_exit"), ("os", "abort")})


def parse_code(text: str) -> ast.Module | str:
    """Return a cell's code as a tree, or why it is no plain Python (a magic, a shell line, a question mark)."""
    try:
        flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        tree = compile(text, "<cell>", "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f"line {error.lineno}: " if isinstance(error, SyntaxError) else ""
        return f"{line}no plain Python ({getattr(error, 'msg', error)}); magics and shell lines are not"
    assert isinstance(tree, ast.Module)
    return tree


def literal_parameters(text: str) -> tuple[Parameter, ...] | str:
    """Return the parameters that a cell assigns, `run` first; or what it holds beside literals, one a line."""
    tree = parse_code(text)
    if isinstance(tree, str):
        return tree
    comments = _commented_lines(text)
    found: list[Parameter] = []
    for statement in tree.body:
        if (value := _literal(statement)) is None or not isinstance(statement, ast.Assign):
            return f"line {statement.lineno}: needed NAME = a text, a number or a truth"
        target = statement.targets[0]
        assert isinstance(target, ast.Name)
        if statement.end_lineno not in comments or any(item.name == target.id for item in found):
            return f"line {statement.lineno}: {target.id} needs a comment behind it, and its own name"
        found.append(Parameter(target.id, value))
    if not found or found[0] != Parameter(RUN_PARAMETER, ""):
        return f'the first parameter must be {RUN_PARAMETER} = ""'
    return tuple(found)


def assigned_values(text: str) -> dict[str, Value] | str:
    """Return what a cell of nothing but assigned literals assigns, as papermill injects it; or what else it holds."""
    tree = parse_code(text)
    if isinstance(tree, str):
        return tree
    values: dict[str, Value] = {}
    for statement in tree.body:
        if (value := _literal(statement)) is None or not isinstance(statement, ast.Assign):
            return f"line {statement.lineno}: no assigned literal"
        target = statement.targets[0]
        assert isinstance(target, ast.Name)
        if target.id in values:
            return f"line {statement.lineno}: {target.id} is assigned twice"
        values[target.id] = value
    return values


def opening_fault(tree: ast.Module, names: tuple[str, ...]) -> str | None:
    """Return why a cell does not open the arm with its parameters, each under its own name; None where it does."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "Arm.open"]
    wanted = ", ".join([RUN_PARAMETER, *(f"{name}={name}" for name in names)])
    if [ast.unparse(call) for call in calls] != [f"Arm.open({wanted})"]:
        return f"must call Arm.open({wanted})"
    return None


def finish_fault(tree: ast.Module) -> str | None:
    """Return why a cell does not end with `arm.finish()`, or None where it does."""
    last = tree.body[-1] if tree.body else None
    call = last.value if isinstance(last, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "finish":
        return None if not call.args and not call.keywords else "finish() takes nothing"
    return "must end with arm.finish()"


def unseen_failures(tree: ast.Module) -> Iterator[str]:
    """Yield the calls that may fail without anybody noticing."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "get_ipython":
            yield f"line {node.lineno}: get_ipython runs magics and shell lines"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner, name = ast.unparse(node.func.value), node.func.attr
            if (owner, name) in _SHELLS:
                yield f"line {node.lineno}: {owner}.{name} does not say how it ended"
            elif owner == "subprocess" and name not in _CHECKED and not (name == "run" and _is_checked(node)):
                yield f"line {node.lineno}: subprocess.{name} without check=True"


def _is_checked(call: ast.Call) -> bool:
    return any(
        item.arg == "check" and isinstance(item.value, ast.Constant) and item.value.value is True
        for item in call.keywords
    )


def _literal(statement: ast.stmt) -> Value | None:
    """Return the literal that a statement assigns to one name, or None."""
    if (
        not isinstance(statement, ast.Assign)
        or len(statement.targets) != 1
        or not isinstance(statement.targets[0], ast.Name)
    ):
        return None
    try:
        value = ast.literal_eval(statement.value)
    except (ValueError, TypeError, RecursionError, MemoryError):
        return None
    return value if type(value) in (str, int, float, bool) else None


def _commented_lines(text: str) -> set[int]:
    """Return the numbers of the lines that end with a comment. The text is known to be Python."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {token.start[0] for token in tokens if token.type == tokenize.COMMENT}
