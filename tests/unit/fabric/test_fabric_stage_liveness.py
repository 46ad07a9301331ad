"""When a stage that says nothing is lost: by silence, sooner when it is stopped, never by its watcher's pauses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from inferswarm.fabric.proc import is_stopped
from inferswarm.fabric.stage_liveness import LivenessSettings, Silence
from tests.unit.fabric.processes import wait_until

SETTINGS = LivenessSettings(silent_seconds=10.0, stopped_seconds=0.75)
LOOK = 0.05


def begun() -> Silence:
    """Return the silence of a stage that has greeted."""
    silence = Silence(SETTINGS)
    silence.heard()
    return silence


def seconds_until_lost(silence: Silence, *, is_stopped: bool, longest: float = 100.0) -> float:
    passed = 0.0
    while passed < longest:
        passed += LOOK
        if silence.passed(LOOK, is_stopped=is_stopped) is not None:
            return passed
    return passed


@pytest.mark.parametrize(("stopped", "seconds"), [(False, 10.0), (True, 0.75)])
def test_it_is_lost_after_so_many_seconds_of_silence(stopped: bool, seconds: float) -> None:
    assert seconds_until_lost(begun(), is_stopped=stopped) == pytest.approx(seconds, abs=2 * LOOK)


def test_signs_of_life_keep_it_alive_however_long_it_computes() -> None:
    silence = begun()
    for _ in range(120):  # a minute of computing, a beat every half second
        assert seconds_until_lost(silence, is_stopped=False, longest=0.5) >= 0.5
        silence.heard()


def test_one_that_has_not_greeted_may_load_for_long_and_is_lost_when_it_is_stopped() -> None:
    """Mutation: begin to look when it has greeted; an order to start it then waits for a minute."""
    silence = Silence(SETTINGS)
    assert seconds_until_lost(silence, is_stopped=False) >= 100.0
    assert seconds_until_lost(silence, is_stopped=True) == pytest.approx(0.75, abs=2 * LOOK)


def test_a_pause_of_the_watcher_is_nobodys_silence() -> None:
    silence = begun()
    assert silence.passed(3600.0, is_stopped=False) is None
    assert silence.passed(3600.0, is_stopped=True) is None


def test_the_kernel_says_which_process_is_stopped() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        assert not is_stopped(process.pid)
        os.kill(process.pid, signal.SIGSTOP)
        assert wait_until(lambda: is_stopped(process.pid), 2.0)
        os.kill(process.pid, signal.SIGCONT)
        assert wait_until(lambda: not is_stopped(process.pid), 2.0)
    finally:
        process.kill()
        process.wait()
    assert not is_stopped(process.pid)
