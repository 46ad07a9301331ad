"""What the command line's `plan` may be asked for: options of the workload and of the policy, and their documents.

Quantities are written with their units (`200MB`, `50ms`). What contradicts itself is refused before anything starts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, get_args

import msgspec
import typer

from inferswarm.errors import SpecError
from inferswarm.planner.problem import Mix, Policy, Reservation, Throughput, Workload
from inferswarm.resources.quantities import seconds
from inferswarm.resources.types import LinkKind
from inferswarm.units import parse_bytes

_WORK, _DEMANDS = "What the plan is for", "What is demanded of it"

ObjectiveOption = Annotated[
    str,
    typer.Option(
        "--objective",
        help="request: least time of one; throughput: most tokens/s of all sessions; mix: both.",
        rich_help_panel=_WORK,
    ),
]
RequestWeightOption = Annotated[
    float | None,
    typer.Option("--request-weight", help="With mix: how much one request counts, 0 to 1.", rich_help_panel=_WORK),
]
ConcurrencyOption = Annotated[
    int, typer.Option("--concurrency", help="Sessions at once; each takes memory.", rich_help_panel=_WORK)
]
MaxInterTokenOption = Annotated[
    str | None,
    typer.Option(
        "--max-inter-token",
        help="With throughput or mix: the longest wait between tokens, all at work (50ms).",
        rich_help_panel=_WORK,
    ),
]
MaxTtftOption = Annotated[
    str | None,
    typer.Option(
        "--max-ttft", help="The longest wait for the first token of a request alone (2s).", rich_help_panel=_DEMANDS
    ),
]
MaxRequestOption = Annotated[
    str | None,
    typer.Option("--max-request", help="The longest time of a request alone (30s).", rich_help_panel=_DEMANDS),
]
MinRateOption = Annotated[
    float | None,
    typer.Option("--min-rate", help="The least tokens/s of a session alone.", rich_help_panel=_DEMANDS),
]
ExcludeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude", help="A Node not to use. Repeat for several, as with all lists.", rich_help_panel=_DEMANDS
    ),
]
ExcludeUnitOption = Annotated[
    list[str] | None,
    typer.Option("--exclude-unit", help="The id of a Compute Unit not to use.", rich_help_panel=_DEMANDS),
]
ReserveOption = Annotated[
    list[str] | None,
    typer.Option("--reserve", help="NODE=SIZE that stays free beside what is reserved.", rich_help_panel=_DEMANDS),
]
NoLinksOption = Annotated[
    list[str] | None,
    typer.Option(
        "--no-links", help="A kind of Link (wireless) or a segment not to go over.", rich_help_panel=_DEMANDS
    ),
]
MaxMachinesOption = Annotated[
    int | None, typer.Option("--max-machines", help="At most so many machines.", rich_help_panel=_DEMANDS)
]
MaxParticipantsOption = Annotated[
    int | None, typer.Option("--max-participants", help="At most so many participants.", rich_help_panel=_DEMANDS)
]
BitExactOption = Annotated[
    bool,
    typer.Option("--require-bit-exact", help="Only what a record proves bit-exact.", rich_help_panel=_DEMANDS),
]
MixOption = Annotated[
    bool,
    typer.Option(
        "--mix-representations", help="Each participant may compute in another one.", rich_help_panel=_DEMANDS
    ),
]


def read_workload(
    prompt_tokens: int,
    output_tokens: int,
    objective: str,
    request_weight: float | None,
    concurrency: int,
    max_inter_token: str | None,
) -> Workload:
    """Return the workload that the options describe. Raises SpecError for options that contradict each other."""
    if objective not in ("request", "throughput", "mix"):
        raise SpecError("objective", objective, "request, throughput or mix")
    if request_weight is not None and objective != "mix":
        raise SpecError("request-weight", f"with --objective {objective}", "--objective mix")
    if max_inter_token is not None and objective == "request":
        needed = "--objective throughput or mix; --min-rate is for one request alone"
        raise SpecError("max-inter-token", "with --objective request", needed)
    limit = None if max_inter_token is None else seconds(max_inter_token, "max-inter-token")
    wanted: Throughput | Mix | msgspec.UnsetType = msgspec.UNSET
    if objective == "throughput":
        wanted = Throughput(max_inter_token_seconds=limit)
    elif objective == "mix":
        if request_weight is None:
            raise SpecError("objective", "mix", "--request-weight as well, from 0 to 1")
        _refuse_non_finite(request_weight, "request-weight")
        wanted = Mix(request_weight=request_weight, max_inter_token_seconds=limit)
    return Workload(
        prompt_tokens=prompt_tokens, output_tokens=output_tokens, concurrency=concurrency, objective=wanted
    )


def read_policy(
    representation: str | None,
    *,
    exclude: list[str] | None = None,
    exclude_unit: list[str] | None = None,
    reserve: list[str] | None = None,
    no_links: list[str] | None = None,
    max_ttft: str | None = None,
    max_request: str | None = None,
    min_rate: float | None = None,
    max_machines: int | None = None,
    max_participants: int | None = None,
    bit_exact: bool = False,
    mix: bool = False,
) -> Policy:
    """Return the policy that the options describe. Raises SpecError for a quantity that is none.

    Names are not looked up: the planner knows what there is, and refuses what is unknown.
    """
    barred, kinds = no_links or [], get_args(LinkKind)
    _refuse_non_finite(min_rate, "min-rate")
    return Policy(
        representations=(representation,) if representation else (),
        excluded_nodes=tuple(exclude or ()),
        excluded_compute_units=_given(exclude_unit or ()),
        reservations=tuple(map(_reservation, reserve)) if reserve else msgspec.UNSET,
        excluded_link_kinds=_given(name for name in barred if name in kinds),
        excluded_segments=_given(name for name in barred if name not in kinds),
        max_first_token_seconds=msgspec.UNSET if max_ttft is None else seconds(max_ttft, "max-ttft"),
        max_request_seconds=msgspec.UNSET if max_request is None else seconds(max_request, "max-request"),
        min_tokens_per_second=min_rate,
        max_machines=msgspec.UNSET if max_machines is None else max_machines,
        max_participants=max_participants,
        bit_exact_required=bit_exact or msgspec.UNSET,
        mix_representations=mix or msgspec.UNSET,
    )


def _refuse_non_finite(number: float | None, option: str) -> None:
    if number is not None and not math.isfinite(number):
        raise SpecError(option, number, "a finite number")


def _given(names: Iterable[str]) -> tuple[str, ...] | msgspec.UnsetType:
    return tuple(names) or msgspec.UNSET


def _reservation(text: str) -> Reservation:
    node, equals, size = text.rpartition("=")
    if not node or not equals:
        raise SpecError("reserve", text, "NODE=SIZE, such as birch=200MB")
    return Reservation(node, parse_bytes(size, f"reserve {node}"))
