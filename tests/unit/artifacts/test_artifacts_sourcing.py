"""Who serves what: in the order of the policy, evenly, with a reason, the same for every order of arguments."""

import dataclasses
import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferswarm.artifacts import taxonomy
from inferswarm.artifacts.identity import Transform
from inferswarm.artifacts.inventory import Held, Inventory, SourceIndex
from inferswarm.artifacts.source_choices import SourceFacts, SourcingPlan, Want
from inferswarm.artifacts.sources import Source
from inferswarm.artifacts.sourcing import choose_again, choose_sources
from inferswarm.documents import digest_bytes, read_document, write_document
from inferswarm.errors import ArtifactError, SpecError
from tests.unit.artifacts.artifacts_support import artifact

replace = msgspec.structs.replace
LOCAL, ONLY_LOCAL = "PREFER_LOCAL_VERIFIED", "REQUIRE_LOCAL_VERIFIED"
REMOTE, ONLY_REMOTE = "PREFER_REMOTE_AUTHORIZED", "REQUIRE_REMOTE_AUTHORIZED"
ORIGIN = Source("origin", "https://models.example/m.gguf")
ANN, BOB, CAT = (Source(name, f"http://{name}:7000") for name in ("ann", "bob", "cat"))
X, Y, Z = artifact("x"), artifact("y"), artifact("z")


def holding(node, *artifacts):
    held = {a.sha256: Held(sha256=a.sha256, length=a.length, role="required") for a in artifacts}
    return Inventory(
        node=node, store="s1", sequence=1, held=tuple(sorted(held.values(), key=lambda item: item.sha256))
    )


def facts_of(*inventories, origin=ORIGIN, **more):
    return SourceFacts(index=SourceIndex(inventories), origin=origin, **more)


def wants(*artifacts, node="ann"):
    return [Want("stage-0", node, item) for item in artifacts]


def sources(plan):
    return {choice.artifact: None if choice.source is None else choice.source.id for choice in plan.choices}


def choose(facts, *artifacts, policy=LOCAL, node="ann"):
    chosen = sources(choose_sources(wants(*artifacts, node=node), facts, policy, 1))
    return [chosen[item.id] for item in artifacts]


@pytest.mark.rule(82)
def test_one_participant_is_filled_by_two_peers_and_the_origin():
    """Three artifacts: each peer holds one, nobody the third, and each is asked for what it has.

    Mutation: let `choose_sources` give all of a participant's artifacts to the source of the first, or let `_remote`
    leave out the origin where a peer advertises something.
    """
    facts = facts_of(holding(BOB, X), holding(CAT, Y))
    plan = choose_sources(wants(X, Y, Z), facts, LOCAL, 1)
    assert sources(plan) == {X.id: "bob", Y.id: "cat", Z.id: "origin"}
    assert [plan.bytes_from(source) for source in ("bob", "cat", "origin")] == [10, 10, 10]


def test_local_comes_before_peers_and_peers_before_the_origin():
    facts = facts_of(holding(ANN, X), holding(BOB, X, Y))
    assert choose(facts, X, Y, Z) == [None, "bob", "origin"]


@pytest.mark.parametrize(
    ("policy", "held_locally", "held_by_a_peer", "from_origin", "chosen"),
    [
        (LOCAL, True, True, True, None),
        (LOCAL, False, True, True, "bob"),
        (LOCAL, False, False, True, "origin"),
        (ONLY_LOCAL, True, True, True, None),
        (ONLY_LOCAL, False, True, True, "refused"),
        (REMOTE, True, True, True, "bob"),
        (REMOTE, True, False, True, "origin"),
        (REMOTE, True, False, False, None),
        (REMOTE, False, False, False, "refused"),
        (ONLY_REMOTE, True, True, True, "bob"),
        (ONLY_REMOTE, True, False, False, "refused"),
        (LOCAL, False, False, False, "refused"),
    ],
)
def test_each_policy_means_what_it_says(policy, held_locally, held_by_a_peer, from_origin, chosen):
    there = [holding(ANN, X)] * held_locally + [holding(BOB, X)] * held_by_a_peer
    facts = facts_of(*there, origin=ORIGIN if from_origin else None)
    if chosen == "refused":
        with pytest.raises(ArtifactError, match=f"under {policy}") as caught:
            choose(facts, X, policy=policy)
        assert (caught.value.code, caught.value.subject) == (taxonomy.SOURCE_UNAVAILABLE, X.id)
    else:
        assert choose(facts, X, policy=policy) == [chosen]


def test_a_refusal_names_every_source_and_its_reason():
    facts = facts_of(holding(BOB, X), excluded={("bob", X.id)}, origin=None)
    with pytest.raises(ArtifactError, match=r"bob: excluded for this artifact.*|origin: it may not be asked"):
        choose(facts, X)
    with pytest.raises(ArtifactError, match="bob: the policy is REQUIRE_LOCAL_VERIFIED"):
        choose(facts_of(holding(BOB, X)), X, policy=ONLY_LOCAL)


def test_what_has_no_digest_comes_from_the_origin_alone():
    unknown = artifact("x", known=False)
    facts = facts_of(holding(ANN, X), holding(BOB, X))
    assert choose(facts, unknown) == ["origin"]


def test_a_transforms_result_never_comes_from_the_origin():
    made = replace(X, kind="transform", transform=Transform(id="repack", version="1", source=Y.sha256, context=()))
    assert choose(facts_of(holding(BOB, made)), made) == ["bob"]
    with pytest.raises(ArtifactError, match="it has what this was made from"):
        choose(facts_of(), made)


# -- speed, load and standing --


def test_the_peer_that_is_done_first_is_asked_first():
    facts = facts_of(holding(BOB, X), holding(CAT, X), seconds_per_byte={("bob", "ann"): 2e-8, ("cat", "ann"): 1e-8})
    plan = choose_sources(wants(X), facts, LOCAL, 1)
    assert sources(plan) == {X.id: "cat"}
    assert plan.choices[0].seconds == pytest.approx(10 * 1e-8)
    assert [item.source_id for item in plan.choices[0].passed_over] == ["bob", "origin"]
    loaded = dataclasses.replace(facts, assigned_bytes={"cat": 1_000})
    assert choose(loaded, X) == ["bob"]


def test_ties_are_broken_by_the_sources_ids():
    assert choose(facts_of(holding(CAT, X), holding(BOB, X)), X) == ["bob"]


def test_sources_of_different_speed_are_done_together():
    parts = [artifact(f"{index:03d}", 100) for index in range(90)]
    pace = {("bob", "ann"): 1.0, ("cat", "ann"): 2.0}
    facts = facts_of(holding(BOB, *parts), holding(CAT, *parts), seconds_per_byte=pace)
    plan = choose_sources(wants(*parts), facts, LOCAL, 1)
    done = {source: plan.bytes_from(source) * pace[source, "ann"] for source in ("bob", "cat")}
    assert done == {"bob": 6_000, "cat": 6_000}
    assert max(choice.seconds for choice in plan.choices) == 6_000


def test_what_one_source_alone_has_is_placed_before_what_several_have():
    facts = facts_of(holding(BOB, X, Y), holding(CAT, X))
    assert choose(facts, X, Y) == ["cat", "bob"]
    facts = facts_of(holding(BOB, X), holding(CAT, X, Y))
    assert choose(facts, X, Y) == ["bob", "cat"]


@given(st.lists(st.integers(1, 1_000), min_size=1, max_size=30), st.lists(st.floats(0.1, 10), min_size=3, max_size=3))
@settings(max_examples=50, derandomize=True, deadline=None)
def test_finishing_times_differ_by_no_more_than_one_artifact(lengths, paces):
    parts = [artifact(f"{index:03d}", length) for index, length in enumerate(lengths)]
    peers = [ANN, BOB, CAT]
    pace = {(peer.id, "dan"): value for peer, value in zip(peers, paces, strict=True)}
    facts = facts_of(*(holding(peer, *parts) for peer in peers), seconds_per_byte=pace)
    plan = choose_sources(wants(*parts, node="dan"), facts, LOCAL, 1)
    done = [plan.bytes_from(peer.id) * pace[peer.id, "dan"] for peer in peers]
    largest = max(lengths) * max(paces)
    assert max(done) - min(done) <= largest * (1 + 1e-9)


@pytest.mark.rule(85)
def test_a_slow_source_is_asked_last_and_stays_allowed():
    """A throttled peer comes after the origin; where nobody else has the artifact, it serves.

    Mutation: let `_remote` drop the sources that are slow, or ignore `facts.slow`.
    """
    facts = facts_of(holding(BOB, X), holding(CAT, X), slow={"bob"})
    assert choose(facts, X) == ["cat"]
    alone = facts_of(holding(BOB, X), slow={"bob"})
    assert choose(alone, X) == ["origin"]
    plan = choose_sources(wants(X), dataclasses.replace(alone, origin=None), LOCAL, 1)
    assert sources(plan) == {X.id: "bob"}
    assert plan.choices[0].reason == "a peer that is slow, the only source that may serve it"


def test_a_quarantined_pair_is_out_and_the_source_serves_other_artifacts():
    facts = facts_of(holding(BOB, X, Y), excluded={("bob", X.id)})
    assert choose(facts, X, Y) == ["origin", "bob"]
    plan = choose_sources(wants(X), facts, LOCAL, 1)
    assert "excluded" in plan.choices[0].passed_over[0].reason


def test_a_path_that_was_not_measured_counts_as_the_slowest_and_promises_no_time():
    facts = facts_of(holding(BOB, X), holding(CAT, X), seconds_per_byte={("cat", "ann"): 1e-8, ("bob", "dan"): 1.0})
    assert choose(facts, X) == ["cat"]
    plan = choose_sources(wants(X), facts_of(holding(BOB, X)), LOCAL, 1)
    assert (sources(plan), plan.choices[0].seconds) == ({X.id: "bob"}, None)


@pytest.mark.parametrize("pace", [0.0, -1.0, float("nan"), float("inf")])
def test_a_speed_that_is_none_is_refused(pace):
    with pytest.raises(SpecError, match="seconds_per_byte"):
        facts_of(seconds_per_byte={("bob", "ann"): pace})


def test_the_order_of_what_is_known_changes_nothing():
    parts = [artifact(f"{index:03d}", 10 * (index % 3 + 1)) for index in range(6)]
    inventories = [holding(BOB, *parts[:4]), holding(CAT, *parts[1:]), holding(ANN, parts[5])]
    asked = [*wants(*parts), *(want._replace(participant="stage-1") for want in wants(*parts[:2], node="dan"))]
    plans = {
        choose_sources(some, facts_of(*others, slow=["cat"]), LOCAL, 1)
        for some in (asked, asked[::-1], asked[3:] + asked[:3])
        for others in itertools.permutations(inventories)
    }
    assert len(plans) == 1
    plan = plans.pop()
    assert read_document(SourcingPlan, write_document(plan), "file") == plan


# -- after a failure --


def choice_of(plan, item):
    return next(choice for choice in plan.choices if choice.artifact == item.id)


def test_after_a_failure_another_source_is_chosen_as_a_new_attempt():
    facts = facts_of(holding(BOB, X, Y), holding(CAT, X))
    plan = choose_sources(wants(X, Y), facts, LOCAL, 5)
    failed = choice_of(plan, X)
    first = failed.source.id
    again = choose_again(plan, failed, "other bytes", wants(X)[0], facts)
    second = choice_of(again, X)
    assert {first, second.source.id} == {"bob", "cat"}
    assert (second.attempt, again.generation, again.failed) == (2, 5, ((first, X.id),))
    assert second.reason.endswith(f"attempt 1 from {first} failed: other bytes")
    assert choice_of(again, Y) == choice_of(plan, Y)
    third = choose_again(again, second, "silent", wants(X)[0], facts)
    assert (sources(third)[X.id], choice_of(third, X).attempt) == ("origin", 3)
    with pytest.raises(ArtifactError, match="no source may serve"):
        choose_again(third, choice_of(third, X), "gone", wants(X)[0], facts)


def test_what_was_held_and_turned_out_wrong_is_fetched():
    facts = facts_of(holding(ANN, X))
    plan = choose_sources(wants(X), facts, LOCAL, 1)
    again = choose_again(plan, choice_of(plan, X), "tampered", wants(X)[0], facts)
    assert (sources(again), again.failed) == ({X.id: "origin"}, (("ann", X.id),))


def test_only_an_attempt_of_the_plan_can_fail():
    facts = facts_of(holding(BOB, X, Y))
    plan = choose_sources(wants(X, Y), facts, LOCAL, 1)
    failed = choice_of(plan, X)
    for other, want in (
        (replace(failed, attempt=2), wants(X)[0]),
        (failed, wants(Y)[0]),
        (failed, wants(X, node="dan")[0]),
    ):
        with pytest.raises(ArtifactError, match="none of generation 1") as caught:
            choose_again(plan, other, "late", want, facts)
        assert caught.value.code == taxonomy.RECONCILIATION_MISMATCH


def test_every_choice_and_every_other_source_has_a_reason():
    facts = facts_of(holding(ANN, X), holding(BOB, X, Y), holding(CAT, Y), slow={"cat"})
    plan = choose_sources(wants(X, Y, Z), facts, LOCAL, 1)
    for choice in plan.choices:
        assert choice.reason
        named = {item.source_id for item in choice.passed_over} | {choice.source.id if choice.source else "ann"}
        holders = {a.id for a in facts.index.advertisers(digest_of(choice.artifact), 10)}
        assert named == holders | {"origin"}
        assert all(item.reason for item in choice.passed_over)


def digest_of(artifact_id):
    return next(item.sha256 for item in (X, Y, Z) if item.id == artifact_id)


def test_words_stand_for_contents():
    assert digest_bytes(b"x") == X.sha256
