"""Entry point of a Coordinator: `python -m inferswarm.fabric.coordinator_main`. A process boundary.

Reads its specification as JSON from standard input and writes one line of JSON to standard output when it serves.
Ends when the lifeline's other end closes.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys

import msgspec

from inferswarm.errors import InferSwarmError
from inferswarm.fabric.coordinator import Coordinator, CoordinatorSpec
from inferswarm.fabric.faults import to_fault


class Ready(msgspec.Struct, frozen=True):
    """What a Coordinator says when it serves."""

    endpoint: str
    term: int


async def _serve(spec: CoordinatorSpec, lifeline: int) -> None:
    coordinator = Coordinator(spec)
    loop = asyncio.get_running_loop()
    loop.add_reader(lifeline, coordinator.stop)
    loop.add_signal_handler(signal.SIGTERM, coordinator.stop)
    sys.stdout.write(msgspec.json.encode(Ready(coordinator.endpoint, coordinator.term)).decode() + "\n")
    sys.stdout.flush()
    await coordinator.run()


def main() -> int:
    """Run the Coordinator. Returns the exit status; a fault of ours is the last line of standard error."""
    parser = argparse.ArgumentParser(prog="inferswarm-coordinator")
    parser.add_argument("--lifeline-fd", type=int, required=True)
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the process that the user sees
    try:
        spec = msgspec.json.decode(sys.stdin.buffer.read(), type=CoordinatorSpec)
        asyncio.run(_serve(spec, arguments.lifeline_fd))
    except InferSwarmError as error:
        sys.stderr.write(msgspec.json.encode(to_fault(error)).decode() + "\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
