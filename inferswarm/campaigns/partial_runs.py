"""What a run that never came to its table of samples did observe: its journal, as far as it shows a failure.

Without it an arm whose gate had failed could be interrupted and tried again. A journal that ends in the middle can
break an expectation, and proves none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import polars as pl

from inferswarm.campaigns.expectations import Counted, Expectation
from inferswarm.campaigns.findings import unproven
from inferswarm.campaigns.journal import JOURNAL, Sampled, table_of
from inferswarm.campaigns.judging import GATES, judge
from inferswarm.campaigns.laws import Finding, State
from inferswarm.campaigns.layout import EXPECTATIONS
from inferswarm.campaigns.samples import Output
from inferswarm.campaigns.selecting import select

Line = dict[str, msgspec.Raw]


class Observed(NamedTuple):
    """What a journal holds; `samples` is None where they are no table."""

    samples: pl.DataFrame | None
    outputs: tuple[Output, ...]


def read_journal(data: bytes) -> Observed:
    """Read a journal as far as it goes. Lines that cannot be read, such as a torn last one, say nothing."""
    sampled: list[Sampled] = []
    outputs: dict[tuple[str, str], Output] = {}
    for line in data.split(b"\n"):
        try:
            ((kind, raw),) = msgspec.json.decode(line, type=Line).items()
            if kind == "samples":
                sampled.append(msgspec.json.decode(raw, type=Sampled))
            elif kind == "output":
                output = msgspec.json.decode(raw, type=Output)
                outputs.setdefault((output.condition, output.key), output)
        except (msgspec.MsgspecError, ValueError):
            continue
    try:
        return Observed(table_of(sampled), tuple(outputs.values()))
    except (pl.exceptions.PolarsError, OverflowError):  # numbers that no table of samples holds
        return Observed(None, tuple(outputs.values()))


def judge_journal(expectations: Sequence[Expectation], data: bytes) -> Iterator[Finding]:
    """Yield the findings of both gates by a journal: broken where it shows that, else unproven."""
    observed = read_journal(data)
    by_place = {f"{EXPECTATIONS}#{item.id}": item for item in expectations}
    for finding in judge(expectations, observed.samples, observed.outputs):
        expectation = by_place.get(finding.path)
        is_final = finding.state is State.BROKEN and finding.law == GATES["correctness"]
        if is_final and expectation is not None and not _is_unfinished(expectation, observed.samples):
            yield msgspec.structs.replace(finding, found=f"{finding.found} (in {JOURNAL})")
        else:
            shown = f"{JOURNAL} only: {finding.found}"
            yield unproven(finding.law, finding.path, finding.expected, shown)


def _is_unfinished(expectation: Expectation, samples: pl.DataFrame | None) -> bool:
    """Return whether an expectation is about a count that further samples could have reached."""
    if not isinstance(expectation, Counted) or samples is None:
        return False
    most = [bound for bound in (expectation.equals, expectation.at_most) if bound is not None]
    return not most or len(select(samples, expectation, expectation.gate)) <= min(most)
