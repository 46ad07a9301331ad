from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferswarm.errors import EvidenceError, SpecError
from inferswarm.evidence.store import ObservationStore
from inferswarm.evidence.types import Observation, RecordHeader, make_context, newest_of_each, question_of


def record(samples: tuple[float, ...] = (0.5, 0.25), **changes: object) -> Observation:
    fields = {
        "subject": "cpu-1",
        "metric": "unit-seconds",
        "unit": "s",
        "context": make_context(threads=1),
        "protocol": "test/1",
        "taken_at_ns": "1700000000000000000",
        "producer": "test",
    } | changes
    return Observation(samples=samples, **fields)  # type: ignore[arg-type]


WRITER = """
import sys
from pathlib import Path
from inferswarm.evidence.store import ObservationStore
from inferswarm.evidence.types import Observation, make_context

store = ObservationStore(Path(sys.argv[1]))
number = 0
while number < int(sys.argv[3]):
    store.append(
        Observation(
            subject=sys.argv[2], metric="m", unit="s", samples=(float(number), float(index)),
            context=make_context(number=number), protocol="t/1", taken_at_ns=str(number * 2 + index), producer="test",
        )
        for index in range(2)
    )
    number += 1
    print(number, flush=True)
"""


def start_writer(directory: Path, subject: str, count: int) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", WRITER, str(directory), subject, str(count)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def test_what_is_kept_comes_back_in_the_order_it_was_taken(tmp_path: Path) -> None:
    store = ObservationStore(tmp_path)
    late, early = record(taken_at_ns="20"), record((1.0,), taken_at_ns="3")
    assert store.append([late, early]) == (late.id, early.id)
    assert ObservationStore(tmp_path).query() == (early, late)
    assert len(store) == 2


def test_questions_are_answered_by_subject_and_metric(tmp_path: Path) -> None:
    store = ObservationStore(tmp_path)
    one, two, three = record(), record(subject="cpu-2"), record(metric="other")
    store.append([one, two, three])
    assert store.query("cpu-1") == (one, three)
    assert store.query("cpu-1", "unit-seconds") == (one,)
    assert store.query(metric="other") == (three,)
    assert store.query("nobody") == ()
    assert store.get(two.id) == two


def test_the_latest_is_the_newest_by_time_and_none_when_there_is_none(tmp_path: Path) -> None:
    store = ObservationStore(tmp_path)
    newest = record(taken_at_ns="1700000000000000002")
    store.append([newest])
    store.append([record(taken_at_ns="999")])
    assert store.latest("cpu-1", "unit-seconds") == newest
    assert store.latest("cpu-1", "other") is None


def test_one_record_is_kept_once(tmp_path: Path) -> None:
    store = ObservationStore(tmp_path)
    assert store.append([record(), record()]) == (record().id, record().id)
    store.append([record()])
    assert store.query() == (record(),)


def test_appending_nothing_writes_nothing(tmp_path: Path) -> None:
    assert ObservationStore(tmp_path).append([]) == ()
    assert list((tmp_path / "samples").iterdir()) == []


@settings(max_examples=25, deadline=None)
@given(
    groups=st.lists(
        st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=8), min_size=1, max_size=4
    )
)
def test_every_sample_comes_back_bit_for_bit(
    groups: list[list[float]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = ObservationStore(tmp_path_factory.mktemp("store"))
    given_records = [record(tuple(samples), taken_at_ns=str(index)) for index, samples in enumerate(groups)]
    store.append(given_records)
    kept = store.query()
    assert [[value.hex() for value in item.samples] for item in kept] == [
        [value.hex() for value in item.samples] for item in given_records
    ]


def test_an_altered_sample_file_is_refused(tmp_path: Path) -> None:
    store = ObservationStore(tmp_path)
    store.append([record()])
    (path,) = (tmp_path / "samples").iterdir()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(EvidenceError, match="not those that it is named for"):
        store.query()


def test_a_missing_sample_file_is_refused(tmp_path: Path) -> None:
    store = ObservationStore(tmp_path)
    store.append([record()])
    (path,) = (tmp_path / "samples").iterdir()
    path.unlink()
    with pytest.raises(EvidenceError, match=path.name):
        store.latest("cpu-1", "unit-seconds")


@pytest.mark.parametrize(
    "change",
    [
        "document = replace(document, 'test/1', 'test/2')",
        "document = '{}'",
        "document = 'garbage'",
        "record = 7",
        "id = 'sha256:0000000000000000000000000000000000000000000000000000000000000000'",
    ],
)
def test_an_altered_index_is_refused(tmp_path: Path, change: str) -> None:
    store = ObservationStore(tmp_path)
    store.append([record()])
    connection = sqlite3.connect(tmp_path / "observations.sqlite")
    with connection:
        connection.execute(f"UPDATE observation SET {change}")
    connection.close()
    with pytest.raises(EvidenceError, match="altered"):
        store.query()


def test_an_index_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "observations.sqlite").write_text("this is not a database, and long enough to be seen as none" * 20)
    with pytest.raises(EvidenceError, match=r"observations\.sqlite"):
        ObservationStore(tmp_path)


def test_a_store_of_another_format_is_refused(tmp_path: Path) -> None:
    ObservationStore(tmp_path)
    connection = sqlite3.connect(tmp_path / "observations.sqlite")
    connection.execute("PRAGMA user_version = 9")
    connection.close()
    with pytest.raises(EvidenceError, match="format 9, needed 1"):
        ObservationStore(tmp_path)


@pytest.mark.parametrize("place", ["file/store", "/proc/inferswarm-store"])
def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match=r"observation store: found '.*store', needed a writable directory"):
        ObservationStore(tmp_path / place)


def test_two_processes_may_write_one_store_at_once(tmp_path: Path) -> None:
    writers = [start_writer(tmp_path / "store", subject, 20) for subject in ("a", "b")]
    for writer in writers:
        writer.communicate(timeout=120)
        assert writer.returncode == 0
    store = ObservationStore(tmp_path / "store")
    assert [len(store.query(subject)) for subject in ("a", "b")] == [40, 40]


def test_a_killed_writer_leaves_whole_appends_only(tmp_path: Path) -> None:
    generator = random.Random(7)
    for attempt in range(4):
        directory = tmp_path / str(attempt)
        writer = start_writer(directory, "a", 10_000)
        assert writer.stdout is not None
        for _ in range(generator.randrange(1, 6)):
            acknowledged = int(writer.stdout.readline())
        time.sleep(generator.random() * 0.02)
        os.kill(writer.pid, signal.SIGKILL)
        rest, _ = writer.communicate()
        acknowledged = max([acknowledged, *(int(line) for line in rest.split())])
        store = ObservationStore(directory)
        kept = store.query("a")
        assert len(kept) % 2 == 0
        assert len(kept) // 2 in (acknowledged, acknowledged + 1)
        assert [item.taken_at_ns for item in kept] == [str(number) for number in range(len(kept))]
        store.append([record()])
        assert store.latest("cpu-1", "unit-seconds") == record()


def unreadable(directory: Path) -> None:
    """Make every sample file unreadable, so that reading any is an error."""
    for path in (directory / "samples").iterdir():
        path.write_bytes(b"")


def test_headers_say_everything_but_the_samples_and_read_no_file(tmp_path: Path) -> None:
    store = ObservationStore(tmp_path)
    records = [record(taken_at_ns=str(2 - index), subject=f"cpu-{index}") for index in range(2)]
    store.append(records)
    unreadable(tmp_path)
    headers = store.headers()
    assert [header.id for header in headers] == [records[1].id, records[0].id]
    for name in set(RecordHeader._fields):
        assert getattr(headers[0], name) == getattr(records[1], name), name
    assert headers[0].context_value("threads") == "1"
    assert headers[0].context_value("nothing") is None
    assert [header.id for header in store.headers("cpu-0", "unit-seconds")] == [records[0].id]
    assert store.headers("cpu-0", "other") == ()


def test_records_are_loaded_in_the_order_asked_for(tmp_path: Path) -> None:
    store = ObservationStore(tmp_path)
    one, two = record((1.0,)), record((2.0,))
    store.append([one, two])
    assert store.load([two.id, one.id, two.id]) == (two, one, two)
    assert store.load([]) == ()
    with pytest.raises(EvidenceError, match="no observation"):
        store.load([one.id, "sha256:" + "0" * 64])


def test_a_question_with_context_gets_what_states_each_key(tmp_path: Path) -> None:
    store = ObservationStore(tmp_path)
    fp32 = record(context=make_context(representation="fp32", threads=1))
    bf16 = record(context=make_context(representation="bf16", threads=1))
    path = record(metric="message-seconds", context=make_context(payload_bytes=64))
    store.append([fp32, bf16, path])
    assert store.query(context={"representation": "fp32"}) == (fp32,)
    assert set(store.query(context={"threads": "1"})) == {fp32, bf16}
    assert store.query(metric="unit-seconds", context={"payload.bytes": "64"}) == ()
    assert set(store.query(context={})) == {fp32, bf16, path}


def test_files_of_records_that_are_left_out_are_not_read(tmp_path: Path) -> None:
    store = ObservationStore(tmp_path)
    store.append([record(taken_at_ns="1", subject="old"), record(taken_at_ns="1")])
    store.append([record(taken_at_ns="1", context=make_context(threads=2))])
    unreadable(tmp_path)
    newest = record(taken_at_ns="2")
    store.append([newest])
    assert store.query("cpu-1", context={"threads": "1"}, newest=1) == (newest,)
    with pytest.raises(EvidenceError, match="not those that it is named for"):
        store.query(newest=1)


def test_the_newest_of_each_question_is_kept_however_its_run_went(tmp_path: Path) -> None:
    store = ObservationStore(tmp_path)
    noted = make_context(threads=1, run_drift="none")
    steady, drifted = (
        record(taken_at_ns="1", context=noted),
        record(taken_at_ns="2", context=make_context(threads=1, run_drift="drift")),
    )
    other = record(taken_at_ns="1", context=make_context(threads=2))
    store.append([drifted, steady, other])
    assert question_of(steady) == question_of(drifted) != question_of(other)
    assert store.query(newest=1) == (other, drifted)
    assert newest_of_each(store.query()) == (drifted, other)
    same_time = record((9.0,), taken_at_ns="2")
    assert newest_of_each([drifted, same_time]) == (same_time,)
    assert newest_of_each([drifted, other, same_time], 2) == (same_time, drifted, other)


def test_an_altered_header_is_refused_when_its_record_is_read(tmp_path: Path) -> None:
    store = ObservationStore(tmp_path)
    store.append([record()])
    with sqlite3.connect(tmp_path / "observations.sqlite") as connection:
        connection.execute("UPDATE observation SET document = replace(document, '\"s\"', '\"ms\"')")
    connection.close()
    (header,) = store.headers()
    assert header.unit == "ms"
    with pytest.raises(EvidenceError, match="altered"):
        store.load([header.id])
    with sqlite3.connect(tmp_path / "observations.sqlite") as connection:
        connection.execute("UPDATE observation SET document = '[]'")
    connection.close()
    with pytest.raises(EvidenceError, match="altered"):
        store.headers()


def test_opening_and_listing_an_empty_store_loads_no_data_frames(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib\n"
        "from inferswarm.evidence.store import ObservationStore\n"
        "assert ObservationStore(pathlib.Path(sys.argv[1])).query() == ()\n"
        "print([name for name in ('polars', 'numpy', 'scipy', 'torch') if name in sys.modules])"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True, timeout=60
    )
    assert finished.stdout.strip() == "[]"
