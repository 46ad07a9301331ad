"""What people see of an acquisition: a rate and a time once they are known, and few lines."""

from __future__ import annotations

import io

import pytest

from inferswarm.fabric import messages as m
from inferswarm.fabric.acquisition_rounds import ACQUIRED
from inferswarm.swarm.acquisition_progress import acquisition_lines, acquisition_shown_on

MB = 10**6


class Clock:
    """Seconds as a test says."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    """Says that it is one."""

    def isatty(self) -> bool:
        return True


def report(done: float, total: float = 100.0, note: str = ACQUIRED) -> m.Progressed:
    """So many megabytes."""
    return m.Progressed(request=0, done=int(done * MB), total=int(total * MB), note=note)


def test_a_line_has_the_share_at_once_and_rate_and_time_left_when_they_are_known() -> None:
    """Mutation: count what was there before the first report, or show a rate before there is one."""
    clock, lines = Clock(), []
    hear = acquisition_lines(lines.append, clock)
    hear(report(20))
    clock.now += 2
    hear(report(40))
    clock.now += 2
    hear(report(60))
    assert lines == [
        "20.0 MB of 100 MB in place (20%)",
        "40.0 MB of 100 MB in place (40%), 10.0 MB/s, about 6.00 s left",
        "60.0 MB of 100 MB in place (60%), 10.0 MB/s, about 4.00 s left",
    ]


def test_what_stands_still_has_no_time_left() -> None:
    """Mutation: divide by the rate of long ago."""
    clock, lines = Clock(), []
    hear = acquisition_lines(lines.append, clock)
    for done in (10, 30, 20, 40):  # an attempt of 10 MB failed; 20 came anew
        hear(report(done))
        clock.now += 10
    hear(report(20, 200))  # another acquisition
    assert lines[1] == "30.0 MB of 100 MB in place (30%), 4.00 MB/s, about 17.5 s left"
    assert lines[2] == "40.0 MB of 100 MB in place (40%), 4.00 MB/s, about 15.0 s left"
    clock, terminal = Clock(), Terminal()
    hear = acquisition_shown_on(terminal, clock)
    hear(report(10))
    clock.now += 10
    hear(report(10))
    assert terminal.getvalue().endswith("10.0 MB of 100 MB in place (10%), 0 B/s")


def test_a_thousand_reports_are_few_lines_and_the_last_one_stands_once() -> None:
    """Mutation: a line per report, or one for everything in place each time that somebody says so."""
    clock, lines = Clock(), []
    hear = acquisition_lines(lines.append, clock)
    for done in range(1000):  # within a tenth of a second
        hear(report(done, 1000))
        clock.now += 1e-4
    assert len(lines) == 1
    for done in range(1000):
        hear(report(done, 1000))
        clock.now += 0.1
    hear(report(1000, 1000))
    hear(report(1000, 1000))
    assert len(lines) <= 11
    assert lines[-1] == "1.00 GB of 1.00 GB in place (100%)"


def test_a_terminal_has_one_line_that_is_drawn_again() -> None:
    clock, terminal = Clock(), Terminal()
    hear = acquisition_shown_on(terminal, clock)
    for done in range(0, 101, 2):
        hear(report(done))
        clock.now += 0.05
    text = terminal.getvalue()
    assert text.count("\n") == 1
    assert text.endswith("\r\033[K100 MB of 100 MB in place (100%)\n")
    assert text.count("\r") <= 14


@pytest.mark.parametrize("event", [report(5, note="tensors"), report(0, 0)])
def test_what_is_not_about_acquired_bytes_is_not_shown(event: m.Progressed) -> None:
    text = io.StringIO()
    acquisition_shown_on(text, Clock())(event)
    assert text.getvalue() == ""
