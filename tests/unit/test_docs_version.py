"""The version is the same wherever it stands, and the changelog keeps its form."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import inferswarm

ROOT = Path(__file__).resolve().parents[2]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
RELEASE = re.compile(r"^## \[([^\]]+)\] - (\S+)$", re.MULTILINE)
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def versions(changelog: str) -> list[str]:
    """Return the versions of a changelog, newest first; an [Unreleased] section without a version is left out."""
    return [version for version, _ in RELEASE.findall(changelog)]


def project_version() -> str:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


def test_package_and_project_have_one_version():
    assert inferswarm.__version__ == project_version()


def test_the_newest_entry_of_the_changelog_is_this_version():
    assert versions(CHANGELOG)[0] == project_version()


def test_versions_fall_and_are_dated_or_unreleased():
    numbers = [tuple(map(int, version.split("."))) for version in versions(CHANGELOG)]
    assert numbers == sorted(set(numbers), reverse=True)
    dates = [date for _, date in RELEASE.findall(CHANGELOG)]
    assert all(re.fullmatch(r"\d{4}-\d{2}-\d{2}", date) for date in dates[1:])
    assert dates[0] == "Unreleased" or re.fullmatch(r"\d{4}-\d{2}-\d{2}", dates[0])


def test_changes_are_sorted_into_the_known_kinds():
    assert set(re.findall(r"^### (.+)$", CHANGELOG, re.MULTILINE)) <= KINDS


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("## [0.2.0] - 2027-01-01\n## [0.1.0] - 2026-12-01\n", ["0.2.0", "0.1.0"]),
        ("## [Unreleased]\n\n## [0.1.0] - Unreleased\n", ["0.1.0"]),
        ("## 0.1.0\n", []),
    ],
)
def test_versions_are_read_from_their_headings(text, found):
    assert versions(text) == found
