"""Rules about who runs what now: authority, epochs, late results, replays, and what the Coordinator is not."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from inferswarm.documents import digest
from inferswarm.errors import (
    AdmissionError,
    AuthorityUncertain,
    CommitRefused,
    ReplayDiverged,
    SpecError,
    StageLost,
    WireError,
)
from inferswarm.fabric import events as ev
from inferswarm.fabric import messages as m
from inferswarm.fabric.authority import RefusalCode
from inferswarm.fabric.frames import Address, FrameKind, decode, encode
from inferswarm.fabric.ledger import Ledger
from inferswarm.fabric.proc import maps_torch, process_memory
from inferswarm.fabric.running import check_assignments
from inferswarm.fabric.terms import ResultBody, SessionTerms
from inferswarm.fabric.transitions import apply
from inferswarm.fabric.transport import Outbox
from inferswarm.planner import Policy, Workload, decide
from inferswarm.planner.problem import Implementation, Reservation
from tests.integration.null_swarm import (
    NUM_UNITS,
    LongAnswer,
    NullSwarm,
    assign,
    expected,
    listening_ports,
    null_plan,
)
from tests.unit.fabric.fabric_samples import (
    ACTIVE,
    SERVING,
    activate,
    after,
    ready,
    result,
    start,
)
from tests.unit.fabric.processes import wait_until
from tests.unit.fabric.stage_ring import ADDRESS, Ring
from tests.unit.planner.planner_cases import ENOUGH, make_economics, make_graph, make_problem

PROMPT = tuple(range(20))


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NullSwarm]:
    with NullSwarm(tmp_path_factory.mktemp("swarm")) as swarm:
        yield swarm


@pytest.fixture
def serving(swarm: NullSwarm) -> Iterator[NullSwarm]:
    """The swarm with a fresh epoch over both Nodes, retired afterwards."""
    swarm.realize()
    yield swarm
    swarm.ask(m.Retire())


def send_results(swarm: NullSwarm, address: Address, session: int, positions: range) -> None:
    """Send results to the Coordinator as a last stage does: whole frames with the right checksum."""
    control = int(swarm.endpoint.rpartition(":")[2])
    (port,) = listening_ports(swarm.coordinator().pid) - {control}
    outbox = Outbox(f"tcp://127.0.0.1:{port}")
    for position in positions:
        body = msgspec.msgpack.encode(ResultBody(7, f"{7:032x}", 1.0))
        outbox.send(encode(address.header(FrameKind.RESULT, session, position=position), body))
    outbox.close()


def refused_codes(transition_effects: tuple[ev.Effect, ...]) -> list[RefusalCode]:
    return [effect.code for effect in transition_effects if isinstance(effect, ev.Refused)]


@pytest.mark.rule(14)
def test_the_coordinator_computes_nothing_and_carries_no_bulk(swarm: NullSwarm) -> None:
    """While stages compute with torch, Coordinator and agents have not loaded it; results are a few bytes each.

    Mutation: import torch in `fabric/coordinator.py`; or connect `following` of the data path to the results
    endpoint, so that boundaries pass through the Coordinator.
    """
    plan = null_plan(("amber",), primitive="torch", max_positions=64)
    (stage,) = swarm.realize(plan=plan).pids
    answer = swarm.generate(PROMPT, 4)
    assert len(answer.record.tokens) == 4
    assert maps_torch(stage)
    assert not maps_torch(swarm.coordinator().pid)
    assert not any(maps_torch(agent.pid) for agent in swarm.agents.values())
    swarm.ask(m.Retire())

    ring = Ring([2, 4])
    ring.start(1, PROMPT, SessionTerms(len(PROMPT), 50, 99, (), 2), 8)
    boundaries = 0
    while any(wire.frames for wire in (*ring.inboxes, ring.results)):
        for frame in ring.results.frames:
            assert frame.header.kind in (FrameKind.OPENED, FrameKind.RESULT, FrameKind.CLOSED)
            assert frame.header.kind == FrameKind.CLOSED or len(frame.payload) < 64
        boundaries += sum(frame.header.kind == FrameKind.BOUNDARY for wire in ring.inboxes for frame in wire.frames)
        ring.step()
    assert boundaries > 50
    assert len(ring.tokens[1]) == 50


@pytest.mark.rule(19)
def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    """One Coordinator writes a ledger, one realization writes a session, and one result takes a position.

    Mutation: drop the comparison of holders in `Ledger.acquire_lease`, of realizations in `machine.sessions.commit`,
    or the primary key of the table `commits`.
    """
    first, second = Ledger(tmp_path / "ledger"), Ledger(tmp_path / "ledger")
    term = first.acquire_lease("scope", "a", 60.0)
    with pytest.raises(AuthorityUncertain):
        second.acquire_lease("scope", "b", 60.0)
    first.renew_lease("scope", "a", term, 60.0)
    first.close()
    second.close()

    rival = after([start("r2"), ready("r2")], SERVING)
    assert refused_codes(apply(rival, result(3, realization="r2"), 0.0).effects) == [RefusalCode.WRONG_REALIZATION]
    taken = apply(rival, result(3), 0.0)
    assert taken.effects == (ev.Committed(session=1, position=3, epoch=1),)
    assert refused_codes(apply(taken.state, result(3), 0.0).effects) == [RefusalCode.NON_NEXT_COMMIT_POSITION]


@pytest.mark.rule(20)
def test_a_session_whose_inputs_are_gone_cannot_be_rebuilt(serving: NullSwarm) -> None:
    """As long as the ledger holds prompt and partition a replay works; without them it is refused before any work.

    Mutation: drop the check of the prompt in `admission.check_replay`, or let `Ledger.delete_session` keep it.
    """
    record = serving.generate(PROMPT, 5).record
    replay = serving.ask(m.Replay(session=record.session))
    assert isinstance(replay, m.Generated)
    assert replay.record.tokens == record.tokens

    ledger = Ledger(Path(serving.settings.ledger))
    ledger.delete_session(record.session)
    ledger.close()
    with pytest.raises(AdmissionError, match="still in the ledger") as refused:
        serving.ask(m.Replay(session=record.session))
    assert (refused.value.field, refused.value.found) == ("session", record.session)
    assert serving.record(record.session).tokens == ()


@pytest.mark.rule(25)
def test_what_a_retired_epoch_held_is_given_back_to_its_node(tmp_path: Path) -> None:
    """A session's end gives nothing back: its stage keeps the room. The epoch's end does, by the kernel's word on the
    processes and by what the Node's memory mechanism still counts against its limit.

    Mutation: let `Realizer._stop_stages` stop no stage, or an agent answer `StopStage` before the process has ended.
    """
    with NullSwarm(tmp_path, ("amber",), limit_bytes=600_000_000) as swarm:

        def available() -> int:
            report = swarm.ask(m.OnNode(node_id="node-amber", command=m.InspectNode(reset_peak=False)))
            assert isinstance(report, m.NodeReport)
            assert report.limit_bytes is not None
            assert report.charged_bytes is not None
            return report.limit_bytes - report.charged_bytes

        (pid,) = swarm.realize().pids
        swarm.generate(PROMPT, 5)
        serving, (stage,) = available(), swarm.stage_reports()
        assert stage.anonymous_bytes > 8 * 2**20
        swarm.ask(m.Retire())
        assert process_memory(pid) is None
        assert available() > serving + stage.anonymous_bytes // 2


@pytest.mark.rule(44)
def test_a_realized_plan_cannot_be_altered() -> None:
    """Whatever is changed in a plan gives another digest, and assignments of the one are refused for the other.

    Mutation: leave a field out of the digest, or drop the digest from what `check_assignments` compares.
    """
    plan = null_plan(("amber", "birch"))
    assignments = tuple(assign(plan, item.participant, item.first_unit, item.end_unit) for item in plan.placements)
    assert check_assignments(plan, assignments) == digest(plan)
    with pytest.raises(AttributeError):
        plan.sessions = 3  # type: ignore[misc]
    other_places = tuple(msgspec.structs.replace(item, threads=2) for item in plan.placements)
    changes: dict[str, object] = {
        "problem_digest": "x",
        "graph_digest": "x",
        "primitive": "torch",
        "representation": "bf16",
        "workload": msgspec.structs.replace(plan.workload, output_tokens=plan.workload.output_tokens + 1),
        "chunk_positions": 9,
        "max_positions": 9,
        "sessions": 9,
        "placements": other_places,
        "payload_representation": "fp32",  # said, where it was left out
    }
    assert set(changes) == set(plan.__struct_fields__) - {"prediction"}
    for name, value in changes.items():
        altered = msgspec.structs.replace(plan, **{name: value})
        assert digest(altered) != digest(plan), name
        with pytest.raises(SpecError):
            check_assignments(altered, assignments)


@pytest.mark.rule(45)
def test_a_second_activation_of_one_plan_is_another_epoch(swarm: NullSwarm) -> None:
    """The same plan activated twice has two epochs, and results of the first are refused under the second.

    Mutation: derive the epoch's number from the plan's digest, or drop the comparison of epochs in
    `machine.sessions.commit`.
    """
    first = swarm.realize()
    earlier, plan = swarm.address(), swarm.plan
    swarm.ask(m.Retire())
    second = swarm.realize(plan=plan)
    assert swarm.address().plan == earlier.plan
    assert second.epoch == first.epoch + 1
    assert second.realization != first.realization
    answer = LongAnswer(swarm, PROMPT, 500)
    answer.wait_for(3)
    before = swarm.refusals().get("RETIRED_OR_SUPERSEDED_EPOCH", 0)
    send_results(swarm, earlier, answer.session, range(len(PROMPT), len(PROMPT) + 500))
    assert wait_until(lambda: swarm.refusals().get("RETIRED_OR_SUPERSEDED_EPOCH", 0) == before + 500, 20.0)
    answer.join()
    assert swarm.record(answer.session).tokens == expected(PROMPT, 500).tokens
    swarm.ask(m.Retire())


@pytest.mark.rule(46)
def test_a_result_of_a_retired_epoch_has_no_effect(swarm: NullSwarm) -> None:
    """A real frame of the retired epoch changes neither ledger nor output, and is counted once.

    Mutation: look for the session before the epoch in `machine.sessions.commit` and commit when it is open, or drop
    the recording of refusals in `AuthorityKeeper.advance`.
    """
    swarm.realize()
    retired = swarm.address()
    answer = LongAnswer(swarm, PROMPT)
    answer.wait_for(10)
    swarm.ask(m.Retire())
    assert isinstance(answer.error(), CommitRefused)
    record = swarm.record(answer.session)
    seen = list(answer.tokens)
    before = swarm.refusals()
    next_position = len(PROMPT) + len(record.tokens)
    send_results(swarm, retired, answer.session, range(next_position, next_position + 1))
    assert wait_until(lambda: swarm.refusals() != before, 10.0)
    assert sum(swarm.refusals().values()) == sum(before.values()) + 1
    assert swarm.record(answer.session) == record
    assert answer.tokens == seen


@pytest.mark.rule(47)
def test_a_scope_has_one_owner(serving: NullSwarm) -> None:
    """A second activation is refused while an epoch is active, and succeeds once it is retired.

    Mutation: drop the look at `active_epoch()` in `machine.epochs.activate` and in `Realizer.realize`.
    """
    owner = serving.status().epoch
    with pytest.raises(CommitRefused) as refused:
        serving.realize(("birch",))
    assert refused.value.code == "SCOPE_ALREADY_OWNED"
    assert serving.status().epoch == owner
    serving.ask(m.Retire())
    assert serving.realize(("birch",)).epoch == owner + 1

    prepared = after([start("r2"), ready("r2")], ACTIVE)
    assert refused_codes(apply(prepared, activate("r2"), 0.0).effects) == [RefusalCode.SCOPE_ALREADY_OWNED]


@pytest.mark.rule(49)
def test_preparing_gives_no_authority() -> None:
    """At each step of a preparation the active epoch commits on, and nothing of the new realization is committed.

    Mutation: let `machine.realizations.ready_realization` activate, or `start_realization` end the active epoch.
    """
    state, position = SERVING, 3
    for event in (start("r2"), ready("r2")):
        state = after([event], state)
        for claimed in (1, 2):
            late = result(position, epoch=claimed, realization="r2")
            assert refused_codes(apply(state, late, 0.0).effects) != []
        transition = apply(state, result(position), 0.0)
        assert transition.effects == (ev.Committed(session=1, position=position, epoch=1),)
        state, position = transition.state, position + 1
    failed = after([ev.RealizationEnded(realization_id="r2", reason="no disk")], state)
    assert failed.active_epoch() == SERVING.active_epoch()
    assert apply(failed, result(position), 0.0).effects[0] == ev.Committed(session=1, position=position, epoch=1)


@pytest.mark.rule(56)
def test_when_state_is_lost_the_session_fails_and_nothing_is_made_up(tmp_path: Path) -> None:
    """A session that no plan can go on with ends in one typed, final error, and not one token more.

    Mutation: let `Sessions.session_closed` complete the session instead of failing it.
    """
    with NullSwarm(tmp_path, patience_seconds=0.2) as swarm:
        swarm.realize()
        answer = LongAnswer(swarm, PROMPT)
        answer.wait_for(15, seed=56)
        os.kill(swarm.agents["birch"].pid, signal.SIGKILL)
        error = answer.error()
        assert isinstance(error, StageLost)
        assert error.node == "birch"
        record = swarm.record(answer.session)
        assert (record.state, len(record.tokens)) == ("FAILED", error.committed)
        shown = tuple(answer.tokens)
        assert shown == record.tokens[: len(shown)] == expected(PROMPT, len(shown)).tokens
        swarm.realize(("amber",))
        assert swarm.record(answer.session) == record


@pytest.mark.rule(59)
def test_two_claims_to_one_scope_stop_the_serving(tmp_path: Path) -> None:
    """A second Coordinator is refused while the lease runs; one that lost its lease stops instead of guessing.

    Mutation: let `Ledger.acquire_lease` take a running lease, or ignore the failure of `renew_lease`.
    """
    with NullSwarm(tmp_path, ("amber",)) as swarm:
        with pytest.raises(AuthorityUncertain):
            NullSwarm(tmp_path)
        swarm.realize()
        answer = LongAnswer(swarm, PROMPT)
        answer.wait_for(5)
        rival = sqlite3.connect(swarm.settings.ledger)
        rival.execute("UPDATE lease SET holder='rival', term=term+1, until=until+60")
        rival.commit()
        rival.close()
        assert isinstance(answer.error(), AuthorityUncertain)
        with pytest.raises(AuthorityUncertain, match="somebody else"):
            swarm.status()
        with pytest.raises(AuthorityUncertain, match="rival"):
            NullSwarm(tmp_path)
    kept = Ledger(tmp_path / "ledger")
    commits = [row.token for row in kept.commits(answer.session)]
    kept.close()
    assert commits == list(expected(PROMPT, len(commits)).tokens)


@pytest.mark.rule(65)
def test_one_model_is_cut_for_each_plan_anew(swarm: NullSwarm) -> None:
    """One problem, one graph and the same prices: short and long prompts and a reservation are planned with other
    cuts, and each plan runs as an epoch of its own, with the same tokens.

    Mutation: let `building._atoms` offer one cut alone, such as that in the middle.
    """
    problem = make_problem(NUM_UNITS, representations=("fp32",))
    problem = msgspec.structs.replace(
        problem, implementations=(Implementation(primitive="null", representation="fp32"),)
    )
    economics = make_economics({"amber": 0.01, "birch": 0.01}, representations=("fp32",))
    graph = make_graph({"amber": ENOUGH, "birch": ENOUGH})
    short, long = Workload(prompt_tokens=8, output_tokens=16), Workload(prompt_tokens=800, output_tokens=3)
    little = Policy(reservations=(Reservation("amber", ENOUGH - 3000),))
    seen = []
    for workload, policy in ((short, Policy()), (long, Policy()), (long, little)):
        decision = decide(problem, graph, workload, policy, economics)
        assert decision.plan is not None
        epoch = swarm.realize(plan=decision.plan).epoch
        tokens = swarm.generate(PROMPT, 5).record.tokens
        seen.append((tuple(placement.end_unit for placement in decision.plan.placements), epoch))
        assert tokens == expected(PROMPT, 5).tokens
        swarm.ask(m.Retire())
    assert len({ends for ends, _ in seen}) == len({epoch for _, epoch in seen}) == 3, seen


@pytest.mark.rule(75)
def test_every_altered_frame_is_refused_and_what_arrives_is_what_was_sent() -> None:
    """No bit of a boundary frame can change on its way without being noticed; unaltered ones arrive as they were.

    Mutation: take the checksum over the header alone, or do not compare it in `frames.decode`.
    """
    header = ADDRESS.header(FrameKind.BOUNDARY, 1, position=3, count=1, sample=True, sent_ns=1)
    parts = [bytes(part) for part in encode(header, bytes(range(64)))]
    for index, part in enumerate(parts):
        for bit in range(len(part) * 8):
            altered = bytearray(part)
            altered[bit // 8] ^= 1 << bit % 8
            with pytest.raises(WireError):
                decode([*parts[:index], bytes(altered), *parts[index + 1 :]])
    frame = decode(parts)
    assert (frame.header, bytes(frame.payload)) == (header, parts[1])

    whole, split = Ring([]), Ring([1, 2, 3, 4, 5])
    for ring in (whole, split):
        ring.start(1, PROMPT, SessionTerms(len(PROMPT), 20, 99, (), 2), 8)
        ring.run()
    assert split.tokens == whole.tokens


@pytest.mark.rule("75b")
def test_a_replay_is_compared_bit_for_bit(serving: NullSwarm) -> None:
    """A replay equals its record in every logits digest; one digest that differs ends it at that position.

    Mutation: compare tokens alone in `ActiveSession.difference`, or go on after a difference.
    """
    record = serving.generate(PROMPT, 12).record
    replay = serving.ask(m.Replay(session=record.session))
    assert isinstance(replay, m.Generated)
    assert replay.record.logits_digests == record.logits_digests

    position = len(PROMPT) + 7
    altered = sqlite3.connect(serving.settings.ledger)
    altered.execute("UPDATE commits SET logits_digest='0' WHERE session=? AND position=?", (record.session, position))
    altered.commit()
    altered.close()
    with pytest.raises(ReplayDiverged) as diverged:
        serving.ask(m.Replay(session=record.session))
    assert diverged.value.position == position
