"""Entry point of a node agent: `python -m inferswarm.fabric.agent_main`. A process boundary.

Reads its specification as JSON from standard input (it holds the swarm's token, which belongs on no command line),
enters the memory envelope before anything large is imported, and ends when the lifeline's other end closes.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys

import msgspec

from inferswarm.errors import InferSwarmError
from inferswarm.fabric.envelope import EnvelopeSpec, NodeEnvelope, enter
from inferswarm.fabric.faults import to_fault


async def _serve(spec_bytes: bytes, envelope: NodeEnvelope, lifeline: int) -> None:
    from inferswarm.fabric.agent import Agent, AgentSpec

    agent = Agent(msgspec.json.decode(spec_bytes, type=AgentSpec), envelope)
    loop = asyncio.get_running_loop()
    loop.add_reader(lifeline, agent.stop)
    loop.add_signal_handler(signal.SIGTERM, agent.stop)
    await agent.run()


class _Limits(msgspec.Struct):
    """The part of the specification that is needed before the rest is imported."""

    group: str
    limit_bytes: int | None
    mechanism: str


def main() -> int:
    """Run the agent. Returns the exit status; a fault of ours is the last line of standard error."""
    parser = argparse.ArgumentParser(prog="inferswarm-agent")
    parser.add_argument("--lifeline-fd", type=int, required=True)
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the process that the user sees
    spec_bytes = sys.stdin.buffer.read()
    limits = msgspec.json.decode(spec_bytes, type=_Limits)
    try:
        envelope = enter(EnvelopeSpec(limits.group, limits.limit_bytes, limits.mechanism))
        asyncio.run(_serve(spec_bytes, envelope, arguments.lifeline_fd))
    except InferSwarmError as error:
        sys.stderr.write(msgspec.json.encode(to_fault(error)).decode() + "\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
