"""Plans that mix representations, over real processes: bitwise the unsplit execution, replayed where they may be."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from inferswarm.demo.oracle import compare_with_fp32, run_unsplit
from inferswarm.errors import AdmissionError, SpecError
from inferswarm.planner import ExecutionPlan, Workload
from inferswarm.resources import Envelope
from inferswarm.swarm import Generation, Model, Swarm
from tests.mixing import mix
from tests.models import write_small_llama

WORKLOAD = Workload(prompt_tokens=96, output_tokens=64)
CHAT = (("user", "Name three rivers in Europe and one city on each."),)
EDGE = tuple(range(100, 170))
"""A prompt of one chunk of 64 positions and 6 more."""
NUM_TOKENS = 12
pytestmark = pytest.mark.slow
NODES = ("amber", "birch", "cedar")


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> Model:
    return Model(smollm2_path)


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    nodes = [Envelope(name=name, threads=1, memory_bytes=1_200_000_000) for name in NODES]
    with Swarm.local(nodes, state=tmp_path_factory.mktemp("state")) as swarm:
        yield swarm


def mixed(swarm: Swarm, model: Model, cuts: tuple[int, ...], *representations: str) -> ExecutionPlan:
    """Return the plan with one stage on each of the first Nodes, which compute in these representations."""
    nodes = NODES[: len(representations)]
    return mix(swarm.force(model, nodes, cuts=cuts, representation="bf16", workload=WORKLOAD), *representations)


def assert_equals_unsplit(swarm: Swarm, model: Model, plan: ExecutionPlan, answer: Generation) -> None:
    unsplit = run_unsplit(plan, model, swarm.problem(model, WORKLOAD), answer)
    assert unsplit.tokens == answer.tokens
    assert unsplit.logits_digests == answer.record.logits_digests
    assert unsplit.steps == answer.partition.steps


def test_a_mixed_answer_over_three_nodes_equals_the_unsplit_execution_bitwise(swarm: Swarm, model: Model) -> None:
    plan = mixed(swarm, model, (0, 21), "fp32", "bf16", "fp32")
    with swarm.realize(plan, model) as service:
        assert [stage.states[0].representation for stage in service.realized.stages] == ["fp32", "bf16", "fp32"]
        answers = [
            service.generate(chat=CHAT, max_tokens=NUM_TOKENS, ignore_stop=True),
            service.generate(EDGE, max_tokens=NUM_TOKENS, ignore_stop=True, temperature=0.9, seed=5),
        ]
    for answer in answers:
        assert_equals_unsplit(swarm, model, plan, answer)
        assert [report.positions for report in answer.reports] == [answer.expected_positions] * 3
        low, middle, high = answer.partition.kernel.split(" | ")
        assert ("units 0 to 0: " in low, "units 22 to 31: " in high) == (True, True)
        assert "dtype bf16" in middle
    agreement = compare_with_fp32(plan, model, swarm.problem(model, WORKLOAD), answers[0])
    assert agreement.num_tokens == NUM_TOKENS >= agreement.same_choice > 0


def test_a_mixed_session_is_refused_where_a_unit_computes_in_another_representation(
    swarm: Swarm, model: Model
) -> None:
    with swarm.realize(mixed(swarm, model, (15,), "bf16", "fp32"), model) as service:
        answer = service.generate(EDGE, max_tokens=2, ignore_stop=True)
    moved = mixed(swarm, model, (16,), "bf16", "fp32")
    with swarm.realize(moved, model) as service, pytest.raises(AdmissionError) as refused:
        service.replay(answer.session)
    assert refused.value.field == "partition representation"
    assert refused.value.found == "bf16 in units 0 to 16, fp32 in units 17 to 31"
    assert refused.value.needed == "the recorded one: bf16 in units 0 to 15, fp32 in units 16 to 31"


def test_payloads_that_round_are_refused_and_nothing_starts(swarm: Swarm, model: Model) -> None:
    plan = msgspec.structs.replace(mixed(swarm, model, (15,), "bf16", "fp32"), payload_representation="bf16")
    with pytest.raises(SpecError, match="plan payload_representation"):
        swarm.realize(plan, model)
    assert swarm.status().epoch is None


def test_a_session_of_another_model_of_the_same_shape_is_refused_by_its_name(swarm: Swarm, tmp_path: Path) -> None:
    first = Model(write_small_llama(tmp_path / "first.gguf"))
    other = Model(write_small_llama(tmp_path / "other.gguf", seed=1))
    copied = Model(Path(shutil.copy(first.path, tmp_path / "copied.gguf")))

    def plan(model: Model, *cuts: int) -> ExecutionPlan:
        return swarm.force(model, NODES[: 1 + len(cuts)], cuts=cuts, representation="fp32", workload=WORKLOAD)

    with swarm.realize(plan(first), first) as service:
        answer = service.generate(tuple(range(20)), max_tokens=4, ignore_stop=True)
    with swarm.realize(plan(other), other) as service, pytest.raises(AdmissionError) as refused:
        service.replay(answer.session)
    assert refused.value.field == "model"
    assert answer.record.model in refused.value.needed
    with swarm.realize(plan(copied, 2), copied) as service:
        assert service.replay(answer.session).tokens == answer.tokens
