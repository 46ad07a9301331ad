"""Whether the answers of two conditions are equal: prompts, tokens and, where it is asked, logits."""

from __future__ import annotations

from collections.abc import Sequence

from inferswarm.campaigns.expectations import TokensEqual
from inferswarm.campaigns.judgement import Judgement, broken, named, proven, unproven
from inferswarm.campaigns.samples import Output
from inferswarm.campaigns.selecting import by_key


def judge_answers(wanted: TokensEqual, outputs: Sequence[Output]) -> Judgement:
    """Compare the answers to every key. Equality is claimed within one representation only."""
    left, right = by_key(outputs, wanted.left), by_key(outputs, wanted.right)
    both = [key for key in left if key in right]
    num = len(both)
    differing = [
        f"{key!r}: {what}" for key in both if (what := _difference(left[key], right[key], wanted.also_logits))
    ]
    if differing:
        return broken(f"{len(differing)} of {num} answers differ: {named(differing)}", num)
    if unpaired := sorted(left.keys() ^ right.keys()):
        return unproven(f"answered under one condition only: {named(unpaired)}", num)
    if num < wanted.keys_min:
        return unproven(f"n = {num}, needed at least {wanted.keys_min}", num)
    if empty := [key for key in both if not left[key].token_ids]:
        return unproven(f"no token was answered to {named(empty)}", num)
    if wanted.also_logits and (without := [key for key in both if not left[key].logits_digest]):
        return unproven(f"logits were not compared of {named(without)}", num)
    num_tokens = sum(len(output.token_ids) for output in left.values())
    return proven(f"{num} answers with {num_tokens} tokens are equal", num)


def _difference(left: Output, right: Output, also_logits: bool) -> str:
    if left.representation != right.representation:
        return f"computed in {left.representation} and in {right.representation}"
    if left.prompt_ids != right.prompt_ids:
        return "the prompts differ"
    if left.token_ids != right.token_ids:
        same = 0
        for one, other in zip(left.token_ids, right.token_ids, strict=False):
            if one != other:
                break
            same += 1
        return f"the tokens differ from position {same}"
    return "the logits differ" if also_logits and left.logits_digest != right.logits_digest else ""
