"""Findings in few words: each says the law, the place, what was needed and what was there."""

from __future__ import annotations

from collections.abc import Iterable

from inferswarm.campaigns.laws import LAWS, Finding, State


def proven(law: str, path: str, expected: str, found: str | None = None) -> Finding:
    """Return that a law holds; what was found is what was expected, unless it is said."""
    return _finding(law, State.PROVEN, path, expected, expected if found is None else found)


def broken(law: str, path: str, expected: str, found: str) -> Finding:
    """Return that a law does not hold."""
    return _finding(law, State.BROKEN, path, expected, found)


def unproven(law: str, path: str, expected: str, found: str) -> Finding:
    """Return that it is not known whether a law holds; `found` is why."""
    return _finding(law, State.UNPROVEN, path, expected, found)


def compared(law: str, path: str, expected: object, found: object) -> Finding:
    """Return that two things are the same, or which they are."""
    if expected == found:
        return proven(law, path, _shown(expected))
    return broken(law, path, _shown(expected), _shown(found))


def legible(text: str) -> str:
    """Return a text that can be written: bytes of file names that are no text, and half characters, are escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


def _shown(value: object) -> str:
    """Return a value for people: lists and tuples as their items, nothing as a word."""
    if isinstance(value, (tuple, list)):
        return ", ".join(map(_shown, value)) or "nothing"
    return "nothing" if value is None else str(value)


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings in the order of the laws, those of one law in the order in which they were given."""
    place = {law: index for index, law in enumerate(LAWS)}
    return tuple(sorted(findings, key=lambda finding: place[finding.law]))


def state_of(findings: Iterable[Finding], laws: Iterable[str]) -> State:
    """Return what is known of several laws together.

    BROKEN when any finding of one of them is; PROVEN when each has a finding and all are proven; else UNPROVEN.
    """
    wanted = set(laws)
    states: dict[str, set[State]] = {law: set() for law in wanted}
    for finding in findings:
        if finding.law in wanted:
            states[finding.law].add(finding.state)
    if any(State.BROKEN in found for found in states.values()):
        return State.BROKEN
    if all(found == {State.PROVEN} for found in states.values()):
        return State.PROVEN
    return State.UNPROVEN


def _finding(law: str, state: State, path: str, expected: str, found: str) -> Finding:
    assert law in LAWS
    return Finding(law=law, state=state, path=legible(path), expected=legible(expected), found=legible(found))
