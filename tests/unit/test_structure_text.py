"""The project speaks of itself alone: no text in it names the place or the way in which it was made."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Written in two parts, so that this file does not hold what it looks for.
FORBIDDEN = tuple(
    "".join(parts)
    for parts in (
        ("/wo", "rk/"),
        ("sub", "agent"),
        ("this work", "place"),
        ("pypi", ".org"),
        ("files.python", "hosted"),
        ("registry.", "npmjs"),
        ("8-deci", "sions"),
        ("2-doc", "trine.md"),
        ("3-archi", "tecture.md"),
        ("shared/", "design"),
        ("original re", "search"),
        ("co-authored", "-by"),
    )
)


def project_texts() -> list[Path]:
    """Return the files that belong to the repository and are text: listed by git, or not ignored by it."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    paths = [ROOT / name for name in listing.stdout.split("\0") if name]
    return [path for path in paths if path.is_file() and b"\0" not in path.read_bytes()[:4096]]


def forbidden_in(text: str) -> list[str]:
    lowered = text.lower()
    return [word for word in FORBIDDEN if word in lowered]


def test_no_text_names_how_or_where_the_project_was_made():
    found = {
        path.relative_to(ROOT).as_posix(): words
        for path in project_texts()
        if (words := forbidden_in(path.read_text(encoding="utf-8", errors="replace")))
    }
    assert found == {}


def test_the_scan_reaches_code_tests_and_documents():
    names = {path.relative_to(ROOT).as_posix() for path in project_texts()}
    assert {
        "inferswarm/errors.py",
        "docs/doctrine.toml",
        "pyproject.toml",
        "tests/unit/test_structure_text.py",
    } <= names


@pytest.mark.parametrize("word", FORBIDDEN)
def test_each_word_is_found_in_any_case(word):
    assert forbidden_in(f"see {word.upper()}x") == [word]
