"""docs/architecture.md names every module and the layers as they are, and cannot drift from the tree."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests import architecture_index
from tests.architecture_index import BEGIN, COMMAND, END, modules, render, with_list

ROOT = Path(__file__).resolve().parents[2]
PAGE = architecture_index.PAGE.read_text(encoding="utf-8")


def layers_of_contract() -> list[list[str]]:
    """Return the layers that pyproject.toml enforces, top first, without the package's name."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [[name.strip().removeprefix("inferswarm.") for name in layer.split("|")] for layer in layers]


def test_every_module_is_named():
    listing = PAGE[PAGE.index(BEGIN) : PAGE.index(END)]
    for folder, files in modules().items():
        assert f"### `{folder}/`" in listing, f"{folder} is missing; run: {COMMAND}"
        section = listing.split(f"### `{folder}/`", 1)[1].split("\n### ", 1)[0]
        for name in files:
            assert name == "__init__.py" or f"- `{name}`: " in section, f"{folder}/{name} is missing; run: {COMMAND}"


def test_the_list_is_what_the_generator_writes():
    assert with_list(PAGE, render(modules())) == PAGE, f"docs/architecture.md is out of date; run: {COMMAND}"


def test_the_layers_are_those_of_the_import_contract():
    text = PAGE.split("\n## Layers\n", 1)[1].split("\n## ", 1)[0]
    block = text.split("```")[1]
    assert [line.split() for line in block.strip().splitlines()] == layers_of_contract()


def test_every_module_that_the_text_names_exists():
    text = PAGE[: PAGE.index(BEGIN)]
    named = set(re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", text))
    assert named
    assert [name for name in sorted(named) if not (ROOT / "inferswarm" / name).exists()] == []


def test_a_life_has_twelve_steps():
    life = PAGE.split("\n## A request's life\n", 1)[1].split("\n## ", 1)[0]
    assert re.findall(r"^(\d+)\. \*\*", life, re.MULTILINE) == [str(number) for number in range(1, 13)]


def test_a_new_module_changes_the_list(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text('"""What it is."""\n')
    before = render(modules(package))
    (package / "extra.py").write_text('"""One more.\n\nMore.\n"""\n')
    after = render(modules(package))
    assert before == "### `package/`\n\nWhat it is."
    assert after == f"{before}\n\n- `extra.py`: One more."


def test_a_module_without_a_docstring_is_refused(tmp_path):
    (tmp_path / "bare.py").write_text("x = 1\n")
    with pytest.raises(ValueError, match=r"bare\.py has no docstring"):
        modules(tmp_path)


def test_a_page_without_marks_is_refused():
    with pytest.raises(ValueError, match="each once"):
        with_list("# Page\n", "list")
