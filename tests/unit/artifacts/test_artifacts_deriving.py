"""From a plan's requirements to exact sets of artifacts; whatever is not exact is refused."""

import msgspec
import pytest

from inferswarm.artifacts import taxonomy
from inferswarm.artifacts.deriving import derive_artifacts
from inferswarm.artifacts.exactness import Need, check_artifacts, guard_participant_exact
from inferswarm.artifacts.identity import Artifact, Transform
from inferswarm.artifacts.manifest import manifest_of
from inferswarm.artifacts.participant_artifacts import ParticipantArtifacts, PlanArtifacts
from inferswarm.artifacts.requirement import coalesce
from inferswarm.artifacts.types import ByteRange
from inferswarm.documents import read_document, write_document
from inferswarm.errors import ArtifactError, DocumentError
from tests.unit.artifacts.artifacts_support import (
    PLAN,
    PROVENANCE,
    SPANS,
    artifact,
    make_rig,
    object_of,
    requirement_of,
    tensor,
)

replace = msgspec.structs.replace
OTHER = "sha256:" + "c" * 64


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    return make_rig(tmp_path_factory.mktemp("model"))


def code_of(call, *arguments):
    with pytest.raises(ArtifactError) as caught:
        call(*arguments)
    return caught.value.code


@pytest.mark.rule(76)
def test_participants_get_their_own_bytes_and_no_others(rig):
    """Each set has exactly the bytes of the requirement, as artifacts; nobody gets the whole model.

    Mutation: let `_needed_entries` return all entries of the manifest, or drop the last test of `_check_states`.
    """
    plan = rig.derive(SPANS)
    for need, found in zip(rig.needs(SPANS), plan.participants, strict=True):
        assert found.bytes == found.weight_bytes == need.requirement.bytes < rig.manifest.weight_bytes
        assert coalesce(a.range for a in found.artifacts) == coalesce(need.requirement.ranges(0))
        assert {state for a in found.artifacts for state in a.states} == set(need.declaration)
    everything = {a.range for found in plan.participants for a in found.artifacts}
    assert everything == {entry.range for entry in rig.manifest.entries}


def test_what_several_participants_hold_is_shared_and_the_rest_assigned(rig):
    plan = rig.derive(SPANS)
    classes = {(p.participant, a.states): a.requirement_class for p in plan.participants for a in p.artifacts}
    assert {key for key, kind in classes.items() if kind == "shared"} == {
        ("stage-0", ("token-table",)),
        ("stage-2", ("token-table",)),
    }
    assert set(classes.values()) == {"shared", "assigned"}
    shared = [a for p in plan.participants for a in p.artifacts if a.requirement_class == "shared"]
    assert shared[0] == shared[1]


def test_artifacts_carry_the_manifests_digests_and_provenance(rig):
    by_range = {entry.range: entry.sha256 for entry in rig.manifest.entries}
    for found in rig.derive(SPANS).participants:
        for a in found.artifacts:
            assert (a.sha256, a.provenance, a.origin) == (by_range[a.range], PROVENANCE, rig.manifest.files[0])


def test_every_document_chains_to_the_plan(rig):
    plan = rig.derive(SPANS)
    assert read_document(PlanArtifacts, write_document(plan), "file") == plan
    assert plan.of("stage-1").problem_digest == rig.needs(SPANS)[1].requirement.problem_digest
    other = rig.derive(SPANS, plan_digest=OTHER)
    assert other.id != plan.id
    assert all(a.id != b.id for a, b in zip(plan.participants, other.participants, strict=True))
    assert {a.id for a in plan.of("stage-1").artifacts} == {a.id for a in other.of("stage-1").artifacts}
    with pytest.raises(ValueError, match="of another plan"):
        replace(plan, participants=(plan.participants[0], other.participants[1]))
    with pytest.raises(ValueError, match="of one participant"):
        replace(plan, participants=plan.participants[:1] * 2)
    with pytest.raises(KeyError):
        plan.of("stage-9")


def test_one_participant_may_hold_everything(rig):
    (found,) = rig.derive([(0, 6)]).participants
    assert found.bytes == rig.manifest.weight_bytes


OBJECT = object_of(
    tensor("low", 0, 10), tensor("mid", 20, 30), tensor("high", 40, 60), tensor("far", 5, 9, file=1), lengths=(60, 9)
)
MANIFEST = manifest_of(OBJECT, PROVENANCE)
DECLARED = {"split": ("low", "high", "far"), "one": ("mid",)}


def need_of(declared, model_object=OBJECT, participant="stage-0"):
    names = [name for tensors in declared.values() for name in tensors]
    return Need(requirement_of(model_object, names, tuple(declared), participant), declared)


@pytest.mark.rule(78)
def test_a_state_of_separate_artifacts_and_an_artifact_of_several_states():
    """One state lies in three places of two files, and one stored tensor makes two states of its participant.

    Mutation: let `states_of_entries` keep the last state alone, or let `derive_artifacts` span a state's first to
    last byte with one artifact.
    """
    split = {"split": DECLARED["split"]}
    (found,) = derive_artifacts(MANIFEST, OBJECT, PLAN, [need_of(split)], ("split", "one")).participants
    assert [(a.origin.uri, a.range.start, a.range.end, a.states) for a in found.artifacts] == [
        ("/0", 0, 10, ("split",)),
        ("/0", 40, 60, ("split",)),
        ("/1", 5, 9, ("split",)),
    ]
    both = {"split": ("low", "high"), "one": ("mid", "low")}
    (found,) = derive_artifacts(MANIFEST, OBJECT, PLAN, [need_of(both)], ("split", "one", "rest")).participants
    assert found.artifacts[0].states == ("one", "split")


def test_an_artifact_that_makes_a_shared_state_among_others_is_shared():
    needs = [need_of({"s": ("low",), "own": ("low", "mid")}), need_of({"s": ("low",)}, participant="stage-1")]
    first, second = derive_artifacts(MANIFEST, OBJECT, PLAN, needs, ("s", "own", "rest")).participants
    assert [(a.states, a.requirement_class) for a in first.artifacts] == [
        (("own", "s"), "shared"),
        (("own",), "assigned"),
    ]
    assert [(a.states, a.requirement_class) for a in second.artifacts] == [(("s",), "shared")]


def test_rows_of_a_stored_tensor_are_one_artifact_and_some_of_them_are_none():
    cut = object_of(tensor("q", 0, 10, stored_name="qk"), tensor("k", 10, 20, stored_name="qk"), tensor("n", 20, 30))
    manifest = manifest_of(cut, PROVENANCE)
    need = need_of({"block": ("q", "k")}, cut)
    (found,) = derive_artifacts(manifest, cut, PLAN, [need], ("block", "norm")).participants
    assert [a.range for a in found.artifacts] == [ByteRange(0, 20)]
    with pytest.raises(ArtifactError, match="not all of a stored tensor") as caught:
        derive_artifacts(manifest, cut, PLAN, [need_of({"block": ("q",)}, cut)], ("block", "norm"))
    assert caught.value.code == taxonomy.UNDECLARED


def test_metadata_is_what_was_named_and_makes_no_state():
    texts = [replace(MANIFEST.files[0], uri=f"/m/{name}", length=7) for name in ("config.json", "tokenizer.json")]
    manifest = manifest_of(OBJECT, PROVENANCE, metadata=texts)
    arguments = (manifest, OBJECT, PLAN, [need_of({"one": ("mid",)})], ("one", "split"))
    (found,) = derive_artifacts(*arguments, ["config.json"]).participants
    assert [(a.kind, a.requirement_class, a.states) for a in found.artifacts] == [
        ("byte_range", "assigned", ("one",)),
        ("whole_object", "metadata", ()),
    ]
    assert (found.bytes, found.weight_bytes) == (17, 10)
    assert code_of(derive_artifacts, *arguments, ["merges.txt"]) == taxonomy.MALFORMED
    need = arguments[3][0]
    assert code_of(check_artifacts, found, manifest, PLAN, need, ["tokenizer.json"]) == taxonomy.UNDECLARED
    without = replace(found, artifacts=found.artifacts[:1])
    assert code_of(check_artifacts, without, manifest, PLAN, need, ["config.json"]) == taxonomy.COVERAGE_INCOMPLETE


# -- documents from elsewhere --

(GOOD,) = derive_artifacts(MANIFEST, OBJECT, PLAN, [need_of(DECLARED)], DECLARED).participants
LOW, MID, HIGH, FAR = GOOD.artifacts


def with_artifacts(*artifacts):
    return replace(GOOD, artifacts=artifacts)


def test_the_set_that_was_derived_passes():
    assert [a.states for a in GOOD.artifacts] == [("split",), ("one",), ("split",), ("split",)]
    check_artifacts(GOOD, MANIFEST, PLAN, need_of(DECLARED))


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (replace(GOOD, plan_digest=OTHER), taxonomy.IDENTITY_MISMATCH),
        (replace(GOOD, problem_digest=OTHER), taxonomy.IDENTITY_MISMATCH),
        (replace(GOOD, manifest_digest=OTHER), taxonomy.IDENTITY_MISMATCH),
        (replace(GOOD, participant="stage-1"), taxonomy.IDENTITY_MISMATCH),
        (with_artifacts(LOW, MID, HIGH), taxonomy.COVERAGE_INCOMPLETE),
        (with_artifacts(LOW, HIGH, FAR), taxonomy.COVERAGE_INCOMPLETE),
        (with_artifacts(), taxonomy.COVERAGE_INCOMPLETE),
        (with_artifacts(LOW, replace(MID, states=("one", "split")), HIGH, FAR), taxonomy.UNDECLARED),
        (with_artifacts(LOW, replace(MID, states=("another",)), HIGH, FAR), taxonomy.UNDECLARED),
        (with_artifacts(replace(LOW, states=("one",)), MID, HIGH, FAR), taxonomy.UNDECLARED),
        (with_artifacts(LOW, replace(MID, range=ByteRange(20, 29), length=9), HIGH, FAR), taxonomy.MALFORMED),
        (with_artifacts(replace(LOW, range=ByteRange(0, 30), length=30), HIGH, FAR), taxonomy.MALFORMED),
        (
            with_artifacts(LOW, replace(MID, provenance=replace(PROVENANCE, revision="r2")), HIGH, FAR),
            taxonomy.IDENTITY_MISMATCH,
        ),
        (
            with_artifacts(LOW, replace(MID, origin=replace(MID.origin, version="etag:2")), HIGH, FAR),
            taxonomy.IDENTITY_MISMATCH,
        ),
        (with_artifacts(LOW, replace(MID, origin=replace(MID.origin, uri="/2")), HIGH, FAR), taxonomy.MALFORMED),
        (with_artifacts(LOW, replace(MID, sha256=OTHER), HIGH, FAR), taxonomy.IDENTITY_MISMATCH),
    ],
)
def test_a_set_that_was_altered_is_refused(found, code):
    assert code_of(check_artifacts, found, MANIFEST, PLAN, need_of(DECLARED)) == code


def test_an_artifact_of_another_participants_state_is_refused():
    mine = {"split": DECLARED["split"]}
    assert code_of(check_artifacts, GOOD, MANIFEST, PLAN, need_of(mine)) == taxonomy.UNDECLARED


def test_a_transform_is_no_entry_of_a_manifest():
    made = Transform(id="repack", version="1", source=OTHER, context=())
    changed = replace(MID, kind="transform", transform=made, sha256=OTHER)
    found = with_artifacts(LOW, changed, HIGH, FAR)
    assert code_of(check_artifacts, found, MANIFEST, PLAN, need_of(DECLARED)) == taxonomy.MALFORMED


def test_the_same_bytes_twice_are_refused():
    with pytest.raises(ValueError, match="2 artifacts lie in 1 places"):
        with_artifacts(LOW, replace(LOW, states=("one",)))


def test_a_part_never_acquires_all_weights():
    own = {"one": ("mid",)}
    states = ("one", "split")
    assert code_of(guard_participant_exact, GOOD, MANIFEST, own, states) == taxonomy.WHOLE_OBJECT_UNDECLARED
    guard_participant_exact(GOOD, MANIFEST, states, states)
    guard_participant_exact(with_artifacts(MID), MANIFEST, own, states)
    assert code_of(guard_participant_exact, GOOD, MANIFEST, ("else",), states) == taxonomy.UNDECLARED


def test_whole_model_injection_is_refused_when_deriving():
    greedy = {"one": ("low", "mid", "high", "far")}
    code = code_of(derive_artifacts, MANIFEST, OBJECT, PLAN, [need_of(greedy)], ("one", "split"))
    assert code == taxonomy.WHOLE_OBJECT_UNDECLARED


@pytest.mark.parametrize(
    ("declared", "code"),
    [
        ({"one": ("mid",), "empty": ()}, taxonomy.COVERAGE_INCOMPLETE),
        ({"one": ("mid", "absent")}, taxonomy.COVERAGE_INCOMPLETE),
    ],
)
def test_states_without_bytes_are_refused(declared, code):
    assert code_of(derive_artifacts, MANIFEST, OBJECT, PLAN, [need_of(declared)], (*declared, "rest")) == code


def test_a_requirement_of_another_object_is_refused():
    longer = object_of(*OBJECT.tensors, lengths=(61, 9))
    need = need_of({"one": ("mid",)}, longer)
    assert code_of(derive_artifacts, MANIFEST, longer, PLAN, [need], ("one", "x")) == taxonomy.IDENTITY_MISMATCH
    assert code_of(derive_artifacts, MANIFEST, OBJECT, PLAN, [need], ("one", "x")) == taxonomy.IDENTITY_MISMATCH


@pytest.mark.rule(23)
@pytest.mark.parametrize("field", ["id", "version"])
def test_a_transform_without_its_name_or_version_is_malformed(field):
    """A result that does not say which procedure made it, in which version, is no artifact.

    Mutation: drop the test of `id` and `version` from `Transform`.
    """
    fields = {"id": "repack", "version": "1", "source": OTHER, "context": ()}
    with pytest.raises(ValueError, match="an id and a version"):
        Transform(**{**fields, field: ""})
    made = replace(artifact("abc"), kind="transform", transform=Transform(**fields))
    text = write_document(made)
    assert read_document(Artifact, text, "file") == made
    for broken in (text.replace(f'"{field}": "{fields[field]}"', f'"{field}": ""'),):
        assert broken != text
        with pytest.raises(DocumentError, match="an id and a version"):
            read_document(Artifact, broken, "file")
    with pytest.raises(ValueError, match="says how it was made"):
        replace(made, transform=msgspec.UNSET)


def test_a_set_is_read_strictly():
    text = write_document(GOOD)
    assert read_document(ParticipantArtifacts, text, "file") == GOOD
    with pytest.raises(DocumentError, match="participant"):
        read_document(ParticipantArtifacts, text.replace('"participant":', '"participants":'), "file")
