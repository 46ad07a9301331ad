"""Campaigns and expectations are read strictly: whatever is unknown, mistyped or contradictory is refused."""

from __future__ import annotations

import os

import pytest

from inferswarm.campaigns.expectations import parse_expectations, refuse_mismatch
from inferswarm.campaigns.records import Parameter
from inferswarm.campaigns.spec import parse_campaign, read_campaign, same_parameters
from inferswarm.errors import DocumentError, SpecError
from tests.unit.campaigns.made_runs import CAMPAIGN, EXPECTATIONS
from tests.unit.campaigns.sample_runs import expectation

RATIO = {"confidence": "0.9", "resamples": "999", "seed": "1", "of": '"median"', "paired_by": '"key"'}


def replaced(text: str, old: str, new: str) -> bytes:
    assert old in text
    return text.replace(old, new, 1).encode()


def test_a_campaign_is_a_closed_set_of_arms_whose_literals_say_the_types():
    text = CAMPAIGN.replace("num = 3\n", 'num = 3\nshare = 1.0\nname = "x"\nflag = true\n', 1)
    spec = parse_campaign(text.encode(), "test")
    assert [arm.name for arm in spec.arms] == ["first", "second"]
    values = [item.value for item in spec.arm("first").parameters]
    assert [(type(value), value) for value in values] == [(int, 3), (float, 1.0), (str, "x"), (bool, True)]
    assert spec.arm("second").after == ("first",)
    with pytest.raises(SpecError, match="needed one of: first, second"):
        spec.arm("third")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("edition = 1", "edition = 1\nother = 2", "unknown field `other`"),
        ("edition = 1", "edition = 0", "edition"),
        ("edition = 1", 'edition = "1"', "edition"),
        ('claim = "what is kept is kept"', "", "missing required field `claim`"),
        ("deadline_seconds = 60", "deadline_seconds = nan", "deadline_seconds"),
        ("deadline_seconds = 60", "deadline_seconds = inf", "deadline_seconds is inf"),
        ("deadline_seconds = 60", "deadline_seconds = 0", "deadline_seconds"),
        ("num = 3", "num = [3]", "of type list; needed a text"),
        ("num = 3", "num = 2026-01-01", "of type date; needed a text"),
        ("num = 3", "num = inf", "inf"),
        ("num = 3", "num = 9007199254740993", "canonical"),
        ("num = 3", 'run = "x"', "'run' cannot be the name of a parameter"),
        ("num = 3", '"a=b" = 1', "'a=b' cannot be the name of a parameter"),
        ("num = 3", "class = 1", "'class' cannot be the name of a parameter"),
        ("num = 3", "num = 3\nnum = 4", "not TOML"),
        ('name = "second"', 'name = "first"', "has the arm 'first' twice"),
        ('after = ["first"]', 'after = ["second"]', "must stand before it"),
        ('after = ["first"]', 'after = ["first", "first"]', "names one thing in 'after' twice"),
        ('realizes = ["plan.json"]', 'realizes = ["other.json"]', "realizes other.json, which it does not produce"),
        ('["plan.json"]', '["seal.json"]', "produces seal.json, which every run has"),
        ('["plan.json"]', '["../plan.json"]', "produces"),
        ("notebooks/arms/made/first.ipynb", "/first.ipynb", "not a plain path"),
        ("notebooks/arms/made/first.ipynb", "a/../first.ipynb", "not a plain path"),
        ("[arms.parameters]", '[arms.requires]\nextras = ["gpu"]\n[arms.parameters]', "gpu"),
        (CAMPAIGN, CAMPAIGN.split("[[arms]]")[0] + "arms = []", "has no arms"),
    ],
)
def test_a_campaign_that_is_not_one_is_refused(old, new, message):
    with pytest.raises(DocumentError, match=message):
        parse_campaign(replaced(CAMPAIGN, old, new), "test")


def test_what_is_no_text_and_what_is_not_there_is_refused(tmp_path):
    with pytest.raises(DocumentError, match="not TOML"):
        parse_campaign(b"\xff", "test")
    with pytest.raises(SpecError, match="a file that can be read"):
        read_campaign(tmp_path / "campaign.toml")


def test_a_link_is_followed_and_a_pipe_or_a_directory_is_not_waited_for(tmp_path):
    (tmp_path / "real.toml").write_bytes(CAMPAIGN.encode())
    (tmp_path / "link.toml").symlink_to("real.toml")
    assert read_campaign(tmp_path / "link.toml") == parse_campaign(CAMPAIGN.encode(), "test")
    os.mkfifo(tmp_path / "pipe.toml")
    for other in (tmp_path / "pipe.toml", tmp_path):
        with pytest.raises(SpecError, match="a file that can be read"):
            read_campaign(other)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('statistic = "all-true"', 'statistic = "mostly-true"', "mostly-true"),
        ('statistic = "all-true"', "", "statistic"),
        ("samples_min = 3", "", "samples_min"),
        ("samples_min = 3", "samples_min = 0", "samples_min"),
        ("samples_min = 3", "samples_min = 3\nat_most = 1", "unknown field `at_most`"),
        ("at_most = 0.5", "", "names no bound"),
        ("at_most = 0.5", "at_most = nan", "nan"),
        ("confidence = 0.95", "confidence = 1", "confidence"),
        ("confidence = 0.95", "confidence = 95", "confidence"),
        ("confidence = 0.95", "", "confidence"),
        ('gate = "correctness"', 'gate = "style"', "style"),
        ('id = "first.kept"', 'id = "first.kept\\n"', "id"),
        ('unit = "bool"\n', "", "unit"),
        ('claim = "everything is kept"', 'claim = " "', "claim"),
        ('id = "first.fast"', 'id = "first.kept"', "'first.kept' twice"),
    ],
)
def test_expectations_that_are_none_are_refused(old, new, message):
    with pytest.raises(DocumentError, match=message):
        parse_expectations(replaced(EXPECTATIONS, old, new), "test")


VACUOUS = [
    ("tokens-equal", {"left": '"a"', "right": '"a"', "keys_min": "1", "also_logits": "true"}, "with themselves"),
    ("pairwise", {"right": '{series = "a"}', "relation": '"<="'}, "against themselves"),
    ("pairwise", {"right": '{series = "a", condition = "x"}', "relation": '"=="'}, "against themselves"),
    ("error", {"right": '{series = "a", key = "k"}', "at_most": "1.0", "confidence": "0.9"}, "against themselves"),
    ("ratio", {"right": '{series = "b"}', "low": "2.0", "high": "1.0", **RATIO}, "allows nothing"),
    ("ratio", {"right": '{series = "b"}', "low": "-1.0", **RATIO}, "low"),
    ("count", {"at_least": "0"}, "at_least"),
    ("count", {"at_least": "-5"}, "at_least"),
    ("count", {"equals": "0"}, "equals"),
    ("count", {"equals": "1", "samples_min": "5"}, "allows 1 samples, and needs 5"),
    ("count", {"at_most": "1", "samples_min": "5"}, "allows 1 samples, and needs 5"),
    ("value", {"at_least": "5.0", "at_most": "1.0"}, "allows nothing"),
    ("value", {"equals": "5.0", "at_most": "1.0"}, "a value and a bound"),
    ("value", {"at_most": "1.0", "unit": '""'}, "unit"),
    ("value", {"at_most": "1.0", "unit": '" "'}, "unit"),
    ("median", {"at_least": "5.0", "at_most": "1.0", "confidence": "0.9"}, "allows nothing"),
    ("median", {"at_most": "1.0", "confidence": "0.9", "unit": '"bool"'}, "needed numbers"),
    ("all-true", {"unit": '"s"'}, "needed truths"),
]


@pytest.mark.parametrize(("statistic", "fields", "message"), VACUOUS)
def test_an_expectation_that_nothing_could_miss_or_nothing_could_meet_is_refused(statistic, fields, message):
    if statistic != "tokens-equal":
        where = {"left": '{series = "a"}'} if "right" in fields else {"series": '"a"'}
        fields = {**where, "samples_min": "1", **fields}
    with pytest.raises(DocumentError, match=message):
        expectation(statistic, "performance", **fields)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("edition = 1", "edition = 2", "is for campaign and edition"),
        ('campaign = "made"', 'campaign = "other"', "is for campaign and edition"),
        ('arm = "second"', 'arm = "third"', "expects something of third"),
        (
            'arm = "second"\ngate = "correctness"',
            'arm = "second"\ngate = "performance"',
            "expects nothing at the corr",
        ),
    ],
)
def test_expectations_of_another_campaign_or_of_too_few_arms_are_refused(old, new, message):
    spec = parse_campaign(CAMPAIGN.encode(), "test")
    refuse_mismatch(spec, parse_expectations(EXPECTATIONS.encode(), "test"), "test")
    with pytest.raises(DocumentError, match=message):
        refuse_mismatch(spec, parse_expectations(replaced(EXPECTATIONS, old, new), "test"), "test")


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [(1.0, 1, True), (1, True, False), (0.0, False, False), ("1", 1, False), (1, 1.5, False), ("a", "a", True)],
)
def test_parameters_are_the_same_by_type_and_value_except_for_whole_numbers(first, second, same):
    assert same_parameters((Parameter("a", first),), (Parameter("a", second),)) is same
    assert not same_parameters((Parameter("a", first),), (Parameter("b", first),))
    assert not same_parameters((Parameter("a", first),), ())
