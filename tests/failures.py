"""Reads from pytest's records in JUnit's form which tests failed, and why, in few lines."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_MOST_LINES = 4
_WIDTH = 200


class Failure(NamedTuple):
    """A test by the name that pytest takes, and what it said; without a name, a whole run that ended badly."""

    test: str
    said: str


def failures_of(record: Path, status: int) -> tuple[Failure, ...]:
    """Return what failed in one run of pytest: its record, and the status that it ended with.

    A run that ended badly and names no test that failed, or did not come to its end, is a failure of its own beside
    those of the tests.
    """
    if not record.is_file():
        return (Failure("", f"pytest ended with {status} and left no record {record}"),)
    try:
        cases = list(ElementTree.parse(record).iter("testcase"))
    except ElementTree.ParseError as error:
        return (Failure("", f"pytest ended with {status} and left a record that cannot be read: {error}"),)
    failed = tuple(
        Failure(_name(case), f"{fault.get('message', '')}\n{''.join(_written(fault.text or '')[-1:])}")
        for case in cases
        for fault in case
        if fault.tag in ("failure", "error")
    )
    if status not in (0, 1) or (status == 1 and not failed):
        named = f"{len(failed)} of the {len(cases)} tests that it recorded failed"
        return (*failed, Failure("", f"pytest ended with {status}; {named}"))
    return failed


def lines_of(failure: Failure) -> Sequence[str]:
    """Return the first lines of what a test said, and the last one, which names the place; none is long."""
    lines = [line[:_WIDTH] for line in _written(failure.said)]
    return lines if len(lines) <= _MOST_LINES + 1 else [*lines[:_MOST_LINES], lines[-1]]


def _name(case: ElementTree.Element) -> str:
    module, _, group = case.get("classname", "").partition(".Test")
    if not module:  # the file could not be collected
        return f"{case.get('name', '').replace('.', '/')}.py"
    file = f"{module.replace('.', '/')}.py"
    return "::".join(part for part in (file, f"Test{group}" if group else "", case.get("name", "")) if part)


def _written(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]
