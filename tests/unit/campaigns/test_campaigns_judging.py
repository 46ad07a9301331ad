"""Every statistic: when it is proven, when it is broken, and that what is missing is never proven."""

from __future__ import annotations

import pytest

from inferswarm.campaigns.describing import describe
from inferswarm.campaigns.judging import judge, judgement_of
from inferswarm.campaigns.laws import State
from inferswarm.campaigns.results import make_result
from tests.unit.campaigns.sample_runs import (
    answer,
    expectation,
    make_samples,
    numbers,
    truths,
    two_sides,
)

ONE = {"series": '"a"', "samples_min": "3"}
SIDES = {"left": '{series = "a", condition = "left"}', "right": '{series = "a", condition = "right"}'}
TWO = {**SIDES, "samples_min": "3"}
RATIO = {**SIDES, "samples_min": "6", "confidence": "0.95", "resamples": "999", "seed": "1", "of": '"median"'}
ERROR = {**TWO, "at_most": "0.1", "confidence": "0.95"}
JITTER = tuple(1 + (index * 7 % 40 - 19.5) / 400 for index in range(40))
PROVEN, BROKEN, UNPROVEN = State.PROVEN, State.BROKEN, State.UNPROVEN


def state(wanted, samples=None, outputs=None):
    return judgement_of(wanted, samples, outputs).state


@pytest.mark.parametrize(
    ("statistic", "fields", "values", "wanted"),
    [
        ("zero", {}, (0, 0, 0), PROVEN),
        ("zero", {}, (0, 0), UNPROVEN),
        ("zero", {}, (0, 1), BROKEN),
        ("zero", {}, (1, 0, -1), BROKEN),
        ("count", {"equals": "3"}, (5, 5, 5), PROVEN),
        ("count", {"equals": "3"}, (5, 5, 5, 5), BROKEN),
        ("count", {"at_least": "2", "at_most": "4"}, (1, 1), UNPROVEN),
        ("value", {"at_least": "1.0", "at_most": "2.0"}, (1, 1.5, 2), PROVEN),
        ("value", {"at_most": "2.0"}, (1, 2.5), BROKEN),
        ("value", {"equals": "2.0"}, (2, 2), UNPROVEN),
        ("value", {"equals": "2.0"}, (2, 2, 2.0000001), BROKEN),
        ("median", {"at_most": "1.2", "confidence": "0.95"}, JITTER, PROVEN),
        ("median", {"at_most": "1.0", "confidence": "0.95"}, JITTER, UNPROVEN),
        ("median", {"at_least": "1.2", "confidence": "0.95"}, JITTER, BROKEN),
        ("median", {"at_most": "1.2", "confidence": "0.95"}, JITTER[:4], UNPROVEN),
        ("quantile", {"q": "0.9", "at_most": "1.2", "confidence": "0.95"}, JITTER, PROVEN),
        ("quantile", {"q": "0.99", "at_most": "1.2", "confidence": "0.95"}, JITTER, UNPROVEN),
        ("quantile", {"q": "0.9", "at_most": "0.9", "confidence": "0.95"}, JITTER, BROKEN),
    ],
)
def test_one_series(statistic, fields, values, wanted):
    rule = expectation(statistic, "performance", **ONE, **fields)
    assert state(rule, make_samples(*numbers(values))) is wanted


@pytest.mark.parametrize(
    ("statistic", "fields", "values", "wanted"),
    [
        ("all-true", {}, (True,) * 3, PROVEN),
        ("all-true", {}, (True,) * 2, UNPROVEN),
        ("all-true", {}, (True, False), BROKEN),
        ("proportion", {"at_least": "0.9"}, (True,) * 29, PROVEN),
        ("proportion", {"at_least": "0.9"}, (True,) * 28, UNPROVEN),
        ("proportion", {"at_least": "0.9"}, (False,) * 28, BROKEN),
    ],
)
def test_truths(statistic, fields, values, wanted):
    more = {"confidence": "0.95", "method": '"exact"'} if statistic == "proportion" else {}
    rule = expectation(statistic, "performance", **ONE, **fields, **more)
    assert state(rule, truths(*values)) is wanted


def test_numbers_are_not_truths():
    assert state(expectation("all-true", **ONE), make_samples(*numbers([1, 1, 1]))) is BROKEN


@pytest.mark.parametrize(
    ("statistic", "fields", "left", "right", "wanted"),
    [
        ("pairwise", {**TWO, "relation": '"<"'}, (1, 2, 3), (2, 3, 4), PROVEN),
        ("pairwise", {**TWO, "relation": '"<"'}, (1, 2, 4), (2, 3, 4), BROKEN),
        ("pairwise", {**TWO, "relation": '"<"'}, (1, 2, 3), (2, 3, 4, 5), UNPROVEN),
        ("pairwise", {**TWO, "relation": '"<"'}, (1, 9, 3), (2, 3, 4, 5), BROKEN),
        ("pairwise", {**TWO, "relation": '"=="'}, (1, 2), (1, 2), UNPROVEN),
        ("error", ERROR, (1.05, 2, 3), (1, 2, 3), PROVEN),
        ("error", ERROR, (1.2, 2, 3), (1, 2, 3), BROKEN),
        ("error", ERROR, (1, 2, 3), (1, 2, 0), UNPROVEN),
        ("error", {**ERROR, "share": "0.9"}, (*(1,) * 29,), (1,) * 29, PROVEN),
        ("error", {**ERROR, "share": "0.9"}, (*(1,) * 29, 2), (1,) * 30, UNPROVEN),
        ("error", {**ERROR, "share": "0.9"}, (2,) * 30, (1,) * 30, BROKEN),
        ("ratio", {**RATIO, "low": "0.9", "high": "1.1", "paired_by": '"key"'}, JITTER, (1,) * 40, PROVEN),
        ("ratio", {**RATIO, "low": "0.9", "high": "1.1", "paired_by": '"block"'}, JITTER, (1,) * 40, PROVEN),
        ("ratio", {**RATIO, "low": "0.9", "paired_by": '"none"'}, JITTER, JITTER[::-1], PROVEN),
        ("ratio", {**RATIO, "low": "1.0", "paired_by": '"key"'}, JITTER, (1,) * 40, UNPROVEN),
        ("ratio", {**RATIO, "low": "1.2", "paired_by": '"key"'}, JITTER, (1,) * 40, BROKEN),
        ("ratio", {**RATIO, "low": "0.9", "paired_by": '"key"'}, JITTER[:5], (1,) * 5, UNPROVEN),
        ("ratio", {**RATIO, "low": "0.9", "paired_by": '"key"'}, JITTER, (1,) * 39, UNPROVEN),
        ("ratio", {**RATIO, "low": "0.9", "paired_by": '"key"'}, (1,) * 9, (1,) * 9, UNPROVEN),
        ("ratio", {**RATIO, "low": "0.9", "paired_by": '"none"'}, JITTER, (0,) * 40, UNPROVEN),
    ],
)
def test_two_sides(statistic, fields, left, right, wanted):
    assert state(expectation(statistic, "performance", **fields), two_sides(left, right)) is wanted


def test_at_the_correctness_gate_an_estimate_that_misses_is_broken():
    values = make_samples(*numbers(JITTER))
    fields = {**ONE, "at_most": "0.99", "confidence": "0.999999"}
    assert state(expectation("median", "performance", **fields), values) is UNPROVEN
    assert state(expectation("median", "correctness", **fields), values) is BROKEN


def test_whole_blocks_are_resampled():
    """Forty samples in four blocks are four units, and four units have no interval."""
    rows = [{**row, "block": index % 4} for index, row in enumerate(numbers(JITTER, condition="left"))]
    samples = make_samples(*rows, *numbers(JITTER, condition="right"))
    rule = expectation("ratio", "performance", **RATIO, low="0.5", paired_by='"none"')
    judged = judgement_of(rule, samples, ())
    assert (judged.state, judged.estimate.num_units) == (UNPROVEN, 4)


def test_warm_ups_are_left_out_at_the_performance_gate_only():
    rows = make_samples(*numbers([9], warm_up=True), *numbers([1, 1, 1]))
    for gate, most, num in (("performance", PROVEN, "3"), ("correctness", BROKEN, "4")):
        assert state(expectation("value", gate, **ONE, at_most="2.0"), rows) is most
        assert state(expectation("count", gate, **ONE, equals=num), rows) is PROVEN


@pytest.mark.parametrize(
    ("statistic", "fields"),
    [
        ("value", {**ONE, "at_most": "9.0"}),
        ("count", {**ONE, "equals": "12"}),
        ("median", {**ONE, "at_most": "9.0", "confidence": "0.9"}),
        ("pairwise", {**TWO, "relation": '"<="'}),
        ("error", {**ERROR}),
    ],
)
def test_samples_in_another_unit_miss_every_threshold(statistic, fields):
    both = numbers([1] * 6, condition="left"), numbers([1] * 6, condition="right")
    rows = [*both[0], *both[1]] if "left" in fields else [*both[0], *numbers([1] * 6, condition="other")]
    rule = expectation(statistic, "performance", **fields)
    assert state(rule, make_samples(*rows)) is PROVEN
    judged = judgement_of(rule, make_samples(*({**row, "unit": "h"} for row in rows)), ())
    assert (judged.state, judged.found) == (BROKEN, "samples in 'h', needed 's'")


def test_both_sides_are_in_one_unit():
    sides = {"left": '{series = "a"}', "right": '{series = "b"}', "samples_min": "3", "relation": '"<"'}
    rows = [*numbers([1, 1, 1], unit="h"), *numbers([2, 2, 2], series="b")]
    assert state(expectation("pairwise", **sides), make_samples(*rows)) is BROKEN
    assert state(expectation("pairwise", **sides, unit='"h"'), make_samples(*rows)) is BROKEN


LARGE, SMALL = 1.7e308, 5e-324


@pytest.mark.parametrize("gate", ["correctness", "performance"])
@pytest.mark.parametrize(
    ("statistic", "fields", "left", "right"),
    [
        ("median", {**ONE, "at_most": "1.0", "confidence": "0.9"}, LARGE, None),
        ("ratio", {**RATIO, "low": "0.5", "paired_by": '"none"'}, LARGE, LARGE),
        ("ratio", {**RATIO, "low": "0.5", "paired_by": '"none"', "of": '"mean"'}, LARGE, LARGE),
        ("ratio", {**RATIO, "low": "0.5", "paired_by": '"key"', "of": '"mean"'}, LARGE, SMALL),
        ("ratio", {**RATIO, "high": "0.5", "paired_by": '"block"'}, LARGE, SMALL),
        ("error", ERROR, LARGE, SMALL),
    ],
)
def test_what_no_double_can_hold_is_unproven_and_summed_up_all_the_same(statistic, fields, left, right, gate):
    rule = expectation(statistic, gate, **fields)
    samples = make_samples(*numbers([left] * 12)) if right is None else two_sides([left] * 12, [right] * 12)
    assert state(rule, samples) is UNPROVEN
    result = make_result("run-1", (rule,), samples, ())
    assert (result.expectations[0].state, result.series[0].greatest) == ("UNPROVEN", left)


@pytest.mark.parametrize("value", [LARGE, SMALL])
def test_the_largest_and_the_smallest_doubles_are_not_zero(value):
    rows = make_samples(*numbers([value] * 4))
    assert state(expectation("zero", **ONE), rows) is BROKEN
    assert state(expectation("value", **ONE, at_least="1e-300", at_most="1e300"), rows) is BROKEN


def test_a_condition_and_a_key_choose():
    rows = [*numbers([1, 1, 1], condition="good"), *numbers([9], condition="bad")]
    assert state(expectation("value", **ONE, at_most="2.0", condition='"good"'), make_samples(*rows)) is PROVEN
    assert state(expectation("value", **ONE, at_most="2.0"), make_samples(*rows)) is BROKEN
    assert state(expectation("value", **ONE, at_most="2.0", key='"k1"'), make_samples(*rows)) is UNPROVEN


@pytest.mark.parametrize(
    ("left", "right", "also_logits", "wanted"),
    [
        (answer("l", "p", (1, 2)), answer("r", "p", (1, 2)), False, PROVEN),
        (answer("l", "p", (1, 2)), answer("r", "p", (1, 3)), False, BROKEN),
        (answer("l", "p", (1, 2)), answer("r", "p", (1,)), False, BROKEN),
        (answer("l", "p", (1, 2)), answer("r", "q", (1, 2)), False, UNPROVEN),
        (answer("l", "p", ()), answer("r", "p", ()), False, UNPROVEN),
        (answer("l", "p", (1,)), answer("r", "p", (1,), prompt_ids=(1,)), False, BROKEN),
        (answer("l", "p", (1,)), answer("r", "p", (1,), representation="bf16"), False, BROKEN),
        (answer("l", "p", (1,)), answer("r", "p", (1,)), True, UNPROVEN),
        *(
            (
                answer("l", "p", (1,), logits_digest=f"sha256:{'a' * 64}"),
                answer("r", "p", (1,), logits_digest=f"sha256:{digit * 64}"),
                True,
                wanted,
            )
            for digit, wanted in (("a", PROVEN), ("b", BROKEN))
        ),
    ],
)
def test_answers(left, right, also_logits, wanted):
    fields = {"left": '"l"', "right": '"r"', "keys_min": "1", "also_logits": str(also_logits).lower()}
    assert state(expectation("tokens-equal", **fields), None, [left, right]) is wanted
    if wanted is PROVEN:
        assert state(expectation("tokens-equal", **{**fields, "keys_min": "2"}), None, [left, right]) is UNPROVEN
        assert state(expectation("tokens-equal", **fields), None, [left]) is UNPROVEN


RULES = (
    expectation("all-true", **ONE),
    expectation("value", **ONE, at_most="1.0"),
    expectation("pairwise", **TWO, relation='"<"'),
    expectation("ratio", **RATIO, low="0.5", paired_by='"none"'),
    expectation("error", **ERROR),
    expectation("tokens-equal", left='"l"', right='"r"', keys_min="1", also_logits="false"),
)


@pytest.mark.parametrize("rule", RULES, ids=describe)
def test_nothing_proves_nothing(rule):
    assert state(rule) is UNPROVEN
    assert state(rule, make_samples(), ()) is UNPROVEN


def test_every_expectation_has_a_finding_with_its_number_and_interval():
    rules = (
        expectation("median", "performance", **ONE, at_most="1.2", confidence="0.95"),
        expectation("zero", **ONE),
    )
    first, second = judge(rules, make_samples(*numbers(JITTER)), ())
    assert (first.law, first.state, first.path) == ("correctness-gate", BROKEN, "expectations.toml#e")
    assert (second.law, second.state) == ("performance-gate", PROVEN)
    assert "its bounds (each 95 %) at most 1.2; n at least 3" in second.expected
    assert second.found.endswith("n = 40")
    assert " to " in second.found


def test_no_expectation_of_performance_is_an_answer_and_none_of_correctness_is_not():
    states = {finding.law: finding.state for finding in judge((), make_samples(), ())}
    assert states == {"correctness-gate": UNPROVEN, "performance-gate": PROVEN}
