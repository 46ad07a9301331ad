"""What the Nodes of a plan acquire of a model: its manifest, cut to what each participant requires."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from inferswarm.artifacts.deriving import derive_artifacts
from inferswarm.artifacts.exactness import Need
from inferswarm.artifacts.headers import read_kept
from inferswarm.artifacts.pinning import HashPolicy, check_policy
from inferswarm.artifacts.sources import USUAL_POLICY, SourcePolicy
from inferswarm.backends.base import StageAssignment
from inferswarm.errors import SpecError
from inferswarm.fabric import messages as m
from inferswarm.planner import ExecutionPlan
from inferswarm.planner.economics import PathCurve
from inferswarm.strategies.chain import state_tensors
from inferswarm.strategies.requirement import declare
from inferswarm.swarm.model import Model


class ArtifactTerms(NamedTuple):
    """By which rules the Nodes of a swarm with stores acquire what they need."""

    hash_policy: HashPolicy
    paths: tuple[PathCurve, ...] = ()
    """What was measured between Nodes."""
    source_policy: SourcePolicy = USUAL_POLICY
    keeps_results: bool = False
    """Whether Nodes keep what they decode, and get it from each other."""


def needed_artifacts(
    model: Model, plan: ExecutionPlan, assignments: Sequence[StageAssignment], terms: ArtifactTerms
) -> m.NeededArtifacts:
    """Return what the participants of a plan acquire, and by which rules.

    Raises ArtifactError as `derive_artifacts`, and `UNVERIFIED_SOURCE_READ_REFUSED` where the policy wants digests
    that nobody published.
    """
    manifest = model.manifest
    check_policy(manifest, terms.hash_policy)
    needs = [
        Need(item.requirement, declare(model.description, item.first_unit, item.end_unit))
        for item in assignments
        if item.requirement is not None
    ]
    model_object = model.opened.object
    artifacts = derive_artifacts(
        manifest, model_object, assignments[0].plan_digest, needs, frozenset(state_tensors(model.description))
    )
    nodes = {placement.node_id for placement in plan.placements}
    return m.NeededArtifacts(
        plan=artifacts,
        files=tuple(file.uri for file in manifest.files[: len(model_object.files)]),
        source_policy=terms.source_policy,
        takes_results=terms.keeps_results,
        strict=terms.hash_policy == "strict",
        seconds_per_byte=tuple(
            (curve.source, curve.target, curve.seconds_per_byte)
            for curve in terms.paths
            if curve.target in nodes and curve.seconds_per_byte > 0
        ),
    )


def refuse_without_stores(model: Model, has_stores: bool) -> None:
    """Raise SpecError for a model of which only headers are here, in a swarm whose Nodes cannot acquire the rest."""
    kept = None if has_stores else read_kept(model.path if model.path.is_dir() else model.path.parent)
    if kept is not None:
        raise SpecError(
            "stores",
            f"a swarm without stores, for {kept.uri}",
            "stores=True (--stores): only headers of this model are here, and Nodes acquire the rest into stores",
        )
