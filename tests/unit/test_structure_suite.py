"""The suite's end says which tests failed, and only one of running Nodes gets a second run."""

from __future__ import annotations

import pytest

from tests import suite
from tests.failures import Failure, failures_of, lines_of

pytest_plugins = ["pytester"]

GREEN = "def test_green():\n    pass\n"
RED = "def test_red():\n    raise ValueError('the clock ran backwards')\n"
ONCE = """
from pathlib import Path

def test_once():
    seen = Path("seen")
    first = not seen.exists()
    seen.touch()
    assert not first, "disturbed"
"""


def test_failures_are_named_as_pytest_takes_them_with_what_they_said(pytester):
    file = pytester.makepyfile(
        test_some="""
        import pytest

        @pytest.fixture
        def broken():
            raise OSError("no such port")

        @pytest.mark.parametrize("case", ["a cut [1]", "other"])
        def test_cases(case):
            assert case == "other", f"{case} is not it"

        class TestGroup:
            def test_in_a_group(self, broken):
                pass
        """
    )
    record = pytester.path / "record.xml"
    result = pytester.runpytest_inprocess(f"--junitxml={record}", "-p", "no:cacheprovider", file)
    failures = failures_of(record, int(result.ret))
    assert [failure.test for failure in failures] == [
        "test_some.py::test_cases[a cut [1]]",
        "test_some.py::TestGroup::test_in_a_group",
    ]
    assert "a cut [1] is not it" in lines_of(failures[0])[0]
    assert "test_some.py:" in lines_of(failures[0])[-1]
    assert "no such port" in "\n".join(lines_of(failures[1]))
    again = pytester.runpytest_inprocess("-p", "no:cacheprovider", *(failure.test for failure in failures))
    again.assert_outcomes(failed=1, errors=1)


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        (None, 0, "left no record"),
        ("<testsuites><testsuite>", 0, "cannot be read"),
        ("<testsuites/>", 5, "ended with 5; 0 of the 0 tests"),
        ("<testsuites/>", 1, "ended with 1; 0 of the 0 tests"),
    ],
)
def test_a_run_without_a_word_of_its_tests_has_failed(tmp_path, text, status, said):
    record = tmp_path / "record.xml"
    if text is not None:
        record.write_text(text)
    (failure,) = failures_of(record, status)
    assert not failure.test
    assert said in failure.said


def test_what_a_test_said_is_shown_in_few_and_short_lines():
    said = "\n".join([*(f"line {number}" for number in range(50)), "x" * 1000])
    lines = lines_of(Failure("test_a.py::test_b", said))
    assert lines[0] == "line 0"
    assert lines[-1] == "x" * 200
    assert len(lines) == 5


@pytest.mark.parametrize(
    ("timed", "computing", "others", "status", "said"),
    [
        (GREEN, GREEN, GREEN, 0, ()),
        (ONCE, GREEN, GREEN, 0, ("failed beside other work and was repeated alone: timed/test_it.py::test_once",)),
        (
            GREEN,
            ONCE.replace("seen", "seen_computing"),
            ONCE,
            1,
            ("\nfailed: computing/test_it.py::test_once", "\nfailed: others/test_it.py::test_once", "disturbed"),
        ),
        (
            RED,
            "",
            "import nothing_of_the_kind\n",
            1,
            (
                "repeated alone: timed/test_it.py::test_red",
                "\nfailed: timed/test_it.py::test_red",
                "the clock ran backwards",
                "\nfailed: a part of the suite",
                "ended with 5; 0 of the 0 tests",
                "\nfailed: others/test_it.py",
                "nothing_of_the_kind",
            ),
        ),
    ],
    ids=["green", "disturbed", "no second run for others", "red alone too, no test at all, and a file of errors"],
)
def test_only_tests_of_running_nodes_are_repeated_and_the_end_says_what_failed(
    pytester, monkeypatch, capfd, timed, computing, others, status, said
):
    for name, text in (("timed", timed), ("computing", computing), ("others", others)):
        (pytester.mkdir(name) / "test_it.py").write_text(text)
    plain = ("-p", "no:cacheprovider", "-p", "no:xdist", "--import-mode=importlib", "-m")
    parts = ("timed", "computing", "others")
    monkeypatch.setattr(suite, "_ALL", plain)
    monkeypatch.setattr(suite, "OF_RUNNING_NODES", ("timed",))
    monkeypatch.setattr(suite, "commands", lambda marked: {name: (*plain, "not long", name) for name in parts})
    assert suite.main(()) == status
    printed = capfd.readouterr().out
    for text in said:
        assert text in printed
    assert ("\nfailed: " in printed) is (status != 0)
