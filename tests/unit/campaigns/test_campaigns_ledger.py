"""The ledger: every line bound to the one before, whole on the disk or not there, and several writers at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from inferswarm.campaigns.ledger import NOTHING, Ledger, read_chain, read_ledger
from inferswarm.documents import canonical_bytes, digest_bytes
from inferswarm.errors import EvidenceError, SpecError

SUBJECT = digest_bytes(b"subject")
WRITER = """
import sys
from pathlib import Path
from inferswarm.campaigns.ledger import Ledger
ledger = Ledger(Path(sys.argv[1]))
for number in range(int(sys.argv[3])):
    ledger.append("requested", campaign=sys.argv[2], edition=1, arm="a", run_id=f"{sys.argv[2]}-{number}",
                  subject="sha256:" + "0" * 64)
"""


def written(root: Path, num: int = 3) -> list[bytes]:
    """Write so many lines and return them, each with its end."""
    ledger = Ledger(root)
    for number in range(num):
        kind = "finished" if number % 2 else "requested"
        disposition = "PASS" if number % 2 else None
        ledger.append(
            kind, campaign="c", edition=1, arm="a", run_id=f"r{number}", subject=SUBJECT, disposition=disposition
        )
    return (root / "ledger.jsonl").read_bytes().splitlines(keepends=True)


def changed(line: bytes, **fields: object) -> bytes:
    return canonical_bytes({**json.loads(line), **fields}) + b"\n"


def test_lines_are_bound_to_those_before_them(tmp_path):
    lines = written(tmp_path)
    chain = read_ledger(tmp_path)
    assert [entry.sequence for entry in chain.entries] == [0, 1, 2]
    assert [entry.previous for entry in chain.entries] == [NOTHING, *(digest_bytes(line[:-1]) for line in lines[:2])]
    assert chain.head == digest_bytes(lines[2][:-1])


@pytest.mark.parametrize(
    ("change", "line", "found"),
    [
        (lambda a, b, c: [b, c], 1, "sequence 1"),
        (lambda a, b, c: [a, c], 2, "sequence 2"),
        (lambda a, b, c: [a, c, b], 2, "sequence 2"),
        (lambda a, b, c: [a, a, b, c], 2, "sequence 0"),
        (lambda a, b, c: [changed(a, arm="x"), b, c], 2, "previous"),
        (lambda a, b, c: [a, changed(b, disposition="FAIL"), c], 3, "previous"),
        (lambda a, b, c: [a, changed(b, disposition=None), c], 2, "no disposition"),
        (lambda a, b, c: [changed(a, disposition="PASS"), b, c], 1, "a disposition"),
        (lambda a, b, c: [changed(a, schema=2), b, c], 1, "schema 2"),
        (lambda a, b, c: [a, b, c.replace(b":", b": ", 1)], 3, "another form"),
        (lambda a, b, c: [a, b, c.replace(b'"edition":1', b'"edition":9007199254740993')], 3, "at `$.edition`"),
        (lambda a, b, c: [a, b, c.replace(b'"campaign":"c"', rb'"campaign":"\ud800"')], 3, "another form"),
        (lambda a, b, c: [a, b, changed(c, at="1" * 5000)], 3, "at `$.at`"),
        (lambda a, b, c: [a, b, c.replace(b'"arm"', b'"arm":"x","arm"', 1)], 3, "twice"),
        (lambda a, b, c: [a, b, c[:-1]], 3, "unfinished"),
        (lambda a, b, c: [a, b, c, b"\n"], 4, "JSON"),
    ],
)
def test_whatever_is_done_to_a_line_breaks_the_chain_there_or_at_the_next(tmp_path, change, line, found):
    data = b"".join(change(*written(tmp_path)))
    chain = read_chain(data, "ledger")
    assert chain.broken is not None
    assert (chain.broken.line, len(chain.entries)) == (line, line - 1)
    assert found in chain.broken.found


def test_lines_dropped_from_the_end_show_to_whoever_kept_the_head(tmp_path):
    lines = written(tmp_path)
    head = read_ledger(tmp_path).head
    assert head not in read_chain(b"".join(lines[:2]), "ledger").digests


def test_nothing_is_appended_to_a_broken_chain(tmp_path):
    lines = written(tmp_path)
    (tmp_path / "ledger.jsonl").write_bytes(lines[0] + lines[2])
    with pytest.raises(EvidenceError, match="line 2 breaks the chain: needed sequence 1"):
        written(tmp_path, 1)
    assert (tmp_path / "ledger.jsonl").read_bytes() == lines[0] + lines[2]


def test_an_unfinished_line_was_never_acknowledged_and_goes_with_the_next(tmp_path):
    lines = written(tmp_path)
    (tmp_path / "ledger.jsonl").write_bytes(b"".join(lines)[:-20])
    with pytest.raises(EvidenceError, match="unfinished"):
        read_ledger(tmp_path)
    assert written(tmp_path, 1)[:2] == lines[:2]
    assert len(read_ledger(tmp_path).entries) == 3


def test_a_line_that_does_not_fit_on_the_disk_is_not_there_at_all(tmp_path):
    lines = written(tmp_path)
    limit = sum(map(len, lines)) + 10
    full = f"import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n{WRITER}"
    code = full.replace("ledger = ", f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\nledger = ", 1)
    child = subprocess.run(
        [sys.executable, "-c", code, tmp_path, "x", "1"], capture_output=True, text=True, timeout=60
    )
    assert "SpecError: ledger: found" in child.stderr
    assert (tmp_path / "ledger.jsonl").read_bytes() == b"".join(lines)


def test_several_processes_write_one_chain(tmp_path):
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, tmp_path, name, "20"]) for name in ("left", "right")]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0]
    chain = read_ledger(tmp_path)
    assert sorted(entry.run_id for entry in chain.entries) == sorted(
        f"{name}-{number}" for name in ("left", "right") for number in range(20)
    )


def test_who_holds_the_ledger_may_append_and_nobody_else_meanwhile(tmp_path):
    written(tmp_path, 1)
    ledger = Ledger(tmp_path)
    with ledger.held() as chain:
        other = subprocess.Popen([sys.executable, "-c", WRITER, tmp_path, "other", "1"])
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(timeout=1)
        entry = ledger.append("requested", campaign="c", edition=1, arm="a", run_id="mine", subject=SUBJECT)
        assert entry.previous == chain.head
    assert other.wait(timeout=60) == 0
    assert [entry.run_id for entry in read_ledger(tmp_path).entries] == ["r0", "mine", "other-0"]


def test_a_root_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match="a writable directory"):
        Ledger(tmp_path / "file" / "root")
    with pytest.raises(EvidenceError, match="cannot be read"):
        read_ledger(tmp_path)
