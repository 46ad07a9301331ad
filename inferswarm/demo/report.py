"""The last step of the demonstration: promised against seen, and every remaining claim checked from raw records."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Callable, Sequence

from inferswarm.demo.checks import Checklist
from inferswarm.demo.oracle import compare_with_fp32, run_unsplit
from inferswarm.fabric import messages as m
from inferswarm.planner.plan import ExecutionPlan
from inferswarm.planner.problem import PlanningProblem
from inferswarm.swarm import Generation, Model, Service
from inferswarm.swarm.service import NodeMemory
from inferswarm.units import format_bytes, format_seconds
from inferswarm.views.text import MeasuredRow, prediction_versus_measured_text

Show = Callable[[str], None]
MIN_PERCENTILE_SAMPLES = 20
"""Below so many, a 95th percentile says nothing."""


def report_speed(plan: ExecutionPlan, answer: Generation, show: Show) -> None:
    """Show predictions beside measurements, hop times and bytes on links."""
    prediction, gaps, hops = plan.prediction, answer.inter_token_seconds, answer.hop_seconds
    rows = [
        MeasuredRow("time to first token", "s", prediction.ttft if prediction else None, answer.ttft_seconds),
        MeasuredRow(
            "between tokens (median)",
            "s",
            prediction.inter_token if prediction else None,
            statistics.median(gaps) if gaps else None,
        ),
        MeasuredRow("decode rate", "tok/s", prediction.decode_rate if prediction else None, answer.tokens_per_second),
    ]
    show(textwrap.indent(prediction_versus_measured_text(rows), "  "))
    if hops:
        show(f"  software time of a hop: {_describe_hops(sorted(hops))}")
    show(f"  bytes on links: {answer.bytes_per_token:,.0f} for each generated token, prompt and frames included")


def _describe_hops(ordered: Sequence[float]) -> str:
    """Return the median, and the 95th percentile (nearest rank) where there are enough samples for one."""
    text = f"{format_seconds(statistics.median(ordered))} median"
    if len(ordered) >= MIN_PERCENTILE_SAMPLES:
        rank = math.ceil(0.95 * len(ordered)) - 1
        text += f", {format_seconds(ordered[rank])} 95th percentile"
    return f"{text} of {len(ordered)}"


def check_work(service: Service, answer: Generation, reports: Sequence[m.StageReport], checklist: Checklist) -> None:
    """Check, from the stages' own counters, how much was computed, read and moved."""
    counted = [report.positions for report in answer.reports]
    checklist.add(
        "every stage computed prompt + generated - 1 positions",
        len(counted) == len(service.plan.placements) and all(count == answer.expected_positions for count in counted),
        f"{' and '.join(map(str, counted))}, for {len(answer.record.prompt_ids)} + {len(answer.tokens)} - 1",
    )
    stages = service.realized.stages
    checklist.add(
        "each stage read exactly the bytes that it needs",
        all(stage.source_bytes == stage.required_bytes > 0 for stage in stages),
        " and ".join(f"{stage.source_bytes:,} of {stage.required_bytes:,} B" for stage in stages),
    )
    moved = [report.state_bytes_moved for report in reports]
    checklist.add(
        "no state moved after materialization",
        len(moved) == len(service.plan.placements) and not any(moved),
        f"{sum(moved)} B by {len(moved)} stages",
    )


def check_memory(
    plan: ExecutionPlan,
    before: Sequence[NodeMemory],
    after: Sequence[NodeMemory],
    checklist: Checklist,
    show: Show,
) -> None:
    """Check that no process of a Node was stopped and no sampled peak passed the envelope."""
    stopped_before = {memory.node_name: memory.report.overflows for memory in before}
    inside = 0
    for name, report in after:
        limit, peak, whole = report.limit_bytes, report.charged_peak_bytes, report.mechanism_peak_bytes
        quiet = report.overflows == stopped_before.get(name)
        inside += quiet and limit is not None and peak is not None and peak <= limit
        kept = "" if whole is None else f", {format_bytes(whole)} with page cache"
        show(
            f"  {name}: {format_bytes(peak or 0)} charged at its peak{kept} ({report.mechanism}); envelope "
            f"{format_bytes(limit or 0)}; VmHWM {format_bytes(report.resident_peak_bytes)}, shared libraries included"
        )
    checklist.add(
        "every Node stayed inside its envelope",
        len(after) == len(plan.placements) == inside,
        f"{inside} of {len(plan.placements)} Nodes; no process was stopped",
    )


def check_against_unsplit(
    plan: ExecutionPlan,
    model: Model,
    problem: PlanningProblem,
    answer: Generation,
    checklist: Checklist,
    show: Show,
) -> None:
    """Execute the whole chain in one place with the same partition and compare; then say how fp32 compares."""
    unsplit = run_unsplit(plan, model, problem, answer)
    equal = {
        "tokens": unsplit.tokens == answer.tokens,
        "logits digests": unsplit.logits_digests == answer.record.logits_digests,
        "steps": unsplit.steps == answer.partition.steps,
    }
    verdicts = ", ".join(f"{what} {'equal' if same else 'DIFFER'}" for what, same in equal.items())
    checklist.add(
        "tokens and logits equal the unsplit execution, bit for bit",
        all(equal.values()) and len(answer.tokens) > 0,
        f"{len(answer.tokens)} positions in {plan.representation}: {verdicts}",
    )
    agreement = compare_with_fp32(plan, model, problem, answer)
    show(
        f"  beside fp32 (another representation: compared, never called equal): running freely it gives the same "
        f"first {agreement.equal_prefix} of {agreement.num_tokens} tokens; along this answer it chooses the same "
        f"at {agreement.same_choice} of {agreement.num_tokens} positions"
    )
