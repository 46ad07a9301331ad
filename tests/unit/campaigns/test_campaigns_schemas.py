"""The published schemas are those of the package, take what a run really is, and refuse what it is not."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from inferswarm.campaigns.saying import accept_campaign, authorize, saying, waive_arm
from inferswarm.campaigns.schemas import SCHEMAS, schema_of
from inferswarm.campaigns.signing import make_keys, sign_run
from inferswarm.campaigns.verify import verify_root
from inferswarm.documents import write_document
from tests.schemas_index import COMMAND, FOLDER, there, wanted
from tests.unit.campaigns.made_runs import make_project, make_run
from tests.unit.campaigns.sample_runs import answer

OF_FILES = {
    "environment.json": "environment",
    "environment.parent.json": "environment",
    "manifest.json": "manifest",
    "outcome.json": "outcome",
    "package.json": "package",
    "request.json": "request",
    "result.json": "result",
    "seal.json": "seal",
    "statement.dsse.json": "signature",
    "statement.json": "statement",
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, Any]]:
    """Everything that a root and its project hold, as plain JSON beside the name of its schema."""
    place = tmp_path_factory.mktemp("schemas")
    project, root = make_project(place / "project"), place / "evidence"
    runs = [make_run(project, root, arm) for arm in ("first", "second")]
    make_keys(place / "key.pem", place / "key.pub")
    sign_run(runs[0], place / "key.pem")
    far = 9 * 10**18
    accepted = accept_campaign(root, "made", project, saying("somebody", "read"))
    authorize(root, "made", accepted, far, saying("somebody", "publish"))
    waive_arm(root, "made", "second", project, far, saying("somebody", "no machine"))
    return list(_written(project, root))


def _written(project: Path, root: Path) -> Iterator[tuple[str, Any]]:
    yield from records_of(root)
    for name in ("campaign", "expectations"):
        yield name, tomllib.loads((project / "experiments" / "made" / f"{name}.toml").read_text())
    yield "output", json.loads(write_document(answer("left", "p0", [1, 2])))
    yield "verdict", json.loads(write_document(verify_root(root, project)))


def records_of(root: Path) -> Iterator[tuple[str, Any]]:
    """Yield every record of an evidence root as plain JSON, behind the name of its schema."""
    for path in sorted(root.glob("*/*/*")):
        if path.name in OF_FILES:
            yield OF_FILES[path.name], json.loads(path.read_bytes())
        elif path.name == "outputs.jsonl":
            identity, *answers = path.read_bytes().splitlines()
            yield "run-identity", json.loads(identity)
            yield from (("output", json.loads(line)) for line in answers)
    kinds = {"accepted": "acceptance", "waived": "waiver", "authorized": "authorization"}
    for line in (root / "ledger.jsonl").read_bytes().splitlines():
        entry = json.loads(line)
        yield "ledger-entry", entry
        if entry["kind"] in kinds:
            name = f"{entry['subject'].removeprefix('sha256:')}.json"
            yield kinds[entry["kind"]], json.loads((root / entry["campaign"] / "records" / name).read_bytes())


def validator(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(schema_of(name))


def test_the_published_schemas_are_those_of_the_package():
    assert there() == wanted(), f"docs/schemas is out of date: {COMMAND}"


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_schema_is_one_and_takes_what_is_really_written(written, name):
    jsonschema.Draft202012Validator.check_schema(schema_of(name))
    items = [item for schema, item in written if schema == name]
    assert items
    for item in items:
        validator(name).validate(item)


def test_every_record_that_is_committed_is_what_its_schema_says():
    root = FOLDER.parents[1] / "evidence"
    for name, item in records_of(root) if root.exists() else ():
        validator(name).validate(item)


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_schema_refuses_another_field_and_a_missing_one(written, name):
    item = next(item for schema, item in written if schema == name)
    assert not validator(name).is_valid({**item, "another": 1})
    required = schema_of(name)["$defs"][schema_of(name)["$ref"].rsplit("/")[-1]]["required"]
    for field in required:
        assert not validator(name).is_valid({key: value for key, value in item.items() if key != field}), field


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("request", "campaign_digest", "sha256:0"),
        ("request", "requested_at", 17),
        ("outcome", "end", "completed"),
        ("ledger-entry", "disposition", "passed"),
        ("waiver", "expires_at", "tomorrow"),
        ("statement", "_type", "https://in-toto.io/Statement/v0.1"),
        ("expectations", "edition", 0),
        ("campaign", "campaign", "Made"),
    ],
)
def test_schemas_say_patterns_and_closed_lists(written, name, field, value):
    item = next(item for schema, item in written if schema == name)
    assert field in item
    assert not validator(name).is_valid({**item, field: value})
