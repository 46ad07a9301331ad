"""What the documents point at exists: files, headings, commands of the command line, targets of the Makefile."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from inferswarm.cli import app
from tests.markdown import Page, pages, read_page

ROOT = Path(__file__).resolve().parents[2]
PAGES = pages()
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:")
SHELL_BLOCK = re.compile(r"^(?:\$ )?((?:inferswarm|make)(?: [^#\n]*)?)(?=#|$)", re.MULTILINE)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def page_of(path: Path) -> Page:
    return read_page(path.read_text(encoding="utf-8"))


def broken_links(path: Path) -> list[str]:
    """Return the relative links of a page that lead nowhere, headings included."""
    broken = []
    for link in page_of(path).links:
        if ELSEWHERE.match(link):
            continue
        target, _, anchor = link.partition("#")
        there = (path.parent / target).resolve() if target else path
        if os.path.relpath(there, ROOT).startswith("..") or not there.exists() or not has_anchor(there, anchor):
            broken.append(link)
    return broken


def has_anchor(path: Path, anchor: str) -> bool:
    return not anchor or (path.suffix == ".md" and anchor in page_of(path).anchors)


def commands(page: Page) -> list[str]:
    """Return every `inferswarm …` and `make …` that a page shows, in spans and at the start of lines of blocks."""
    spans = [span for span in page.spans if re.match(r"(inferswarm|make)( |$)", span)]
    lines = [line.strip() for block in page.blocks for line in SHELL_BLOCK.findall(block)]
    return [*spans, *lines]


def options_of(command: Any) -> frozenset[str]:
    return frozenset(
        name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)
    ) | {"--help"}


def refusal_of_inferswarm(words: list[str]) -> str | None:
    """Return what is wrong with the words after `inferswarm`, or None."""
    group: Any = typer.main.get_command(app)
    if not words:
        return None
    command = group
    while words and not words[0].startswith("-") and hasattr(command, "commands"):
        name, *words = words
        if name not in command.commands:
            return f"no command {name!r}; there are {sorted(command.commands)}"
        command = command.commands[name]
    flags = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    unknown = sorted(set(flags) - options_of(command))
    return f"no options {unknown}; there are {sorted(options_of(command))}" if unknown else None


def makefile_targets(text: str) -> frozenset[str]:
    """Return the names that `make` can be asked for."""
    lines = re.findall(r"^([A-Za-z][\w.-]*(?: [A-Za-z][\w.-]*)*) *:(?![=:])", text, re.MULTILINE)
    return frozenset(name for line in lines for name in line.split())


def refusal_of_make(words: list[str]) -> str | None:
    """Return what is wrong with the words after `make`, or None."""
    targets = makefile_targets((ROOT / "Makefile").read_text(encoding="utf-8"))
    unknown = [word for word in words if "=" not in word and not word.startswith("-") and word not in targets]
    return f"no targets {unknown}; there are {sorted(targets)}" if unknown else None


def refusal_of(command: str) -> str | None:
    program, *words = re.sub(r"\"[^\"]*\"|'[^']*'", "TEXT", command).split()
    words = [word for word in words if word != "…"]
    return refusal_of_make(words) if program == "make" else refusal_of_inferswarm(words)


def test_the_expected_pages_are_there():
    found = {name_of(path) for path in PAGES}
    assert {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "docs/architecture.md"} <= found
    assert {"docs/doctrine.md", "docs/log.md", "docs/guides/memory.md", "docs/guides/troubleshooting.md"} <= found


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_every_relative_link_leads_somewhere(path):
    assert broken_links(path) == []


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_every_command_that_is_shown_exists(path):
    refused = {command: why for command in commands(page_of(path)) if (why := refusal_of(command)) is not None}
    assert refused == {}


def test_the_readme_shows_every_command():
    group: Any = typer.main.get_command(app)
    shown = {tuple(command.split()[:2]) for command in commands(page_of(ROOT / "README.md"))}
    assert {("inferswarm", name) for name in group.commands} - shown == set()


def test_contributing_lists_every_target():
    listed = {span.removeprefix("make ") for span in page_of(ROOT / "CONTRIBUTING.md").spans if span[:5] == "make "}
    assert listed >= makefile_targets((ROOT / "Makefile").read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", [path for path in PAGES if path.parent.name == "adr"], ids=name_of)
def test_every_decision_is_listed_in_the_architecture(path):
    assert f"adr/{path.name}" in page_of(ROOT / "docs" / "architecture.md").links


def test_decisions_are_numbered_without_a_gap():
    numbers = [int(path.name[:4]) for path in PAGES if path.parent.name == "adr"]
    assert numbers == list(range(1, len(numbers) + 1))


# What the checks above would notice.


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("[a](other.md)", []),
        ("[a](other.md#two-words)", []),
        ("[a](#here)\n\n## Here\n", []),
        ("[a](https://example.org/x)", []),
        ("[a](missing.md)", ["missing.md"]),
        ("[a](other.md#absent)", ["other.md#absent"]),
        ("![a](images/absent.png)", ["images/absent.png"]),
        ("`[a](code.md)`", []),
        ("```\n[a](code.md)\n```\n", []),
    ],
)
def test_broken_links_are_recognized(tmp_path, monkeypatch, text, broken):
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    (tmp_path / "other.md").write_text("# Other\n\n## Two `words`!\n")
    (tmp_path / "page.md").write_text(text)
    assert broken_links(tmp_path / "page.md") == broken


@pytest.mark.parametrize(
    ("command", "exists"),
    [
        ("inferswarm doctor", True),
        ("inferswarm --version", True),
        ('inferswarm run -n a:threads=1,memory=1GB --max-tokens 8 "a --b"', True),
        ("inferswarm conduct", False),
        ("inferswarm plan --explane", False),
        ("inferswarm model inspect x --json", True),
        ("inferswarm model inspect", True),
        ("inferswarm model admire x", False),
        ("inferswarm model inspect x --explain", False),
        ("inferswarm discover --model x", False),
        ("make", True),
        ("make demo", True),
        ("make PYTHON=python3.12 test", True),
        ("make chaos-monkey", False),
    ],
)
def test_commands_that_do_not_exist_are_recognized(command, exists):
    assert (refusal_of(command) is None) is exists


def test_commands_are_found_in_spans_and_blocks():
    block = "```\n$ inferswarm plan -m x  # why\nimport inferswarm\ninferswarm/\n  make nothing\nmake\n```\n"
    page = read_page(f"Run `make\ntest` or `inferswarm` now.\n\n{block}")
    assert commands(page) == ["make test", "inferswarm", "inferswarm plan -m x", "make"]


def test_targets_are_read_without_variables():
    assert makefile_targets("A := 1\nB ?= x\ntest check: x  ## y\n\tdo: it\n.PHONY: z\n") == {"test", "check"}
