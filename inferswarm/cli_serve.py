"""`inferswarm serve`: plan and realize one model, then answer over HTTP until interrupted."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from inferswarm.artifacts.sources import USUAL_POLICY
from inferswarm.cli_options import (
    BackendOption,
    KeepResultsOption,
    ManifestOption,
    MechanismOption,
    ModelOption,
    NodeOption,
    OutputTokens,
    PromptTokens,
    Representation,
    SourcePolicyOption,
    StateOption,
    StoresOption,
    TransferLimitOption,
    progress_printer,
    read_envelopes,
    read_store_options,
    refuse_early,
)
from inferswarm.errors import SpecError

if TYPE_CHECKING:
    from inferswarm.fabric.text_side import TextSide
    from inferswarm.serving.service import Serving
    from inferswarm.swarm import Service


def serve(
    model: ModelOption = "smollm2-135m",
    backend: BackendOption = None,
    node: NodeOption = None,
    listen: Annotated[str, typer.Option("--listen", help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="The endpoint's port (0: a free one, printed).")] = 8000,
    concurrency: Annotated[int, typer.Option("--concurrency", help="Answers at once to plan memory for.")] = 4,
    prompt_tokens: PromptTokens = 1024,
    output_tokens: OutputTokens = 512,
    queue: Annotated[int, typer.Option("--queue", help="Requests that may wait while all sessions are taken.")] = 16,
    queue_seconds: Annotated[float, typer.Option("--queue-seconds", help="How long each of them may wait.")] = 30.0,
    patience: Annotated[
        float, typer.Option("--patience", help="Seconds after which a client that does not read is given up.")
    ] = 30.0,
    representation: Representation = None,
    state: StateOption = None,
    mechanism: MechanismOption = "auto",
    stores: StoresOption = False,
    transfer_limit: TransferLimitOption = None,
    source_policy: SourcePolicyOption = USUAL_POLICY,
    keep_results: KeepResultsOption = False,
    manifest: ManifestOption = None,
) -> None:
    """Answer over HTTP as OpenAI's API does. Ctrl-C ends everything; progress goes to standard error."""
    from inferswarm.fabric.text_side import TextSide
    from inferswarm.planner import Policy, Workload
    from inferswarm.serving.server import Endpoint, bind, is_loopback, url_of
    from inferswarm.swarm import Model, Swarm
    from inferswarm.swarm.acquisition_progress import acquisition_shown_on
    from inferswarm.swarm.model_artifacts import refuse_without_stores

    for option, value in (("queue", queue), ("queue-seconds", queue_seconds), ("patience", patience)):
        if not value >= (1 if option == "patience" else 0):
            raise SpecError(option, value, "at least 1 second" if option == "patience" else "0 or more")
    open_to_others = not is_loopback(listen)
    kept = read_store_options(stores, transfer_limit, source_policy, keep_results)
    opened = Model(model, backend, manifest=manifest)
    refuse_without_stores(opened, stores)
    workload = Workload(prompt_tokens=prompt_tokens, output_tokens=output_tokens, concurrency=concurrency)
    policy = Policy(representations=(representation,) if representation else ())
    refuse_early(opened, workload, representation)
    text = TextSide(str(opened.path))
    with (
        contextlib.closing(bind(listen, port)) as listener,
        Swarm.local(read_envelopes(node), state=state, mechanism=mechanism, **kept) as swarm,
    ):
        decision = swarm.plan(opened, workload, policy, on_progress=progress_printer(to_stderr=True))
        chosen = decision.plan
        nodes = " → ".join(placement.node_name for placement in chosen.placements)
        room = f"{chosen.sessions} sessions of {chosen.max_positions:,} tokens"
        sys.stderr.write(f"{opened.name} in {chosen.representation} on {nodes}, {room}\n")
        if open_to_others:
            sys.stderr.write(
                f"{listen} is not loopback: whoever reaches it can use the model; there are no keys yet\n"
            )
        with swarm.realize(chosen, opened, on_progress=acquisition_shown_on(sys.stderr)) as service:
            scope = swarm.status().scope

            def open_serving() -> Serving:
                return _serving(service, opened.name, scope, text, queue, queue_seconds, patience)

            def on_ready() -> None:
                typer.echo(
                    f"serving {opened.name} at {url_of(listener)}/v1 · try: {_example(url_of(listener), opened.name)}"
                )

            Endpoint(listener, open_serving).run(on_ready)


def _serving(
    service: Service, name: str, scope: str, text: TextSide, queue: int, queue_seconds: float, patience: float
) -> Serving:
    from inferswarm.serving.service import Serving, ServingSettings

    settings = ServingSettings(
        model=name,
        max_positions=service.plan.max_positions,
        num_sessions=service.plan.sessions,
        queue_length=queue,
        queue_seconds=queue_seconds,
        patience_seconds=patience,
    )
    return Serving(service.connect(), settings, scope, text)


def _example(url: str, name: str) -> str:
    """Return a command that asks the endpoint something."""
    body = json.dumps({"model": name, "messages": [{"role": "user", "content": "Name three rivers in Europe."}]})
    return f"curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d {shlex.quote(body)}"
