"""The campaigns that ship: their files agree with each other, with the notebooks and with what arms keep."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from inferswarm.arms import disturbing, times
from inferswarm.arms.grids import GRIDS
from inferswarm.campaigns.expectations import OfSeries, OfSides, TokensEqual, read_expectations, refuse_mismatch
from inferswarm.campaigns.laws import State
from inferswarm.campaigns.notebooks import parameters_of, read_notebook, scan_source
from inferswarm.campaigns.records import Parameter
from inferswarm.campaigns.samples import TRUTH_UNIT
from inferswarm.campaigns.spec import ArmSpec, CampaignSpec, read_campaign, same_parameters

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ("dense-integration", "feasibility", "planning", "recovery")
CAMPAIGNS = tuple(read_campaign(ROOT / "experiments" / name / "campaign.toml") for name in SHIPPED)
ARMS = [(campaign, arm) for campaign in CAMPAIGNS for arm in campaign.arms]
GUIDE = ROOT / "docs" / "guides" / "reproduce.md"
MAX_MINUTES = 60
KEPT_LITERALLY = 25
"""At least so many of the expected series have their units beside their names in the arms' code."""


def name_of(value: object) -> str:
    return value.name if isinstance(value, ArmSpec) else getattr(value, "campaign", str(value))


def sources() -> str:
    """Everything that an arm may run: the notebooks' code and the functions that they call."""
    notebooks = [
        cell.text for _, arm in ARMS for cell in read_notebook((ROOT / arm.notebook).read_bytes(), arm.notebook).code
    ]
    modules = [path.read_text(encoding="utf-8") for path in (ROOT / "inferswarm" / "arms").glob("*.py")]
    return "\n".join(notebooks + modules)


def kept_names(text: str) -> set[str]:
    """Names of series and conditions that something is kept under: literals, and those that are put together."""
    found = set(re.findall(r'"([a-z][a-z0-9-]*)"', text))
    found |= {f"{prefix}{series}" for prefix in ("predicted-", "predicted-low-") for _, series in times.FIGURES}
    found |= {f"{series}-inside" for _, series in times.FIGURES}
    found |= {f"{name}-bytes-differing" for name in ("decision", "gate")}
    found |= {f"{moment}-{side}" for moment in ("serving", "held") for side in ("left", "right")}
    return found | {"round-0", "round-1", "round-2"}


@pytest.mark.parametrize("campaign", CAMPAIGNS, ids=name_of)
def test_a_shipped_campaign_and_its_expectations_belong_together(campaign: CampaignSpec) -> None:
    source = ROOT / "experiments" / campaign.campaign / "expectations.toml"
    expectations = read_expectations(source)
    refuse_mismatch(campaign, expectations, str(source))
    assert source.parent.name == campaign.campaign
    minutes = sum(arm.deadline_seconds for arm in campaign.arms) / 60
    assert minutes <= MAX_MINUTES
    known = kept_names(sources())
    for item in expectations.expect:
        names = []
        if isinstance(item, TokensEqual):
            names = [item.left, item.right]
        elif isinstance(item, OfSides):
            names = [item.left.series, item.right.series, item.left.condition, item.right.condition]
        elif isinstance(item, OfSeries):
            names = [item.series, item.condition]
        assert [name for name in names if name is not None and name not in known] == [], item.id


def test_what_is_expected_is_in_the_unit_in_which_arms_keep_it() -> None:
    """Of series and units that are written out where they are kept; a run of the arm tells of the others."""
    kept: dict[str, str] = {}
    calls = [node for node in ast.walk(ast.parse(sources())) if isinstance(node, ast.Call)]
    for call in calls:
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        told = [item.value if isinstance(item, ast.Constant) else None for item in call.args]
        if name == "sample" and isinstance(told[0], str) and isinstance(told[2], str):
            assert kept.setdefault(told[0], told[2]) == told[2]
        elif name == "truth" and isinstance(told[0], str):
            kept[told[0]] = TRUTH_UNIT
    expected = {
        (series, item.unit)
        for name in SHIPPED
        for item in read_expectations(ROOT / "experiments" / name / "expectations.toml").expect
        if not isinstance(item, TokensEqual)
        for series in ((item.left.series, item.right.series) if isinstance(item, OfSides) else (item.series,))
    }
    assert [(series, unit) for series, unit in expected if kept.get(series, unit) != unit] == []
    assert len({series for series, _ in expected} & kept.keys()) >= KEPT_LITERALLY


@pytest.mark.parametrize(("campaign", "arm"), ARMS, ids=name_of)
def test_a_shipped_arm_has_a_notebook_that_passes_the_scan_with_its_parameters(
    campaign: CampaignSpec, arm: ArmSpec
) -> None:
    data = (ROOT / arm.notebook).read_bytes()
    assert arm.notebook == f"notebooks/arms/{campaign.campaign}/{arm.name}.ipynb"
    assert [finding for finding in scan_source(data) if finding.state is not State.PROVEN] == []
    declared = parameters_of(data)
    assert same_parameters(declared, arm.parameters), "a rehearsal by hand does what a run does"
    assert {*arm.realizes} <= {*arm.produces}
    opened = next(cell.text for cell in read_notebook(data, arm.notebook).code if "Arm.open(" in cell.text)
    passed = {
        item.arg for node in ast.walk(ast.parse(opened)) if isinstance(node, ast.Call) for item in node.keywords
    }
    assert passed == {item.name for item in declared}


def test_every_notebook_of_an_arm_belongs_to_a_campaign() -> None:
    every = {path.parent.name for path in (ROOT / "experiments").glob("*/campaign.toml")}
    used = {
        arm.notebook for name in every for arm in read_campaign(ROOT / "experiments" / name / "campaign.toml").arms
    }
    there = {path.relative_to(ROOT).as_posix() for path in (ROOT / "notebooks" / "arms").rglob("*.ipynb")}
    assert used == there


@pytest.mark.parametrize(("campaign", "arm"), ARMS, ids=name_of)
def test_the_documents_of_an_arm_are_those_that_its_parameters_make(campaign: CampaignSpec, arm: ArmSpec) -> None:
    grid = arm.parameter("grid_name")
    if grid is not None:
        wanted = {f"plan-{route.name}.json" for route in GRIDS[str(grid.value)]}
        assert {*arm.realizes} == wanted
    cuts, forms = arm.parameter("cuts"), arm.parameter("representations")
    if cuts is not None and forms is not None:
        names = [text.replace("+", "-").replace(":", "-").replace(",", "-") for text in str(cuts.value).split()]
        assert {*arm.realizes} == {f"plan-{form}-{name}.json" for form in str(forms.value).split() for name in names}


def test_the_numbers_of_samples_follow_from_the_parameters() -> None:
    """What an expectation counts is what the arm's parameters make: else a change of one leaves the other behind."""
    counted = {
        item.id: item
        for name in SHIPPED
        for item in read_expectations(ROOT / "experiments" / name / "expectations.toml").expect
    }
    values = {(campaign.campaign, arm.name): {p.name: p.value for p in arm.parameters} for campaign, arm in ARMS}

    prediction, cuts = values["feasibility", "prediction"], values["planning", "cuts"]
    cells = 2 * len(GRIDS["one-to-three-nodes"])
    assert cells >= 30
    assert counted["prediction.cells"].equals == cells * prediction["rounds"] * (1 + prediction["answers"])
    assert counted["prediction.tokens"].keys_min == cells
    assert counted["cuts.cells"].equals == len(GRIDS["two-nodes-cut"]) * cuts["rounds"] * (1 + cuts["answers"])
    for arm in ("proportional", "declining"):
        given = values["planning", arm]
        assert counted[f"{arm}.served"].equals == 2 * given["rounds"] * (1 + given["answers"])
    kills = values["recovery", "stage-kills"]
    assert counted["stage-kills.kills"].equals == 3 * kills["rounds"]
    assert counted["stage-kills.tokens"].keys_min == 2 * 3 * kills["rounds"]
    assert counted["node-loss.losses"].equals == values["recovery", "node-loss"]["losses"]
    assert counted["joins.moves"].equals == values["recovery", "joins"]["turns"]
    assert kills["max_tokens"] > disturbing.EARLIEST + disturbing.LATEST_BEFORE_END


def test_the_guide_names_every_campaign_and_arm() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    for campaign, arm in ARMS:
        assert f"campaign run {campaign.campaign}" in text
        assert f"`{arm.name}`" in text, arm.name


def test_a_parameter_of_another_type_is_not_the_same() -> None:
    assert not same_parameters((Parameter("rounds", 2),), (Parameter("rounds", True),))
