"""The law of plans: those that ran are those that were recorded, and all that led to them tells of the same things.

The campaign says which documents are plans. Two more are read wherever an arm produces them: `resource_graph.json`,
for which its plans were made, and `decision.json`, which chose `plan.json` where there is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from inferswarm.campaigns import layout
from inferswarm.campaigns.case import Case
from inferswarm.campaigns.findings import broken, compared, unproven
from inferswarm.campaigns.laws import Finding
from inferswarm.documents import Document, DocumentType, digest, read_document
from inferswarm.errors import DocumentError, SpecError
from inferswarm.planner.plan import Decision, ExecutionPlan
from inferswarm.resources.types import ResourceGraph

LAW = "plan-realized"
GRAPH, DECISION, CHOSEN = "resource_graph.json", "decision.json", "plan.json"


def check_plans(case: Case) -> Iterator[Finding]:
    """The plans that the stages say they executed are exactly those recorded, which agree with what they rest on."""
    run = case.run
    if run.arm is None or run.seal is None:
        yield unproven(LAW, layout.SEAL, "the plans that were realized", "there is no seal that would say so")
        return
    kinds: dict[str, type[Document]] = dict.fromkeys(run.arm.realizes, ExecutionPlan)
    kinds |= {name: kind for name, kind in ((GRAPH, ResourceGraph), (DECISION, Decision)) if name in run.arm.produces}
    read: dict[str, Document] = {}
    for name, kind in kinds.items():
        if name not in run.bundle.files:
            yield unproven(LAW, name, f"a recorded {kind.__name__}", "no file")
            continue
        try:
            read[name] = _read(kind, run.bundle.files[name], name)
        except DocumentError as error:
            yield broken(LAW, name, f"a recorded {kind.__name__}", error.reason)
    plans = {name: plan for name, plan in read.items() if isinstance(plan, ExecutionPlan)}
    yield compared(LAW, layout.SEAL, sorted(set(map(digest, plans.values()))), sorted(run.seal.realized_plans))
    yield from _agreements(plans, read.get(GRAPH), read.get(DECISION))


def _read(kind: type[DocumentType], data: bytes, name: str) -> DocumentType:
    try:
        document = read_document(kind, data, name)
    except SpecError as error:  # numbers that no plan can have
        raise DocumentError(name, str(error)) from error
    if isinstance(document, ExecutionPlan) and not document.placements:
        raise DocumentError(name, "places nothing")
    return document


def _agreements(
    plans: Mapping[str, ExecutionPlan], graph: Document | None, decision: Document | None
) -> Iterator[Finding]:
    if graph is not None:
        of_graph = digest(graph)
        for name, plan in plans.items():
            yield compared(LAW, name, f"for the graph {of_graph}", f"for the graph {plan.graph_digest}")
        if isinstance(decision, Decision):
            yield compared(LAW, DECISION, f"by the graph {of_graph}", f"by the graph {decision.inputs.graph}")
    if not isinstance(decision, Decision):
        return
    chosen = decision.plan
    if (chosen is not None) is not (decision.outcome == "SELECTED"):
        yield broken(LAW, DECISION, "a plan where one was selected, and no other", decision.outcome)
    if chosen is not None:
        needed = (decision.inputs.problem, decision.inputs.graph)
        yield compared(LAW, DECISION, needed, (chosen.problem_digest, chosen.graph_digest))
    if CHOSEN in plans:
        selected = "nothing selected" if chosen is None else digest(chosen)
        yield compared(LAW, CHOSEN, selected, digest(plans[CHOSEN]))
