"""What the code of an arm's notebook may look like: plain Python, literal parameters, one opening, one finish.

What the code in between may not do is in `notebook_calls`.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Sequence

from inferswarm.campaigns.notebook_calls import ARM_CLASS, ARM_MODULE, ARM_NAME
from inferswarm.campaigns.records import Parameter, Value
from inferswarm.campaigns.spec import RUN_PARAMETER


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
    """Return why a cell does not end by opening the arm with its parameters, each under its own name."""
    wanted = ", ".join([RUN_PARAMETER, *(f"{name}={name}" for name in names)])
    needed = f"{ARM_NAME} = {ARM_CLASS}.open({wanted})"
    if not tree.body or ast.unparse(tree.body[-1]) != needed:
        return f"must end with {needed}"
    if ast.unparse(tree.body[0]) != f"from {ARM_MODULE} import {ARM_CLASS}":
        return f"must begin with from {ARM_MODULE} import {ARM_CLASS}"
    return None


def finish_fault(trees: Sequence[ast.Module]) -> str | None:
    """Return why the last cell is not `arm.finish()` and nothing else, or what finishes an arm before; else None."""
    if [ast.unparse(statement) for statement in trees[-1].body] != [f"{ARM_NAME}.finish()"]:
        return f"must be {ARM_NAME}.finish() and nothing else"
    found = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    if sum(node.attr == "finish" for node in found) != 1:
        return "must be the only one with .finish"
    return None


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
