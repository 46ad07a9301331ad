"""Entry point of a courier process: `python -m inferswarm.fabric.courier_main`. A process boundary.

What it is set up with holds the swarm's token and comes over the channel, never as an argument. What goes wrong
before it greets ends it with the fault as the last line of its standard error, which the agent reads.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from typing import Final

import msgspec

from inferswarm.errors import EngineError, InferSwarmError
from inferswarm.fabric import messages as m
from inferswarm.fabric.channel import Channel
from inferswarm.fabric.faults import to_fault
from inferswarm.fabric.lifeline import die_with_parent

YIELDING: Final = 10
"""How much lower than its agent's a courier's priority is: where it and a stage want one CPU, the scheduler of Linux
gives the stage about nine tenths (weights of 1024 and 110), so that tokens keep their time."""


def main() -> int:
    """Run a courier until its agent has gone. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="inferswarm-courier")
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    arguments = parser.parse_args()
    die_with_parent(arguments.parent)
    os.nice(YIELDING)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the process that the user sees
    control = socket.socket(fileno=arguments.control_fd)
    set_up = Channel(control, m.CourierSetUp).receive()
    if set_up is None:
        return 0
    try:
        from inferswarm.fabric.courier import Courier

        courier = Courier(Channel(control, m.CourierCall), set_up)
    except InferSwarmError as error:
        return _end(error)
    except OSError as error:
        return _end(EngineError("courier", f"cannot listen at {set_up.address}:{set_up.port}: {error}"))
    courier.run()
    return 0


def _end(error: InferSwarmError) -> int:
    sys.stderr.write(msgspec.json.encode(to_fault(error)).decode() + "\n")
    return 1


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # threads that wait for a source are not waited for
