"""The guides have an answer for every error and every code that a user may meet."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path

import pytest

from inferswarm import errors
from inferswarm.artifacts import taxonomy
from inferswarm.artifacts.gguf_types import READABLE_ENCODINGS
from inferswarm.demo.checks import CLAIMS
from inferswarm.fabric.authority import RefusalCode
from inferswarm.strategies.catalog import CATALOG
from inferswarm.strategies.dense.readers.gguf_table import ARCHITECTURES
from inferswarm.swarm.starting import MECHANISMS
from tests.markdown import read_page

ROOT = Path(__file__).resolve().parents[2]
TROUBLE = (ROOT / "docs" / "guides" / "troubleshooting.md").read_text(encoding="utf-8")
MEMORY = (ROOT / "docs" / "guides" / "memory.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
KINDS = [
    name
    for name, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.InferSwarmError) and kind is not errors.InferSwarmError
]
USED_CODES = [
    value
    for name, value in vars(taxonomy).items()
    if name.isupper() and isinstance(value, str) and value in taxonomy.REASON_CODES
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_has_a_paragraph(kind):
    paragraph = re.search(rf"^### {kind}\n(.+?)(?=^#|\Z)", TROUBLE, re.MULTILINE | re.DOTALL)
    assert paragraph is not None
    assert len(paragraph.group(1).split()) >= 12


def test_every_paragraph_is_of_an_error_that_exists():
    assert set(re.findall(r"^### (\w+)$", TROUBLE, re.MULTILINE)) == set(KINDS)


@pytest.mark.parametrize("code", [code.value for code in RefusalCode])
def test_every_refusal_code_is_explained(code):
    assert f"`{code}`" in TROUBLE


def test_codes_of_artifacts_that_are_raised_are_explained():
    assert len(USED_CODES) >= 8
    assert [code for code in USED_CODES if f"`{code}`" not in TROUBLE] == []


def test_what_can_be_read_is_what_the_reader_takes():
    paragraph = TROUBLE.split("### UnsupportedModel", 1)[1].split("###", 1)[0]
    assert [name for name in ARCHITECTURES if f"`{name}`" not in paragraph] == []
    assert [name for name in READABLE_ENCODINGS if not re.search(rf"\b{name}\b", paragraph)] == []


@pytest.mark.parametrize("mechanism", [*MECHANISMS, "none"])
def test_every_memory_mechanism_is_explained(mechanism):
    assert any(mechanism in span.split() for span in read_page(MEMORY).spans)


def test_the_readme_installs_the_model_as_the_catalog_says():
    assert all(entry.install in read_page(README).spans for entry in CATALOG.values())


def test_the_readme_counts_the_claims_of_the_demonstration():
    words = ("six", "seven", "eight", "nine", "ten", "eleven", "twelve")
    assert re.findall(r"checks (\w+) claims", README) == [words[len(CLAIMS) - 6]]


def test_the_table_of_extras_is_that_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    rows = dict(re.findall(r"^\| (?:`(\w+)`|\(base\)) \| ([^|]+) \|", README, re.MULTILINE))
    assert set(rows) == {"", *project["optional-dependencies"]}
    for extra, dependencies in {"": project["dependencies"], **project["optional-dependencies"]}.items():
        wanted = {name for item in dependencies for name in names_in(item)} - UNLISTED
        assert wanted == set(re.findall(r"[\w-]+", rows[extra])), extra


UNLISTED = frozenset({"pytest-timeout", "pytest-xdist"})
"""Too small to be worth a place in the table."""


def names_in(requirement: str) -> list[str]:
    """Return a requirement's name, or the extras when it is this package's own.

    >>> names_in("fsspec[http]>=2024.6"), names_in("inferswarm[lab,ray]")
    (['fsspec'], ['lab', 'ray'])
    """
    name, extras = re.match(r"([\w-]+)(?:\[([\w,]+)\])?", requirement).groups()
    return extras.split(",") if name == "inferswarm" else [name]
