"""The command line: discover, measure, plan, run, serve, events, transfers, model, health, store, demo, doctor.

A process boundary. Exit status: 0 done, 1 an error of ours (its text goes to standard error), 2 wrong usage, 3 no
plan. That of `demo` is 0 only when everything it shows held.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inferswarm import __version__
from inferswarm.artifacts.sources import USUAL_POLICY
from inferswarm.cli_campaign import campaign_app
from inferswarm.cli_events import events
from inferswarm.cli_health import health_app
from inferswarm.cli_model import publish
from inferswarm.cli_options import (
    BackendOption,
    KeepResultsOption,
    ManifestOption,
    MechanismOption,
    ModelOption,
    NodeOption,
    OutputTokens,
    PromptTokens,
    RayOption,
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
from inferswarm.cli_plan import (
    BitExactOption,
    ConcurrencyOption,
    ExcludeOption,
    ExcludeUnitOption,
    MaxInterTokenOption,
    MaxMachinesOption,
    MaxParticipantsOption,
    MaxRequestOption,
    MaxTtftOption,
    MinRateOption,
    MixOption,
    NoLinksOption,
    ObjectiveOption,
    RequestWeightOption,
    ReserveOption,
    read_policy,
    read_workload,
)
from inferswarm.cli_serve import serve
from inferswarm.cli_store import store_app
from inferswarm.cli_transfers import transfers
from inferswarm.cli_verify import verify
from inferswarm.errors import InfeasiblePlan, InferSwarmError, SpecError

if TYPE_CHECKING:
    from inferswarm.planner import Decision
    from inferswarm.swarm import Model
    from inferswarm.swarm.displays import DecisionView

EXIT_ERROR = 1
EXIT_INFEASIBLE = 3

app = typer.Typer(
    name="inferswarm",
    help="Many machines, one model: plan, run and prove one language model over unlike hardware.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

PortOption = Annotated[int, typer.Option("--port", help="The Coordinator's port (0: a free one).")]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its status."""
    try:
        app(args=list(sys.argv[1:] if arguments is None else arguments), standalone_mode=True)
    except InfeasiblePlan as error:
        sys.exit(_complain(error, EXIT_INFEASIBLE))
    except InferSwarmError as error:
        sys.exit(_complain(error, EXIT_ERROR))
    except ModuleNotFoundError as error:
        missing = f"{error.name} is not installed: this command needs an extra, e.g. pip install 'inferswarm[run]'"
        sys.exit(_complain(missing, EXIT_ERROR))
    except BrokenPipeError:
        sys.exit(EXIT_ERROR)


def _complain(error: object, status: int) -> int:
    kind = f"{type(error).__name__}: " if isinstance(error, Exception) else ""
    sys.stderr.write(f"inferswarm: {kind}{error}\n")
    return status


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"inferswarm {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Many machines, one model."""


@app.command()
def discover(
    as_json: Annotated[bool, typer.Option("--json", help="Print the inventory document.")] = False,
    state: StateOption = None,
) -> None:
    """List what this machine has: each fact, or the reason why it is unknown."""
    from inferswarm.documents import write_document
    from inferswarm.resources.discovery import discover as discover_host
    from inferswarm.resources.virtual import graph_of_host
    from inferswarm.swarm.state import default_state_directory, prepare_state_directory
    from inferswarm.views.listings import inventory_text
    from inferswarm.views.text import graph_text

    directory = prepare_state_directory(state or default_state_directory())
    inventory = discover_host("local", directory, disk_paths=(directory,))
    if as_json:
        print(write_document(inventory), end="")
        return
    print(inventory_text(inventory))
    print()
    print(graph_text(graph_of_host(inventory, "local")))


@app.command()
def measure(
    model: ModelOption = "smollm2-135m",
    backend: BackendOption = None,
    node: NodeOption = None,
    state: StateOption = None,
    mechanism: MechanismOption = "auto",
    refresh: Annotated[bool, typer.Option("--refresh", help="Measure again what is known already.")] = False,
) -> None:
    """Measure Nodes, paths and a model's cost classes; what still applies is not measured again."""
    from inferswarm.swarm import Model, Swarm

    with Swarm.local(read_envelopes(node), state=state, mechanism=mechanism) as swarm:
        swarm.measure(Model(model, backend), refresh=refresh, on_progress=progress_printer())
        print(swarm.graph)
        print(f"{len(swarm.store)} observations in {swarm.store.directory}")


@app.command()
def plan(
    model: ModelOption = "smollm2-135m",
    backend: BackendOption = None,
    node: NodeOption = None,
    prompt_tokens: PromptTokens = 256,
    output_tokens: OutputTokens = 128,
    representation: Representation = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say why this plan, and why no other.")] = False,
    picture: Annotated[Path | None, typer.Option("--picture", help="Write FILE.svg and FILE.png.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the decision document.")] = False,
    state: StateOption = None,
    mechanism: MechanismOption = "auto",
    topology: Annotated[
        Path | None,
        typer.Option("--topology", help="Plan for the Nodes that this TOML file declares, not for these."),
    ] = None,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="With --topology: price plans by its declared figures.")
    ] = False,
    what_if: Annotated[
        bool, typer.Option("--what-if", help="Explain also what would change the decision; takes some seconds more.")
    ] = False,
    objective: ObjectiveOption = "request",
    request_weight: RequestWeightOption = None,
    concurrency: ConcurrencyOption = 1,
    max_inter_token: MaxInterTokenOption = None,
    max_ttft: MaxTtftOption = None,
    max_request: MaxRequestOption = None,
    min_rate: MinRateOption = None,
    exclude: ExcludeOption = None,
    exclude_unit: ExcludeUnitOption = None,
    reserve: ReserveOption = None,
    no_links: NoLinksOption = None,
    max_machines: MaxMachinesOption = None,
    max_participants: MaxParticipantsOption = None,
    require_bit_exact: BitExactOption = False,
    mix_representations: MixOption = False,
) -> None:
    """Decide how to run a model; measures first what is not known yet. Exit status 3: no plan was selected.

    With --topology nothing is started and nothing measured. Declared figures are no evidence, so a plan is selected
    only with --estimate, and called an estimate wherever it is shown.
    """
    from inferswarm.documents import write_document
    from inferswarm.planner.gates import resolve_policy
    from inferswarm.planner.sites import GraphView
    from inferswarm.swarm import Model, Swarm
    from inferswarm.views.text import plan_text

    _refuse_contradictions(topology, estimate, node, mechanism, state)
    if as_json and what_if:
        raise SpecError("what-if", "--what-if with --json", "one of them: the decision document holds no what-if")
    workload = read_workload(prompt_tokens, output_tokens, objective, request_weight, concurrency, max_inter_token)
    policy = read_policy(
        representation,
        exclude=exclude,
        exclude_unit=exclude_unit,
        reserve=reserve,
        no_links=no_links,
        max_ttft=max_ttft,
        max_request=max_request,
        min_rate=min_rate,
        max_machines=max_machines,
        max_participants=max_participants,
        bit_exact=require_bit_exact,
        mix=mix_representations,
    )
    simulated = None if topology is None else Swarm.simulated(topology)
    opened = Model(model, backend)
    refuse_early(opened, workload, representation)
    if picture is not None:
        _refuse_unwritable(picture)
    decision: DecisionView
    if simulated is not None:
        decision = simulated.plan(opened, workload, policy, estimate=estimate)
    else:
        with Swarm.local(read_envelopes(node), state=state, mechanism=mechanism) as swarm:
            # Unknown names are refused before anything is measured.
            resolve_policy(policy, opened.problem(workload), GraphView(swarm.graph.document))
            decision = swarm.plan(opened, workload, policy, on_progress=progress_printer(to_stderr=as_json))
    if as_json:
        print(write_document(decision.document), end="")
    elif explain or what_if or decision.document.plan is None:
        print(decision.explain(what_if=what_if))
    else:
        if simulated is not None:
            print(f"Estimate from declared figures. Nothing here was measured. {_proved(decision.document)}\n")
        print(plan_text(decision.plan))
    unpriced = decision.document.outcome == "NO_AUTOMATIC_SELECTION_INSUFFICIENT_EVIDENCE"
    if simulated is not None and unpriced and not estimate and not as_json:
        print(
            "Nothing is selected because nothing was measured; --estimate prices these plans by the declared figures."
        )
    if picture is not None:
        decision.draw(picture.with_suffix(".svg"), picture.with_suffix(".png"))
        written = f"picture: {picture.with_suffix('.svg')} and {picture.with_suffix('.png')}"
        print(written, file=sys.stderr if as_json else sys.stdout)
    if decision.document.plan is None:
        raise typer.Exit(EXIT_INFEASIBLE)


@app.command()
def run(
    prompt: Annotated[str, typer.Argument(help="What to ask.")],
    model: ModelOption = "smollm2-135m",
    backend: BackendOption = None,
    node: NodeOption = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="Longest answer.")] = 64,
    raw: Annotated[
        bool, typer.Option("--raw", help="Complete the text as it is, without the chat template.")
    ] = False,
    representation: Representation = None,
    state: StateOption = None,
    mechanism: MechanismOption = "auto",
    port: PortOption = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record instead of streaming.")] = False,
    temperature: Annotated[float, typer.Option("--temperature", help="0: always the most likely token.")] = 0.0,
    top_k: Annotated[int, typer.Option("--top-k", help="Only the k most likely tokens; 0: all.")] = 0,
    top_p: Annotated[float, typer.Option("--top-p", help="Only the most likely that together reach p.")] = 1.0,
    min_p: Annotated[float, typer.Option("--min-p", help="Only tokens of this fraction of the best.")] = 0.0,
    repetition_penalty: Annotated[
        float, typer.Option("--repetition-penalty", help="Against tokens of prompt and answer; 1: off.")
    ] = 1.0,
    presence_penalty: Annotated[
        float, typer.Option("--presence-penalty", help="Against tokens of the answer, once each.")
    ] = 0.0,
    frequency_penalty: Annotated[
        float, typer.Option("--frequency-penalty", help="Against tokens of the answer, each time.")
    ] = 0.0,
    logit_bias: Annotated[
        list[str] | None, typer.Option("--logit-bias", help="ID=VALUE, added to a token's logit. Repeat for several.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="A u64. Chosen and recorded when none is given.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", help="A text that ends the answer. Repeat for several.")
    ] = None,
    logprobs: Annotated[
        int | None, typer.Option("--logprobs", help="Report so many log-probabilities with each token.")
    ] = None,
    stores: StoresOption = False,
    transfer_limit: TransferLimitOption = None,
    source_policy: SourcePolicyOption = USUAL_POLICY,
    keep_results: KeepResultsOption = False,
    manifest: ManifestOption = None,
) -> None:
    """Plan, realize and answer one prompt. The answer goes to standard output, everything else to standard error."""
    from inferswarm.fabric.text_side import TextSide
    from inferswarm.planner import Policy, Workload
    from inferswarm.strategies.sampling import SamplingArguments, check_stop_strings, choose_sampling
    from inferswarm.swarm import Model, Swarm
    from inferswarm.swarm.acquisition_progress import acquisition_shown_on
    from inferswarm.swarm.model_artifacts import refuse_without_stores

    biases = _biases(logit_bias)
    kept = read_store_options(stores, transfer_limit, source_policy, keep_results)
    sampling = SamplingArguments(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=biases,
        seed=seed,
        logprobs=logprobs,
    )
    choose_sampling(**sampling)
    check_stop_strings(tuple(stop or ()))
    opened = Model(model, backend, manifest=manifest)
    refuse_without_stores(opened, stores)
    _refuse_foreign_ids(opened, biases)
    num_prompt = len(TextSide(str(opened.path)).prompt_ids(prompt, raw=raw))
    workload = Workload(prompt_tokens=num_prompt, output_tokens=max_tokens)
    policy = Policy(representations=(representation,) if representation else ())
    refuse_early(opened, workload, representation)
    with Swarm.local(read_envelopes(node), state=state, mechanism=mechanism, port=port, **kept) as swarm:
        decision = swarm.plan(opened, workload, policy, on_progress=progress_printer(to_stderr=True))
        chosen = decision.plan
        nodes = " → ".join(placement.node_name for placement in chosen.placements)
        sys.stderr.write(f"{opened.name} in {chosen.representation} on {nodes}\n")
        with swarm.realize(chosen, opened, on_progress=acquisition_shown_on(sys.stderr)) as service:
            arguments = {"prompt": prompt} if raw else {"chat": (("user", prompt),)}
            for piece in service.stream(**arguments, max_tokens=max_tokens, stop=stop or (), **sampling):
                if not as_json:
                    print(piece, end="", flush=True)
            answer = service.last
    assert answer is not None
    if as_json:
        shown = {
            "text": answer.text,
            "tokens": answer.tokens,
            "finish_reason": answer.finish_reason,
            "matched_stop": answer.matched_stop,
            "seed": None if answer.seed is None else str(answer.seed),
            "logprobs": answer.logprobs,
        }
        print(json.dumps(shown))
    else:
        print()
    sys.stderr.write(f"{answer!r}\n")


app.command()(serve)
app.command()(events)
app.command()(transfers)

model_app = typer.Typer(help="Look at models, and say what they are made of.", no_args_is_help=True)
model_app.command()(publish)
app.add_typer(model_app, name="model")
app.add_typer(health_app, name="health")
app.add_typer(store_app, name="store")
app.add_typer(campaign_app, name="campaign")
app.command()(verify)


@model_app.command("inspect")
def inspect_model(
    model: Annotated[
        str, typer.Argument(help="A known model, a GGUF file, a model directory, the address of one, or an hf:// id.")
    ],
    backend: BackendOption = None,
    fetch: Annotated[
        str | None, typer.Option("--fetch", help="Of an hf:// id: whole (the default), or headers and texts only.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the inspection document.")] = False,
) -> None:
    """Say what was understood of a model, its bytes, and what was refused. Exit status 1: nobody can compute it."""
    from inferswarm.documents import write_document
    from inferswarm.swarm.inspection import inspect_model
    from inferswarm.views.model_text import inspection_text

    inspection = inspect_model(model, backend, fetch)
    print(write_document(inspection) if as_json else inspection_text(inspection), end="")
    if inspection.description is None:
        raise typer.Exit(EXIT_ERROR)


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print findings as JSON.")] = False) -> None:
    """Say what this machine offers and lacks, and what each would enable."""
    from inferswarm.swarm.doctor import examine
    from inferswarm.views.listings import findings_text

    findings = examine()
    if as_json:
        print(json.dumps([finding._asdict() for finding in findings], indent=2))
    else:
        print(findings_text(findings))
    if any(finding.state == "missing" and finding.required for finding in findings):
        raise typer.Exit(EXIT_ERROR)


@app.command()
def demo(
    model: ModelOption = "smollm2-135m",
    prompt: Annotated[str, typer.Option("--prompt", help="What to ask.")] = "Why is the sky blue?",
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="Longest answer.")] = 160,
    out: Annotated[Path, typer.Option("--out", help="Where pictures and the report go.")] = Path("out/demo"),
    state: StateOption = None,
    mechanism: MechanismOption = "auto",
    ray: RayOption = None,
) -> None:
    """Run a model that fits on neither of two Nodes, over both; exit status 0 only if everything held."""
    from inferswarm.demo import Terminal, run_demo

    def write(text: str) -> None:
        print(text, end="", flush=True)

    raise typer.Exit(run_demo(model, prompt, max_tokens, out, state, mechanism, Terminal(print, write), ray))


def _biases(texts: list[str] | None) -> dict[int, float]:
    """Read ID=VALUE pairs. Raises SpecError for one that is none, and for an id that is there twice."""
    biases: dict[int, float] = {}
    for text in texts or ():
        token, _, value = text.partition("=")
        try:
            pair = int(token), float(value)
        except ValueError as error:
            raise SpecError("logit-bias", text, "ID=VALUE, such as 42=-100") from error
        if pair[0] in biases:
            raise SpecError("logit-bias", text, "each token id once")
        biases[pair[0]] = pair[1]
    return biases


def _refuse_foreign_ids(model: Model, biases: dict[int, float]) -> None:
    size = model.description.vocabulary_size
    if foreign := [token for token in biases if token >= size]:
        raise SpecError("logit-bias", foreign, f"token ids below {size}, the size of the vocabulary")


def _refuse_contradictions(
    topology: Path | None, estimate: bool, nodes: list[str] | None, mechanism: str, state: Path | None
) -> None:
    """Raise SpecError for options that cannot be meant together: declared Nodes are neither held nor measured."""
    if topology is None:
        if estimate:
            raise SpecError("estimate", "--estimate", "--topology FILE as well: Nodes that exist are measured")
        return
    for option, given in (("--node", nodes), ("--mechanism", mechanism != "auto"), ("--state", state)):
        if given:
            raise SpecError("topology", f"--topology with {option}", f"one of them: {option} is for Nodes that exist")


def _proved(decision: Decision) -> str:
    """Say in one sentence how good the chosen plan is proved to be, by the figures that it was priced with."""
    if decision.proved_optimal:
        return "By these figures it is proved the best."
    gap = "unknown" if decision.gap is None else f"{decision.gap:.2%}"
    return f"By these figures another plan can be better by at most {gap}, if it can be priced."


def _refuse_unwritable(picture: Path) -> None:
    if not os.access(picture.parent, os.W_OK):
        raise SpecError("picture", str(picture), "a place in a directory that exists and can be written")
