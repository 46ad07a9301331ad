"""Entry point of a stage process: `python -m inferswarm.fabric.stage_main`. A process boundary.

Everything that goes wrong here and is not one of our own errors ends the process with a message on its standard
error, which the agent keeps; running out of memory under a limit that allocations can fail under has an exit status
of its own.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import socket
import sys

from inferswarm.fabric import messages as m
from inferswarm.fabric.channel import Channel
from inferswarm.fabric.lifeline import die_with_parent, prefer_as_victim
from inferswarm.resources.cpu_limits import allowed_cpus

EXIT_OUT_OF_MEMORY = 77
"""Exit status of a stage whose allocation failed."""
BIND_VARIABLE = "OMP_PROC_BIND"
"""Whether threads of OpenMP stay where they are first put, one on each CPU. With as many threads as CPUs two of them
on one CPU, for as long as the system takes to notice, make all others wait."""


def main() -> int:
    """Run a stage until it is told to stop. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="inferswarm-stage")
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--node", required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--also-at", action="append", default=[])
    parser.add_argument("--cpu", action="append", type=int, default=[])
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--journal-memory", type=int, required=True)
    parser.add_argument("--journal-spill", type=int, required=True)
    parser.add_argument("--journal-directory")
    parser.add_argument("--silent-seconds", type=float, required=True)
    arguments = parser.parse_args()
    if arguments.cpu:
        try:
            os.sched_setaffinity(0, arguments.cpu)  # before any library starts threads: they inherit it
        except OSError as error:
            sys.stderr.write(f"it cannot be bound to the CPUs {arguments.cpu}: {error.strerror}\n")
            return 1
    if arguments.threads == len(allowed_cpus()):
        os.environ.setdefault(BIND_VARIABLE, "true")  # what the operator says about it stands
    die_with_parent(arguments.parent)
    prefer_as_victim()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the process that the user sees
    control = socket.socket(fileno=arguments.control_fd)

    from inferswarm.fabric.stage import Stage
    from inferswarm.fabric.stage_journal import JournalSettings

    gc.freeze()
    stage = Stage(
        Channel(control, m.StageCall),
        node_id=arguments.node,
        address=arguments.address,
        more=arguments.also_at,
        journal_settings=JournalSettings(
            arguments.journal_memory, arguments.journal_spill, arguments.journal_directory
        ),
        silent_seconds=arguments.silent_seconds,
    )
    try:
        stage.run()
    except MemoryError as error:
        sys.stderr.write(f"out of memory: {error}\n")
        return EXIT_OUT_OF_MEMORY
    except RuntimeError as error:
        if "allocate memory" in str(error) or "bad_alloc" in str(error):
            sys.stderr.write(f"out of memory: {error}\n")
            return EXIT_OUT_OF_MEMORY
        raise
    stage.close()
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # skip interpreter teardown: thread pools of compiled libraries may still hold work
