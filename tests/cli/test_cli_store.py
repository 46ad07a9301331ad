"""`inferswarm store`: lists, checks and clears real stores, and is wrong about none."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from inferswarm.artifacts.store import ContentStore, Use, partial_identity
from tests.unit.artifacts.store_samples import artifact, sample_bytes, sha

DATA = sample_bytes(50_000)


@pytest.fixture
def root(tmp_path):
    place = tmp_path / "state" / "stores" / "amber"
    with ContentStore(place) as store:
        store.publish(DATA, use=Use("plan-1", "required"))
        store.publish(b"optional")
        partial = store.partial(partial_identity(artifact(DATA, 0, 1000)))
        partial.write(DATA[:500])
        partial.close()
    return place


def damage(root):
    digits = sha(DATA).removeprefix("sha256:")
    path = root / "blobs" / "sha256" / digits[:2] / digits[2:]
    path.chmod(0o600)
    path.write_bytes(b"x" + DATA[1:])


def test_what_is_there_is_listed_with_its_use(root, cli):
    done = cli("store", "ls", "--root", str(root))
    assert done.status == 0
    assert f"{sha(DATA)}   50.0 kB  required  plan-1\n" in done.out
    assert f"{sha(b'optional')}       8 B  optional\n" in done.out
    assert f"{root}: 2 blobs, 50.0 kB, sequence 2\n" in done.out
    listed = json.loads(cli("store", "ls", "--state", str(root.parents[1]), "--json").out)
    assert [blob["length"] for blob in listed["blobs"]] == [
        length for _, length in sorted([(sha(DATA), 50_000), (sha(b"optional"), 8)])
    ]


def test_damage_is_found_by_hashing_and_said_by_the_status(root, cli):
    assert cli("store", "verify", "--root", str(root)).status == 0
    damage(root)
    done = cli("store", "verify", "--root", str(root))
    assert done.status == 1
    assert f"has 50,000 B with {sha(b'x' + DATA[1:])}" in done.out
    assert "1 blobs right (8 B), 1 damaged, 0 files that are none" in done.out
    assert json.loads(cli("store", "verify", "--root", str(root), "--json").out)["damaged"] == []


def test_only_what_nobody_needs_goes(root, cli):
    planned = cli("store", "gc", "--root", str(root), "--partials-older-than", "0s", "--dry-run")
    assert "would remove 1 blobs (8 B) and 1 unfinished transfers (500 B)" in planned.out
    assert "removed 0 blobs (0 B) and 0 unfinished" in cli("store", "gc", "--root", str(root), "--free", "0").out
    done = cli("store", "gc", "--root", str(root), "--partials-older-than", "0s", "--json")
    assert json.loads(done.out)["blobs"] == [sha(b"optional")]
    with ContentStore(root) as store:
        assert [blob.sha256 for blob in store.inventory().blobs] == [sha(DATA)]
        assert list((root / "partials").iterdir()) == []


def test_what_a_swarm_that_ended_kept_can_be_released_and_nothing_of_one_that_lives(root, cli):
    """Mutation: ask nobody whether the swarm lives, or release every owner."""
    with ContentStore(root) as store:
        for owner in ("local-1/plan", "local-1/other", "local-10/plan"):
            store.publish(owner.encode(), use=Use(owner, "required"))
    state = ("--state", str(root.parents[1]))
    agent = (
        "from inferswarm.artifacts.store_scopes import LivingScope; import sys, time; x = LivingScope(*sys.argv[1:])"
    )
    command = [sys.executable, "-c", f"{agent}; print(flush=True); time.sleep(60)", str(root), "local-1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"\n"
        listed = cli("store", "ls", *state).out
        assert "local-1/plan: 1 blobs, 12 B; its swarm lives\n" in listed
        assert "local-10/plan: 1 blobs, 13 B; its swarm has ended\n" in listed
        for owner in ("local-1", "local-1/plan"):
            refused = cli("store", "gc", *state, "--release", owner)
            assert (refused.status, "an agent of it runs" in refused.err) == (1, True), refused
        process.kill()
    assert "local-1/plan: 1 blobs, 12 B; its swarm has ended\n" in cli("store", "ls", *state).out
    assert "local-10/plan" in cli("store", "gc", *state, "--release", "local-2").err  # one of those that there are
    assert "would release local-1/plan" in cli("store", "gc", *state, "--release", "local-1/plan", "--dry-run").err
    done = cli("store", "gc", *state, "--release", "local-1", "--json")
    assert "released local-1/other" in done.err
    assert set(json.loads(done.out)["blobs"]) == {
        sha(text) for text in (b"optional", b"local-1/plan", b"local-1/other")
    }
    with ContentStore(root) as store:
        assert {owner for blob in store.inventory().blobs for owner in blob.owners} == {"plan-1", "local-10/plan"}


@pytest.mark.parametrize("command", ["ls", "verify", "gc"])
def test_what_is_no_store_is_refused_and_left_alone(tmp_path, cli, command):
    for arguments in (("--root", str(tmp_path)), ("--root", str(tmp_path / "absent")), ("--state", str(tmp_path))):
        done = cli("store", command, *arguments)
        assert done.status == 1
        assert done.err.startswith("inferswarm: SpecError: store: ")
        assert str(tmp_path) in done.err
    assert list(tmp_path.iterdir()) == []


def test_amounts_and_ages_are_checked_first(root, cli):
    for option, text in (("--free", "much"), ("--partials-older-than", "long")):
        done = cli("store", "gc", "--root", str(root), option, text)
        assert (done.status, text in done.err) == (1, True)
    with ContentStore(root) as store:
        assert len(store.inventory().blobs) == 2
