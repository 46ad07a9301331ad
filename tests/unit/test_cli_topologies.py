"""The command line without hardware: declared topologies, estimates on request, and what discovery prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferswarm.swarm.simulated import LABEL
from tests.models import write_small_llama

LIBRARY = Path(__file__).resolve().parents[2] / "experiments" / "topologies"
PAIR = str(LIBRARY / "home-pair.toml")
WORK = ("--prompt-tokens", "16", "--output-tokens", "8")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("model") / "small.gguf"
    write_small_llama(path, seed=1)
    return str(path)


def test_without_an_estimate_nothing_is_selected_and_it_says_why(cli, model):
    done = cli("plan", "-m", model, "--topology", PAIR, *WORK)
    assert done.status == 3
    assert "NO_AUTOMATIC_SELECTION_INSUFFICIENT_EVIDENCE" in done.out
    assert "No evidence: nothing was measured" in done.out
    assert "--estimate" in done.out
    assert LABEL not in done.out.split("Missing evidence")[0]


def test_an_estimate_selects_and_is_called_one_before_anything_else(cli, model):
    done = cli("plan", "-m", model, "--topology", PAIR, "--estimate", *WORK)
    assert done.status == 0, done.err
    assert done.out.startswith("Estimate from declared figures. Nothing here was measured.")
    assert "proved the best" in done.out
    assert "stage-0" in done.out


def test_an_explained_estimate_starts_with_its_label(cli, model):
    done = cli("plan", "-m", model, "--topology", PAIR, "--estimate", "--explain", *WORK)
    assert done.status == 0
    assert done.out.startswith("Estimate from declared figures. Nothing here was measured.")


def test_the_document_of_an_estimate_carries_its_label(cli, model):
    done = cli("plan", "-m", model, "--topology", PAIR, "--estimate", "--json", *WORK)
    decision = json.loads(done.out)
    assert decision["outcome"] == "SELECTED"
    assert LABEL in decision["summary"]
    assert all(item.startswith("declared:") for item in decision["plan"]["prediction"]["evidence_ids"])


def test_demands_and_objective_reach_the_decision_and_are_explained(cli, model):
    demands = ("--reserve", "desktop/vram=11GB", "--exclude", "laptop", "--max-ttft", "10s", "--max-machines", "1")
    mixed = ("--objective", "throughput", "--concurrency", "2", "--max-inter-token", "10s")
    done = cli("plan", "-m", model, "--topology", PAIR, "--estimate", "--json", *WORK, *demands, *mixed)
    decision = json.loads(done.out)
    assert decision["policy"]["reservations"] == [{"node": "desktop/vram", "bytes": 11 * 10**9}]
    assert decision["plan"]["workload"]["objective"]["kind"] == "throughput"
    done = cli("plan", "-m", model, "--topology", PAIR, "--estimate", "--what-if", *WORK, *demands)
    for piece in ("demanded by the operator: 11.0 GB kept free on desktop/vram", "excluded by policy: Node laptop"):
        assert piece in done.out
    assert "What would change the decision" in done.out
    assert "Worth measuring" in done.out


def test_bit_exactness_without_a_record_is_no_plan(cli, model):
    done = cli("plan", "-m", model, "--topology", PAIR, "--estimate", "--require-bit-exact", *WORK)
    assert done.status == 3
    assert "NO_ACCEPTED_QUALIFICATION_EVIDENCE" in done.out


def test_what_does_not_fit_on_paper_is_infeasible_and_no_estimate_is_offered(cli, model, tmp_path):
    small = tmp_path / "small.toml"
    text = Path(PAIR).read_text(encoding="utf-8")
    lines = [f'reserved = "{capacity}"' if line.startswith("reserved") else line for capacity, line in pairs(text)]
    small.write_text("\n".join(lines), encoding="utf-8")
    done = cli("plan", "-m", model, "--topology", str(small), *WORK)
    assert done.status == 3
    assert "NO_FEASIBLE_PLAN" in done.out
    assert "--estimate" not in done.out


def pairs(text: str) -> list[tuple[str, str]]:
    """Return each line of a topology with the capacity that was stated last before it."""
    found, capacity = [], ""
    for line in text.splitlines():
        if line.startswith("capacity"):
            capacity = line.split('"')[1]
        found.append((capacity, line))
    return found


def test_nothing_is_started_and_nothing_is_kept(cli, model, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert cli("plan", "-m", model, "--topology", PAIR, "--estimate", *WORK).status == 0
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("arguments", "pieces"),
    [
        (("--estimate",), ("estimate", "--topology FILE")),
        (("--topology", PAIR, "-n", "a:threads=1,memory=1GB"), ("--node",)),
        (("--topology", PAIR, "--mechanism", "rlimit-data"), ("--mechanism",)),
        (("--topology", PAIR, "--state", "/tmp"), ("--state",)),
        (("--topology", "/nowhere/x.toml"), ("/nowhere/x.toml", "a file that can be read")),
        (("--topology", PAIR, "-r", "int4"), ("int4",)),
        (("--topology", PAIR, "--estimate", "--what-if", "--json"), ("what-if", "--json", "one of them")),
        (("--topology", PAIR, "--objective", "speed"), ("objective", "request, throughput or mix")),
        (("--topology", PAIR, "--objective", "mix"), ("--request-weight",)),
        (("--topology", PAIR, "--request-weight", "0.5"), ("request-weight", "--objective mix")),
        (("--topology", PAIR, "--max-inter-token", "1s"), ("max-inter-token", "--objective throughput")),
        (("--topology", PAIR, "--max-ttft", "soon"), ("max-ttft", "a duration such as")),
        (("--topology", PAIR, "--min-rate", "nan"), ("min-rate", "a finite number")),
        (
            ("--topology", PAIR, "--objective", "mix", "--request-weight", "inf"),
            ("request-weight", "a finite number"),
        ),
        (("--topology", PAIR, "--reserve", "laptop"), ("reserve", "NODE=SIZE")),
        (("--topology", PAIR, "--reserve", "desktop=1GB"), ("desktop/ram", "desktop/vram")),
        (("--topology", PAIR, "--exclude", "attic"), ("excluded_nodes", "laptop")),
        (("--topology", PAIR, "--picture", "/nowhere/directory/x"), ("picture",)),
    ],
)
def test_what_cannot_be_meant_is_refused(cli, model, arguments, pieces):
    done = cli("plan", "-m", model, *arguments)
    assert done.status == 1
    assert done.out == ""
    assert "inferswarm: SpecError: " in done.err
    assert all(piece in done.err for piece in pieces), done.err


def test_a_file_that_is_no_topology_is_named(cli, model, tmp_path):
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("nodes = 3\n", encoding="utf-8")
    done = cli("plan", "-m", model, "--topology", str(wrong))
    assert done.status == 1
    assert "DocumentError" in done.err
    assert "wrong.toml" in done.err


def test_a_topology_is_refused_before_the_model_is_looked_at(cli):
    done = cli("plan", "-m", "/nowhere/model.gguf", "--topology", "/nowhere/x.toml")
    assert "/nowhere/x.toml" in done.err


def test_discovery_prints_every_fact_or_its_reason(cli, tmp_path):
    done = cli("discover", "--state", str(tmp_path))
    assert done.status == 0
    names = ("sockets", "cores", "CPU quota", "NUMA nodes", "huge pages", "NVIDIA driver", "disk of")
    names += ("  filesystem", "  mounted at", "  block device", "  medium")
    names += ("interface lo", "  MTU", "  duplex", "  carrier")
    lines = done.out.splitlines()
    for name in names:
        assert [line for line in lines if line.startswith(name)], name
    for line in lines:
        if line.rstrip().endswith("unknown"):
            assert lines[lines.index(line) + 1].lstrip().startswith("("), f"no reason beside {line!r}"
