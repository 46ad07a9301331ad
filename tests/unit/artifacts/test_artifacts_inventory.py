"""What Nodes say that they hold, who is believed, and what is missing after that."""

import msgspec
import pytest

from inferswarm.artifacts import taxonomy
from inferswarm.artifacts.delta import delta_of
from inferswarm.artifacts.inventory import Held, Inventory, InventoryBook, SourceIndex, inventory_of, receipt_of
from inferswarm.artifacts.participant_artifacts import ParticipantArtifacts
from inferswarm.artifacts.sources import Source
from inferswarm.artifacts.store import ContentStore, Use
from inferswarm.documents import digest_bytes, read_document, write_document
from inferswarm.errors import ArtifactError, DocumentError, SpecError
from tests.unit.artifacts.artifacts_support import PLAN, PROBLEM, SPANS, artifact, make_rig

replace = msgspec.structs.replace
TOKEN = "a swarm's token"
ANN, BOB = Source("node-ann", "http://ann:7000"), Source("node-bob", "http://bob:7000")


def content(word):
    return digest_bytes(word.encode())


def inventory(node=ANN, sequence=1, words=("x", "y"), length=10, store="s1"):
    held = [Held(sha256=content(word), length=length, role="required") for word in words]
    return Inventory(
        node=node, store=store, sequence=sequence, held=tuple(sorted(held, key=lambda item: item.sha256))
    )


def book():
    return InventoryBook(TOKEN, [ANN, BOB])


def accept(target, item, token=TOKEN):
    target.accept(item, receipt_of(item, token))


def code_of(call, *arguments):
    with pytest.raises(ArtifactError) as caught:
        call(*arguments)
    return caught.value.code


def test_the_newest_inventory_of_each_node_counts():
    known = book()
    accept(known, inventory(sequence=1))
    accept(known, inventory(sequence=4, words=("y",)))
    accept(known, inventory(BOB, sequence=2, words=("y", "z")))
    assert known.newest(ANN.id).sequence == 4
    index = known.index()
    assert index.advertisers(content("x"), 10) == ()
    assert index.advertisers(content("y"), 10) == (ANN, BOB)
    assert index.advertisers(content("z"), 10) == (BOB,)


def test_the_same_inventory_may_come_again():
    known, item = book(), inventory(sequence=3)
    accept(known, item)
    accept(known, item)
    assert known.newest(ANN.id) == item


@pytest.mark.parametrize("later", [inventory(sequence=4), inventory(sequence=5, words=("other",))])
def test_a_sequence_never_goes_back_and_has_one_content(later):
    known, item = book(), inventory(sequence=5)
    accept(known, item)
    assert code_of(accept, known, later) == taxonomy.RECONCILIATION_MISMATCH
    assert known.newest(ANN.id) == item


def test_a_content_may_be_kept_for_another_reason_under_one_number():
    known, item = book(), inventory()
    accept(known, item)
    held = tuple(replace(held, role="optional") for held in item.held)
    accept(known, replace(item, held=held))
    assert known.newest(ANN.id).held == held


def test_a_new_store_begins_anew_and_the_old_one_is_over():
    known = book()
    accept(known, inventory(sequence=9))
    accept(known, inventory(sequence=0, words=(), store="s2"))
    accept(known, inventory(BOB, sequence=3))
    assert known.index().advertisers(content("x"), 10) == (BOB,)
    assert code_of(accept, known, inventory(sequence=10)) == taxonomy.RECONCILIATION_MISMATCH


def test_a_node_says_what_its_store_holds(tmp_path):
    with ContentStore(tmp_path / "store") as store:
        assert inventory_of(ANN, store.inventory()).held == ()
        sha256 = store.publish(b"some bytes", use=Use("plan", "required"))
        optional = store.publish(b"other")
        item = inventory_of(ANN, store.inventory())
    known = book()
    accept(known, item)
    assert known.index().advertisers(sha256, 10) == (ANN,)
    assert {held.sha256: held.role for held in item.held} == {sha256: "required", optional: "optional"}


@pytest.mark.parametrize("stranger", [Source("node-eve", "http://ann:7000"), Source(ANN.id, "http://eve:7000")])
def test_only_registered_nodes_are_believed_and_only_where_they_are_registered(stranger):
    known = book()
    assert code_of(accept, known, inventory(stranger)) == taxonomy.UNAUTHORIZED
    assert known.newest(stranger.id) is None


@pytest.mark.parametrize(
    "forge",
    [
        lambda receipt: replace(receipt, signature="00" * 32),
        lambda receipt: replace(receipt, signature="not hexadecimal"),
        lambda receipt: replace(receipt, signature=""),
        lambda receipt: replace(receipt, sequence=2),
        lambda receipt: replace(receipt, node_id=BOB.id),
        lambda receipt: replace(receipt, inventory_digest=content("other")),
        lambda receipt: receipt_of(inventory(words=("other",)), TOKEN),
        lambda receipt: receipt_of(inventory(), "another swarm's token"),
        lambda receipt: replace(receipt, signature=receipt_of(inventory(BOB), TOKEN).signature),
    ],
)
def test_a_receipt_is_the_nodes_own_for_this_inventory(forge):
    known, item = book(), inventory()
    assert code_of(known.accept, item, forge(receipt_of(item, TOKEN))) == taxonomy.UNAUTHORIZED
    assert known.newest(ANN.id) is None


def test_an_empty_token_and_a_node_twice_are_refused():
    with pytest.raises(SpecError, match="token"):
        InventoryBook("", [ANN])
    with pytest.raises(ValueError, match="registered twice"):
        InventoryBook(TOKEN, [ANN, replace(BOB, id=ANN.id)])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"sequence": 1', '"sequence": -1', "sequence"),
        ('"length": 10', '"length": -1', "length of -1"),
        ('"role": "required"', '"role": "loved"', "loved"),
        ('"endpoint": "http://ann:7000"', '"endpoint": ""', "an id and an endpoint"),
    ],
)
def test_an_inventory_is_read_strictly(old, new, said):
    text = write_document(inventory())
    assert read_document(Inventory, text, "wire") == inventory()
    with pytest.raises(DocumentError, match=said):
        read_document(Inventory, text.replace(old, new), "wire")


def test_contents_are_sorted_and_named_once():
    item = inventory()
    for held in (item.held[::-1], item.held[:1] * 2):
        with pytest.raises(ValueError, match="stands after"):
            replace(item, held=held)


def test_who_advertises_another_length_does_not_advertise_the_content():
    index = SourceIndex([inventory(ANN), inventory(BOB, length=11)])
    assert index.advertisers(content("x"), 10) == (ANN,)
    assert index.advertisers(content("x"), 12) == ()


# -- what is missing --


def required(*artifacts):
    return ParticipantArtifacts(
        participant="stage-0", plan_digest=PLAN, problem_digest=PROBLEM, manifest_digest=PLAN, artifacts=artifacts
    )


def test_what_is_missing_is_what_is_not_held_verified():
    x, z, unknown = artifact("x"), artifact("z", 20), artifact("y", known=False)
    delta = delta_of(required(x, z, unknown), inventory(words=("x", "y")), 1)
    assert (delta.missing, delta.missing_bytes) == ((z.id, unknown.id), 30)
    assert (delta.held, delta.held_bytes) == ((x.id,), 10)
    shorter = inventory(words=("x", "z"), length=9)
    assert delta_of(required(x, z), shorter, 1).held == ()


def test_one_content_in_two_places_is_fetched_once():
    first, second = artifact("same"), replace(artifact("other"), sha256=artifact("same").sha256)
    delta = delta_of(required(first, second), inventory(words=()), 1)
    assert (delta.missing, delta.held, delta.missing_bytes) == ((first.id,), (second.id,), 10)


@pytest.mark.rule(87)
def test_another_plan_fetches_only_what_is_missing(tmp_path):
    """After a plan of three stages its second Node becomes the first of two: held blocks are not fetched again.

    Mutation: let `delta_of` look at ids of artifacts instead of the digests of their contents, or ignore the
    inventory.
    """
    rig = make_rig(tmp_path)
    before, after = rig.derive(SPANS).of("stage-1"), rig.derive([(0, 4), (4, 6)]).of("stage-0")
    held = {a.sha256: Held(sha256=a.sha256, length=a.length, role="required") for a in before.artifacts}
    there = Inventory(
        node=ANN, store="s1", sequence=7, held=tuple(sorted(held.values(), key=lambda item: item.sha256))
    )
    delta = delta_of(after, there, 2)
    by_id = {a.id: a for a in after.artifacts}
    again = sum(by_id[i].length for i in delta.missing if by_id[i].sha256 in held)
    assert again == 0
    assert delta.held_bytes == before.bytes
    assert delta.missing_bytes == after.bytes - before.bytes > 0
