"""Splits of a chain side by side: what each rule comes to, what was predicted and measured, and its ratio to ours.

Pure: nothing is planned or served here.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from inferswarm.planner import Workload
from inferswarm.planner.plan import ExecutionPlan, MemoryAccount
from inferswarm.units import format_bytes

OURS = "ours"
HEADS = ("TTFT ms", "token ms", "request s")


class Route(NamedTuple):
    """Who computes what: the Nodes in order, and how many units of the chain are covered after each."""

    nodes: tuple[str, ...]
    ends: tuple[int, ...]

    @property
    def cuts(self) -> tuple[int, ...]:
        """The unit behind which each cut is, as a policy pins it."""
        return tuple(end - 1 for end in self.ends[:-1])

    @property
    def name(self) -> str:
        """Say how many units each Node has."""
        sizes = (end - start for start, end in pairwise((0, *self.ends)))
        return " | ".join(f"{node} {size}" for node, size in zip(self.nodes, sizes, strict=True))


class Split(NamedTuple):
    """What one rule comes to for one workload."""

    rule: str
    plan: ExecutionPlan | None
    """None where it does not fit, also where what is too much moves on."""
    refused: str = ""
    """Why the rule as it is would be refused; empty where it fits."""


class Answer(NamedTuple):
    """Seconds of one answer: to the first token, the mean between tokens, from the request to the last token."""

    ttft: float
    inter_token: float
    request: float


Rounds = list[list[Answer]]


class Ratio(NamedTuple):
    """A split's request time over ours: the median over the rounds, the least and the greatest."""

    middle: float
    least: float
    greatest: float


class Served(NamedTuple):
    """One representation on one stand-in: what was asked for, and what each plan took."""

    splits: dict[Workload, list[Split]]
    taken: dict[tuple[Route, Workload], Rounds]
    stopped: dict[Route, str]
    """Plans that a Node's limit stopped, though they were accounted to fit."""


def as_it_is(num_units: int, weights: Mapping[str, float]) -> Route:
    """Return the split in proportion to weights, whether it fits or not; Nodes without a unit are left out."""
    nodes: list[str] = []
    ends: list[int] = []
    goal = 0.0
    for node, weight in weights.items():
        goal += num_units * weight / sum(weights.values())
        if round(goal) > (ends[-1] if ends else 0):
            nodes.append(node)
            ends.append(round(goal))
    return Route(tuple(nodes), tuple(ends))


def route_of(plan: ExecutionPlan) -> Route:
    """Return who computes what in a plan."""
    return Route(tuple(part.node_name for part in plan.placements), tuple(part.end_unit for part in plan.placements))


def shortages(accounts: Sequence[MemoryAccount]) -> str:
    """Return the numbers of the accounts that do not fit; empty where all do."""
    return "; ".join(
        f"{account.node_name} needs {format_bytes(account.needed_bytes)}, "
        f"has {format_bytes(account.available_bytes or 0)}"
        for account in accounts
        if not account.fits
    )


def ratio_of(rounds: Rounds, ours: Rounds) -> Ratio:
    """Put a split's request times beside ours, round by round."""
    ratios = [_middle(theirs).request / _middle(mine).request for theirs, mine in zip(rounds, ours, strict=True)]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios))


def _middle(answers: Sequence[Answer]) -> Answer:
    return Answer(*(statistics.median(part) for part in zip(*answers, strict=True)))


def compared_rows(served: Served, workload: Workload) -> list[dict[str, Any]]:
    """Put what was predicted of each split beside what was measured of it, and both beside ours."""
    asked = served.splits[workload]
    ours = asked[0].plan
    assert ours is not None
    assert ours.prediction is not None
    first: dict[Route, str] = {}
    rows: list[dict[str, Any]] = []
    for split in asked:
        row: dict[str, Any] = {"rule": split.rule, "refused_as_it_is": split.refused}
        rows.append(row)
        if split.plan is None or split.plan.prediction is None:
            continue
        route, expected = route_of(split.plan), split.plan.prediction
        row["units"], row["served_as"] = route.name, first.setdefault(route, split.rule)
        row["predicted"] = Answer(expected.ttft.point, expected.inter_token.point, expected.request.point)
        row["predicted_ratio"] = expected.request.point / ours.prediction.request.point
        if route in served.stopped:
            row["stopped"] = served.stopped[route]
        elif route_of(ours) not in served.stopped:
            rounds = served.taken[route, workload]
            row["measured"] = _middle([answer for answers in rounds for answer in answers])
            row["ratio"] = ratio_of(rounds, served.taken[route_of(ours), workload])
    return rows


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print one workload's table."""
    print(f"{'':67}{'predicted':>29}  {'measured':>29}  request over ours")
    print(f"{'':20} {'units':46}{_line(HEADS)}  {_line(HEADS)}  predicted  measured (rounds)")
    for row in rows:
        if "units" not in row:
            print(f"{row['rule']:20} does not fit, also where what is too much moves on")
        else:
            text = f"{row['rule']:20} {row['units']:46}{_numbers(row['predicted'])}  "
            if row["served_as"] != row["rule"]:
                print(f"{text}the same plan as {row['served_as']}, served once")
            elif "ratio" not in row:
                print(f"{text}{row.get('stopped', 'ours was stopped')}")
            else:
                middle, least, greatest = row["ratio"]
                ratios = f"{row['predicted_ratio']:9.3f}  {middle:.3f} ({least:.3f}–{greatest:.3f})"
                print(f"{text}{_numbers(row['measured'])}  {ratios}")
        if row["refused_as_it_is"]:
            print(f"{'':20} {row['refused_as_it_is']}")


def _line(texts: Sequence[str]) -> str:
    return f"{texts[0]:>9}{texts[1]:>10}{texts[2]:>10}"


def _numbers(answer: Answer) -> str:
    return _line((f"{answer.ttft * 1e3:.0f}", f"{answer.inter_token * 1e3:.2f}", f"{answer.request:.3f}"))
