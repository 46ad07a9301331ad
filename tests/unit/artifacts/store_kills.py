"""Kills a process that writes a store at 20 random moments, and opens the store after each kill.

`python -m tests.unit.artifacts.store_kills ROOT` prints what it saw as JSON. It is a process of its own, since it
forks. Exit status 1: a check failed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time

from inferswarm.artifacts.store import ContentStore, Incoming, Use, partial_identity
from tests.unit.artifacts.store_samples import artifact, sample_bytes, sha

NUM_KILLS = 20
LONGEST_SECONDS = 0.12
LARGE = sample_bytes(2_000_000)


def write_forever(root: str, number: int, pipe: int) -> None:
    """Publish batches that are required, and a large optional one in parts; say what was published, afterwards."""
    with ContentStore(root) as store:
        os.write(pipe, b"ready\n")
        for turn in range(10_000):
            pieces = [sample_bytes(20_000, number * 100_000 + turn * 8 + part) for part in range(8)]
            for sha256 in store.publish_batch([Incoming(piece) for piece in pieces], Use("child", "required")):
                os.write(pipe, f"{sha256}\n".encode())
            partial = store.partial(partial_identity(artifact(LARGE, 0, len(LARGE), version=f"etag:{turn % 3}")))
            assert partial is not None
            partial.write(LARGE[partial.length : partial.length + 700_000])
            if partial.length == len(LARGE):
                store.publish_partial(partial, sha(LARGE))
            else:
                partial.close()
            store.collect(wanted_bytes=1)


def kill_once(root: str, number: int, seconds: float) -> set[str]:
    """Let a child write for some time, kill it, and return the digests that it said to have published."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            write_forever(root, number, writing)
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as said:
        assert said.readline() == "ready\n"
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, "the child ended by itself"
        return {line.strip() for line in said if line.endswith("\n")}


def main(root: str) -> None:
    """Do it."""
    moments = random.Random(20)
    published: set[str] = set()
    sequence, seen = 0, []
    for number in range(NUM_KILLS):
        published |= kill_once(root, number, moments.random() * LONGEST_SECONDS)
        with ContentStore(root) as store:
            inventory = store.inventory()
            listed = {blob.sha256 for blob in inventory.blobs}
            assert published <= listed, "what was said to be published has gone"
            assert not any(os.scandir(store.root / "staging")), "what a dead writer staged is still there"
            assert inventory.sequence >= max(sequence, len(listed)), "the sequence went back"
            found = [
                store.partial(partial_identity(artifact(LARGE, 0, len(LARGE), version=f"etag:{version}")))
                for version in range(3)
            ]
            for partial in found:
                assert partial is not None, "a dead writer's lock is still held"
                assert partial.sha256 == sha(LARGE[: partial.length]), "a beginning of other bytes was kept"
            partials = sum(partial.length > 0 for partial in found if partial is not None)
            for partial in found:
                partial.close()  # type: ignore[union-attr]
            sequence = inventory.sequence
            seen.append({"published": len(published), "listed": len(listed), "found_partials": partials})
    print(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1])
