"""A child notices the end of its parent however that one ended. Real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.unit.fabric.processes import all_gone, identify

CHILD = """
import os, sys, time
from inferswarm.fabric.lifeline import die_with_parent
die_with_parent(int(sys.argv[1]))
sys.stdout.write(f"{os.getpid()}\\n"); sys.stdout.flush()
time.sleep(60)
"""
PARENT = f"""
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}, str(os.getpid())], stdout=subprocess.PIPE, text=True)
sys.stdout.write(child.stdout.readline()); sys.stdout.flush()
sys.stdin.read()
"""
ORPHAN = """
import sys
from inferswarm.errors import EngineError
from inferswarm.fabric.lifeline import die_with_parent
try:
    die_with_parent(1)
except EngineError as error:
    sys.stdout.write(f"{error.process}: {error.reason}")
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_dies_with_its_parent(how: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    child = identify(int(parent.stdout.readline()))
    assert child.runs()
    os.kill(parent.pid, how)
    parent.wait()
    assert all_gone([child], 5.0)
    parent.stdin.close()
    parent.stdout.close()


def test_a_child_whose_parent_has_gone_already_is_told() -> None:
    ended = subprocess.run([sys.executable, "-c", ORPHAN], capture_output=True, text=True, timeout=30, check=True)
    assert ended.stdout == "lifeline: the parent 1 has gone"


def test_a_process_can_offer_itself_to_the_out_of_memory_killer() -> None:
    program = (
        "import sys\nfrom inferswarm.fabric.lifeline import prefer_as_victim\n"
        "prefer_as_victim()\nsys.stdout.write(open('/proc/self/oom_score_adj').read())"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert int(ended.stdout) == 600
