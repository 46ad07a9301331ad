"""What several commands share: their options, and what is read from them before anything is started."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from inferswarm.artifacts.sources import SOURCE_POLICIES, SourcePolicy, check_source_policy
from inferswarm.errors import SpecError
from inferswarm.resources import Envelope
from inferswarm.units import parse_rate

if TYPE_CHECKING:
    from inferswarm.planner import Workload
    from inferswarm.swarm import Model

ModelOption = Annotated[
    str, typer.Option("--model", "-m", help="A known model (smollm2-135m), a GGUF file, a directory or an hf:// id.")
]
BackendOption = Annotated[
    str | None,
    typer.Option("--backend", help="Who computes the blocks: torch or transformers (default: the first that can)."),
]
NodeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--node", "-n", help="A virtual Node, NAME:threads=N,memory=SIZE (N+M: two CPUs). Repeat for several."
    ),
]
StateOption = Annotated[
    Path | None,
    typer.Option("--state", help="Where observations are kept (default: XDG_STATE_HOME or ~/.local/state)."),
]
MechanismOption = Annotated[
    str, typer.Option("--mechanism", help="What holds virtual Nodes to their memory: auto, cgroup-v1, rlimit-data …")
]
RayOption = Annotated[
    str | None, typer.Option("--ray", help="Start the agents on this Ray cluster, HOST:PORT, instead of here.")
]
StoresOption = Annotated[
    bool,
    typer.Option("--stores", help="Nodes keep verified model bytes and acquire just what they need, also by HTTP."),
]
TransferLimitOption = Annotated[
    str | None,
    typer.Option("--transfer-limit", help="With --stores: what each Node receives, and gives, at most: 20MB/s."),
]
SourcePolicyOption = Annotated[
    str,
    typer.Option("--source-policy", help=f"With --stores, whose bytes count: {', '.join(SOURCE_POLICIES)}"),
]
KeepResultsOption = Annotated[
    bool, typer.Option("--keep-results", help="With --stores: stages keep what they decode, and read it later.")
]
ManifestOption = Annotated[
    Path | None, typer.Option("--manifest", help="The model's published manifest, for the digests of its bytes.")
]
PromptTokens = Annotated[int, typer.Option("--prompt-tokens", help="Prompt length to plan for.")]
OutputTokens = Annotated[int, typer.Option("--output-tokens", help="Answer length to plan for.")]
Representation = Annotated[
    str | None, typer.Option("--representation", "-r", help="Allow only this one (fp32 or bf16).")
]


def progress_printer(to_stderr: bool = False) -> Callable[[str, float], None]:
    """Return a callback that writes one plain line for each new thing that is measured."""
    from inferswarm.swarm.measuring import each_once

    return each_once(lambda line: typer.echo(line, file=sys.stderr if to_stderr else sys.stdout))


def read_envelopes(nodes: list[str] | None) -> tuple[Envelope, ...]:
    """Return the declared virtual Nodes. Raises SpecError for a text that declares none."""
    return tuple(Envelope.parse(text) for text in nodes or ())


class StoreArguments(TypedDict):
    """What `Swarm.local` is told of stores, as keyword arguments."""

    stores: bool
    transfer_bytes_per_second: float | None
    source_policy: SourcePolicy
    keep_results: bool


def read_store_options(
    stores: bool, transfer_limit: str | None, source_policy: str, keep_results: bool
) -> StoreArguments:
    """Return what the options about stores say. Raises SpecError for a rate or a policy that is none."""
    return StoreArguments(
        stores=stores,
        transfer_bytes_per_second=read_limit(transfer_limit),
        source_policy=check_source_policy(source_policy),
        keep_results=keep_results,
    )


def read_limit(text: str | None) -> float | None:
    """Return the bytes per second of `--transfer-limit`. Raises SpecError for a text that states no rate."""
    return None if text is None else parse_rate(text, "transfer-limit")


def refuse_early(model: Model, workload: Workload, representation: str | None) -> None:
    """Raise SpecError for what can be known to be impossible before anything is started."""
    legal = [item.representation for item in model.problem(workload).implementations]
    if representation is not None and representation not in legal:
        raise SpecError("representation", representation, f"one of {legal}")
