"""The naming law: public names use the project's words, and none of the words that mean something else to others."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

import inferswarm

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = sorted((ROOT / "inferswarm").rglob("*.py"))
PACKAGES = sorted(".".join(path.parent.relative_to(ROOT).parts) for path in PACKAGE if path.name == "__init__.py")
FORBIDDEN = frozenset({"device", "worker", "host", "rank", "shard", "tier", "primary", "secondary", "hot", "cold"})
ALLOWED = frozenset({"host_id", "HostInventory"})
"""`host_id` is what virtual Nodes share: the one thing that is said of a computer and not of a Node."""
ALLOWED_IN_RESOURCES = frozenset({"host", "nodes_of_host", "graph_of_host", "load_or_create_host_salt"})
"""Discovery deals with that computer itself. Elsewhere these names are not allowed."""
TORCH_WORDS = frozenset({"device"})
"""Torch's own word, allowed inside backends."""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def word_parts(name: str) -> list[str]:
    """Split a snake_case or CamelCase name into lowercase words, plurals included as their singular."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", name)
    return [word.lower() for word in words] + [word.lower().removesuffix("s") for word in words]


def public_names(tree: ast.Module) -> list[str]:
    """Return the public names that a module defines: constants, functions and their parameters, classes, fields."""
    names: list[str] = []

    def visit(body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.append(node.target.id)
            elif isinstance(node, ast.Assign):
                names.extend(target.id for target in node.targets if isinstance(target, ast.Name))
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("_"):
                arguments = node.args
                names.append(node.name)
                names.extend(item.arg for item in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))
            elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                names.append(node.name)
                visit(node.body)

    visit(tree.body)
    return [name for name in names if not name.startswith("_")]


def offending(names: list[str], module: str = "inferswarm/planner/plan.py") -> list[str]:
    """Return the names that a module at this path may not use."""
    allowed = ALLOWED | ALLOWED_IN_RESOURCES if module.startswith("inferswarm/resources/") else ALLOWED
    forbidden = FORBIDDEN - TORCH_WORDS if module.startswith("inferswarm/backends/") else FORBIDDEN
    return [name for name in names if name not in allowed and forbidden & set(word_parts(name))]


@pytest.mark.parametrize("path", PACKAGE, ids=name_of)
def test_public_names_obey_the_naming_law(path):
    assert offending(public_names(ast.parse(path.read_text(encoding="utf-8"))), name_of(path)) == []


@pytest.mark.parametrize("path", PACKAGE, ids=name_of)
def test_module_names_obey_the_naming_law(path):
    assert offending([path.stem, path.parent.name], name_of(path)) == []


@pytest.mark.parametrize(
    ("name", "offends"),
    [
        ("device", True),
        ("num_devices", True),
        ("DeviceKind", True),
        ("GPUDevice", True),
        ("is_hot", True),
        ("PRIMARY", True),
        ("host_name", True),
        ("host_id", False),
        ("hostile", False),
        ("ranked", False),
        ("snapshot", False),
        ("shot", False),
        ("frontier", False),
    ],
)
def test_forbidden_words_are_recognized_as_whole_parts(name, offends):
    assert bool(offending([name])) is offends


def test_words_with_a_home_are_allowed_there_alone():
    assert offending(["host", "device"]) == ["host", "device"]
    assert offending(["host", "device"], "inferswarm/resources/graph.py") == ["device"]
    assert offending(["host", "device"], "inferswarm/backends/torch_backend/device.py") == ["host"]


def test_private_and_local_names_are_free():
    text = "_host = 1\ndef _worker(rank): pass\ndef f(x):\n    shard = 1\nclass _Hot:\n    tier: int\n"
    assert offending(public_names(ast.parse(text))) == []


def test_fields_parameters_and_constants_are_public():
    text = "SHARDS = 1\ndef f(rank, *, tier): pass\nclass A:\n    host: str\n    def g(self, worker): pass\n"
    assert offending(public_names(ast.parse(text))) == ["SHARDS", "rank", "tier", "host", "worker"]


def test_the_front_door_lists_its_names_in_order():
    assert list(inferswarm.__all__) == sorted(inferswarm.__all__)
    assert dir(inferswarm) == sorted(inferswarm.__all__)


@pytest.mark.parametrize("name", inferswarm.__all__)
def test_every_name_at_the_front_door_loads_when_it_is_used(name):
    assert getattr(inferswarm, name) is not None


def test_an_unknown_name_at_the_front_door_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Swarn'"):
        _ = inferswarm.Swarn


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_exports_what_it_says(package):
    module = importlib.import_module(package)
    names = getattr(module, "__all__", [])
    assert [name for name in names if not hasattr(module, name)] == []
    assert len(set(names)) == len(names)
