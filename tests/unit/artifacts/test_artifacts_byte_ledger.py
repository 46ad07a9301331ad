"""The ledger of bytes: its laws hold or it says where not; zeros come from its entries; logs of sources agree."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferswarm.artifacts import taxonomy
from inferswarm.artifacts.byte_ledger import ByteLedger, LedgerEvent
from inferswarm.artifacts.identity import UpstreamObject
from inferswarm.artifacts.ledger_checks import check_zeros, zero_invariants
from inferswarm.artifacts.participant_artifacts import ParticipantArtifacts, PlanArtifacts
from inferswarm.artifacts.reconciling import ServedLine, reconcile
from inferswarm.artifacts.types import ByteRange
from inferswarm.documents import read_document, write_document
from inferswarm.errors import ArtifactError, DocumentError
from tests.unit.artifacts.artifacts_support import PLAN, PROBLEM, artifact

replace = msgspec.structs.replace
WHOLE = UpstreamObject(uri="/0", length=100)
A, B = (
    replace(artifact(word), origin=WHOLE, range=ByteRange(start, start + 20), length=20)
    for word, start in (("a", 10), ("b", 50))
)
ALLOWED = {("stage-0", item.id, source) for item in (A, B) for source in ("origin", "bob")}


def set_of(*artifacts, participant="stage-0"):
    return ParticipantArtifacts(
        participant=participant, plan_digest=PLAN, problem_digest=PROBLEM, manifest_digest=PLAN, artifacts=artifacts
    )


PLANNED = PlanArtifacts(plan_digest=PLAN, manifest_digest=PLAN, participants=(set_of(A, B),))


def event(kind, item=A, num_bytes=20, source="", first=0, **more):
    fields = {"participant": "stage-0", "artifact": item.id, "bytes": num_bytes, "at_ns": "1", "source": source}
    if kind == "received":
        start = item.range.start + first
        fields |= {"object": item.origin.uri, "range": ByteRange(start, start + num_bytes), "content": item.sha256}
    return LedgerEvent(**{"kind": kind, **fields, **more})


def came(item=A, source="origin", num_bytes=20):
    """An artifact that came whole in one attempt."""
    return [event("received", item, num_bytes, source), event("acquired", item, num_bytes, source)]


def resumed(item=A):
    """12 B of it from bob, who was cut off, and the rest from the origin."""
    return [
        event("received", item, 12, "bob"),
        event("partial_staging", item, 12, "bob"),
        event("resumed_prefix", item, 12),
        event("received", item, 8, "origin", first=12),
        event("resume_transfer", item, 8, "origin"),
    ]


REQUIRED = [event("required", A), event("required", B)]
GOOD = [*REQUIRED, *resumed(A), *came(B, "bob"), event("materialized", A), event("coordinator_observed", A, 0)]


def code_of(call, *arguments):
    with pytest.raises(ArtifactError) as caught:
        call(*arguments)
    return caught.value.code


def check(events):
    ledger = ByteLedger(events)
    ledger.check_conservation()
    ledger.check_complete()


def test_a_complete_acquisition_passes():
    check(GOOD)
    check([*REQUIRED, event("cache_hit", A), *came(B)])
    ledger = ByteLedger(GOOD)
    assert ledger.events == tuple(GOOD)
    assert (ledger.total("received"), ledger.total("received", source="bob")) == (40, 32)
    assert (ledger.total("acquired", participant="stage-0"), ledger.total("acquired", participant="stage-1")) == (
        20,
        0,
    )


def test_every_end_of_an_attempt_explains_what_it_received():
    check([event("required", A), event("received", A, 20, "bob"), event("integrity_failure", A, 20, "bob"), *came(A)])
    check([event("required", A), *came(A), event("received", B, 7, "bob"), event("unrelated", B, 7, "bob")])
    check(
        [
            event("required", A),
            event("received", A, 12, "bob"),
            event("partial_staging", A, 12, "bob"),
            event("partial_discarded", A, 12),
            *came(A),
        ]
    )
    found_in_the_store = event("partial_found", A, 12)
    rest = [event("received", A, 8, "bob", first=12), event("resume_transfer", A, 8, "bob")]
    check([event("required", A), found_in_the_store, event("resumed_prefix", A, 12), *rest])


@pytest.mark.parametrize("place", range(2, 9))
def test_one_entry_less_breaks_a_law(place):
    without = GOOD[:place] + GOOD[place + 1 :]
    assert code_of(check, without) == taxonomy.RECONCILIATION_MISMATCH


@pytest.mark.parametrize("place", [0, 1, 3, 4, 6, 8])
@pytest.mark.parametrize("more", [-1, 1])
def test_one_byte_more_or_less_breaks_a_law(place, more):
    changed = [*GOOD]
    changed[place] = replace(changed[place], bytes=changed[place].bytes + more)
    assert code_of(check, changed) == taxonomy.RECONCILIATION_MISMATCH


@pytest.mark.parametrize("field", ["participant", "source", "artifact"])
def test_bytes_of_another_participant_source_or_artifact_explain_nothing(field):
    other = {"participant": "stage-1", "source": "cat", "artifact": B.id}[field]
    changed = [*GOOD]
    changed[6] = replace(changed[6], **{field: other})
    assert code_of(check, changed) == taxonomy.RECONCILIATION_MISMATCH


def test_a_kept_beginning_is_used_once_and_only_by_its_artifact():
    ledger = ByteLedger(resumed(A))
    for extra in (event("resumed_prefix", A, 1), event("partial_discarded", A, 1), event("resumed_prefix", B, 1)):
        assert code_of(ledger.append, extra) == taxonomy.RECONCILIATION_MISMATCH
    assert len(ledger.events) == 5


@given(
    st.lists(
        st.tuples(st.sampled_from([A, B]), st.sampled_from(["origin", "bob"]), st.integers(0, 20), st.integers(0, 3)),
        max_size=12,
    )
)
@settings(max_examples=60, derandomize=True, deadline=None)
def test_any_history_of_attempts_obeys_the_laws(attempts):
    """Interrupted, corrupt and foreign beginnings in any order, then whole artifacts."""
    events, kept = [*REQUIRED], {A.id: 0, B.id: 0}
    for item, source, num_bytes, end in attempts:
        if end == 3 and kept[item.id]:
            events.append(event("partial_discarded", item, kept[item.id]))
            kept[item.id] = 0
            continue
        first = kept[item.id]
        num_bytes = min(num_bytes, 20 - first)
        events.append(event("received", item, num_bytes, source, first=first))
        if end == 0:
            events += [event("integrity_failure", item, num_bytes, source), event("partial_discarded", item, first)]
            kept[item.id] = 0
        else:
            events.append(event("partial_staging", item, num_bytes, source))
            kept[item.id] += num_bytes
    for item in (A, B):
        first = kept[item.id]
        events += [
            event("resumed_prefix", item, first),
            event("received", item, 20 - first, "origin", first=first),
            event("resume_transfer", item, 20 - first, "origin"),
        ]
    check(events)
    assert all(item.value == 0 for item in zeros(events) if item.name != "coordinator_observed_bytes")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bytes": -1}, "-1 B"),
        ({"source": ""}, "names no source"),
        ({"range": msgspec.UNSET}, "which object and range"),
        ({"object": msgspec.UNSET}, "which object and range"),
        ({"bytes": 19}, "of a range of 20 B"),
    ],
)
def test_a_received_entry_says_what_it_is(changes, said):
    with pytest.raises(ValueError, match=said):
        replace(event("received", source="bob"), **changes)


def test_entries_are_read_strictly_and_kept():
    for item in GOOD:
        assert read_document(LedgerEvent, write_document(item), "wire") == item
    text = write_document(GOOD[0])
    for old, new in (('"required"', '"lost"'), ('"at_ns": "1"', '"at_ns": 1'), ('"bytes": 20', '"bytes": 20.5')):
        with pytest.raises(DocumentError):
            read_document(LedgerEvent, text.replace(old, new), "wire")


def test_the_table_has_a_row_for_each_class_and_source_that_has_entries():
    assert ByteLedger(GOOD).table().rows() == [
        ("acquired", "bob", 1, 20),
        ("coordinator_observed", "", 1, 0),
        ("materialized", "", 1, 20),
        ("partial_staging", "bob", 1, 12),
        ("received", "bob", 2, 32),
        ("received", "origin", 1, 8),
        ("required", "", 2, 40),
        ("resume_transfer", "origin", 1, 8),
        ("resumed_prefix", "", 1, 12),
    ]
    assert ByteLedger().table().columns == ["class", "source", "events", "bytes"]


# -- zeros --


def zeros(events, allowed=ALLOWED, serving_since_ns=2):
    return zero_invariants(ByteLedger(events), PLANNED, allowed, serving_since_ns)


def broken(events, **more):
    return {item.name: item.value for item in zeros(events, **more) if not item.holds}


@pytest.mark.rule(76)
def test_a_good_acquisition_proves_its_zeros():
    """Unrelated and unexplained bytes are 0 by the entries of what was received, and each has its mechanism.

    Mutation: let `_unrelated` return 0, or let `zero_invariants` report 0 for a guard that reported nothing.
    """
    found = zeros(GOOD)
    check_zeros(found)
    assert len({item.name for item in found}) == len(found) == 8
    assert all(item.mechanism for item in found)
    assert broken([*GOOD, event("received", A, 5, "bob", first=20)]).keys() >= {"unrelated_model_bytes_acquired"}
    assert broken(GOOD[:-1]) == {"coordinator_observed_bytes": None}


def outside(first, end, item=A, **more):
    fields = {"object": "/0", "range": ByteRange(first, end), **more}
    received = event("received", item, 20, "bob", content=msgspec.UNSET)
    return replace(received, bytes=end - first, **fields)


@pytest.mark.parametrize(
    ("extra", "name", "value"),
    [
        ([outside(25, 35)], "unrelated_model_bytes_acquired", 5),
        ([outside(0, 5, object="/elsewhere")], "unrelated_model_bytes_acquired", 5),
        ([outside(10, 30, participant="stage-1")], "unrelated_model_bytes_acquired", 20),
        ([outside(0, 10), outside(30, 50), outside(70, 100)], "unexplained_full_object_bytes", 100),
        ([event("unexplained_full_object", A, 7)], "unexplained_full_object_bytes", 7),
        ([event("received", A, 3, "bob")], "unexplained_received_bytes", 3),
        ([event("acquired", A, 3, "bob")], "unexplained_received_bytes", 3),
        (came(A, "eve"), "unauthorized_source_bytes", 20),
        (came(artifact("c"), "bob", 10), "unauthorized_source_bytes", 10),
        ([outside(10, 15, artifact=msgspec.UNSET, source="eve")], "unauthorized_source_bytes", 5),
        (came(A), "reacquired_verified_bytes", 20),
        ([event("materialized", A, 4, participant="stage-1")], "unverified_materialized_bytes", 4),
        ([event("coordinator_observed", A, 9)], "coordinator_observed_bytes", 9),
        ([event("received", A, 2, "bob", at_ns="2")], "steady_state_model_bytes_moved", 2),
    ],
)
def test_each_zero_is_broken_by_what_it_is_about(extra, name, value):
    assert broken([*GOOD, *extra])[name] == value
    with pytest.raises(ArtifactError) as caught:
        check_zeros(zeros([*GOOD, *extra]))
    assert caught.value.code == taxonomy.RECONCILIATION_MISMATCH


def test_a_whole_object_that_was_declared_whole_is_explained():
    whole = replace(A, kind="whole_object", range=ByteRange(0, 100), length=100)
    plan = PlanArtifacts(plan_digest=PLAN, manifest_digest=PLAN, participants=(set_of(whole),))
    ledger = ByteLedger([event("received", whole, 100, "bob"), event("acquired", whole, 100, "bob")])
    found = {item.name: item.value for item in zero_invariants(ledger, plan, {("stage-0", whole.id, "bob")})}
    assert found["unexplained_full_object_bytes"] == 0
    assert found["steady_state_model_bytes_moved"] is None


def test_what_is_unknown_is_no_zero():
    with pytest.raises(ArtifactError, match="coordinator_observed_bytes: is unknown, must be 0"):
        check_zeros(zeros(GOOD[:-1]))


def test_receiving_and_deleting_still_shows():
    no_artifact = {"artifact": msgspec.UNSET}
    thrown_away = [outside(30, 40, **no_artifact), event("unrelated", A, 10, "bob", **no_artifact)]
    ledger = ByteLedger([*GOOD, *thrown_away])
    ledger.check_conservation()
    assert broken([*GOOD, *thrown_away]) == {"unrelated_model_bytes_acquired": 10}


# -- the sources' own logs --

SERVED = [
    ServedLine(source="bob", object=A.sha256, bytes=15, complete=False),
    ServedLine(source="bob", object=B.sha256, bytes=20, complete=True),
    ServedLine(source="origin", object="/0", bytes=8, complete=True),
]


def test_logs_that_agree_pass():
    reconcile(ByteLedger(GOOD), SERVED)
    reconcile(ByteLedger(), [])


@pytest.mark.parametrize(
    "served",
    [
        SERVED[:2],
        SERVED[1:],
        [*SERVED, ServedLine(source="cat", object=A.sha256, bytes=1, complete=True)],
        [*SERVED, ServedLine(source="origin", object="/1", bytes=1, complete=True)],
        [*SERVED[:2], replace(SERVED[2], bytes=9)],
        [*SERVED[:2], replace(SERVED[2], bytes=7)],
        [replace(SERVED[0], bytes=11), *SERVED[1:]],
        [replace(SERVED[0], complete=True), *SERVED[1:]],
        [],
    ],
)
def test_a_log_that_differs_is_a_mismatch(served):
    assert code_of(reconcile, ByteLedger(GOOD), served) == taxonomy.RECONCILIATION_MISMATCH


def test_an_answer_that_was_never_received_is_a_mismatch():
    assert code_of(reconcile, ByteLedger(), SERVED[1:2]) == taxonomy.RECONCILIATION_MISMATCH
