"""Plans, the decisions that chose them and the resources that they were made for tell of the same things."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from inferswarm.campaigns.bundle import Run, read_run
from inferswarm.campaigns.case import make_case
from inferswarm.campaigns.laws import State
from inferswarm.campaigns.laws_of_plans import check_plans
from inferswarm.campaigns.ledger import Chain
from inferswarm.documents import digest, digest_bytes, write_document
from inferswarm.planner.plan import Decision, InputDigests
from inferswarm.planner.problem import Policy
from inferswarm.resources.types import ResourceGraph
from tests.unit.campaigns.made_runs import PLAN, make_project, make_run

GRAPH = ResourceGraph(swarm_id="s", nodes=(), compute_units=(), memory_resources=(), links=())
FOR_GRAPH = msgspec.structs.replace(PLAN, graph_digest=digest(GRAPH))
INPUTS = InputDigests(
    problem=PLAN.problem_digest, graph=digest(GRAPH), policy=digest("p"), workload=digest("w"), economics=digest("e")
)
DECISION = Decision(
    inputs=INPUTS,
    outcome="SELECTED",
    summary="",
    plan=FOR_GRAPH,
    families=(),
    resources=(),
    policy=Policy(),
    overrides=(),
    proved_optimal=False,
    search="",
)
OTHER = digest_bytes(b"other")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    project = make_project(tmp_path_factory.mktemp("plans") / "project")
    make_run(project, project / "evidence", "first")
    (directory,) = (project / "evidence" / "made").glob("first-*")
    return read_run(directory)


def state_of_plans(run: Run, decision: Any = DECISION, graph: Any = GRAPH, plan: Any = FOR_GRAPH) -> set[State]:
    """Judge a run that left these three documents, and whose stages report this plan."""
    documents = {"decision.json": decision, "resource_graph.json": graph, "plan.json": plan}
    files = {name: write_document(document).encode() for name, document in documents.items() if document is not None}
    assert run.spec is not None
    assert run.arm is not None
    arm = msgspec.structs.replace(run.arm, produces=tuple(documents))
    spec = msgspec.structs.replace(run.spec, arms=(arm,))
    seal = msgspec.structs.replace(run.seal, realized_plans=(digest(plan),))
    changed = run._replace(spec=spec, seal=seal, bundle=run.bundle._replace(files={**run.bundle.files, **files}))
    return {finding.state for finding in check_plans(make_case(changed, Chain((), (), None), ()))}


def test_a_plan_its_decision_and_its_resources_agree(run: Run) -> None:
    assert state_of_plans(run) == {State.PROVEN}


@pytest.mark.parametrize(
    "changed",
    [
        {"decision": {}},
        {"graph": {}},
        {"plan": {}},
        {"graph": msgspec.structs.replace(GRAPH, swarm_id="t")},
        {"plan": PLAN},
        {"plan": msgspec.structs.replace(FOR_GRAPH, sessions=2)},
        {"decision": msgspec.structs.replace(DECISION, plan=None)},
        {"decision": msgspec.structs.replace(DECISION, plan=None, outcome="NO_FEASIBLE_PLAN")},
        {"decision": msgspec.structs.replace(DECISION, outcome="NO_FEASIBLE_PLAN")},
        {"decision": msgspec.structs.replace(DECISION, inputs=msgspec.structs.replace(INPUTS, graph=OTHER))},
        {"decision": msgspec.structs.replace(DECISION, inputs=msgspec.structs.replace(INPUTS, problem=OTHER))},
    ],
)
def test_one_that_tells_of_something_else_is_noticed(run: Run, changed: dict[str, Any]) -> None:
    assert State.BROKEN in state_of_plans(run, **changed)


@pytest.mark.parametrize("missing", ["decision", "graph"])
def test_what_is_missing_proves_nothing(run: Run, missing: str) -> None:
    states = state_of_plans(run, **{missing: None})
    assert State.UNPROVEN in states
    assert State.BROKEN not in states
