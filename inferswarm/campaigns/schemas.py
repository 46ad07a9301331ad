"""JSON Schemas (draft 2020-12) of everything in an evidence root that is JSON, and of a campaign's two TOML files.

For readers that do not have this package: they say names, types and patterns. What no schema can say (digests, order,
who must agree with whom) is what the laws say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from inferswarm.campaigns.environment import Environment
from inferswarm.campaigns.expectations import Expectations
from inferswarm.campaigns.package_tree import PackageTree
from inferswarm.campaigns.records import (
    Acceptance,
    Authorization,
    LedgerEntry,
    Manifest,
    Outcome,
    Request,
    Seal,
    Waiver,
)
from inferswarm.campaigns.results import Result
from inferswarm.campaigns.samples import Output, RunIdentity
from inferswarm.campaigns.signatures import Envelope
from inferswarm.campaigns.spec import CampaignSpec
from inferswarm.campaigns.statements import Statement
from inferswarm.campaigns.verdicts import RootVerdict
from inferswarm.documents import Document

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
SCHEMAS: Final[Mapping[str, type[Document]]] = {
    "acceptance": Acceptance,
    "authorization": Authorization,
    "campaign": CampaignSpec,
    "environment": Environment,
    "expectations": Expectations,
    "ledger-entry": LedgerEntry,
    "manifest": Manifest,
    "outcome": Outcome,
    "output": Output,
    "package": PackageTree,
    "request": Request,
    "result": Result,
    "run-identity": RunIdentity,
    "seal": Seal,
    "signature": Envelope,
    "statement": Statement,
    "verdict": RootVerdict,
    "waiver": Waiver,
}
"""Every schema by its name; a line of `ledger.jsonl` is a ledger-entry, one of `outputs.jsonl` an output, and
its first one a run-identity."""
PARAMETERS: Final = {
    "type": "object",
    "additionalProperties": {"type": ["string", "integer", "number", "boolean"]},
    "default": {},
}
"""How `campaign.toml` writes parameters: a table, which reading turns into a list."""

_END_OF_TEXT: Final = '\\\\Z"'
r"""`\Z` at the end of a pattern, as JSON writes it: what a schema's own regular expressions (ECMA-262) call `$`."""


def schema_of(name: str) -> dict[str, Any]:
    """Return one of SCHEMAS as JSON Schema. Raises KeyError for another name."""
    made = json.loads(json.dumps(msgspec.json.schema(SCHEMAS[name])).replace(_END_OF_TEXT, '$"'))
    if name == "campaign":
        made["$defs"]["ArmSpec"]["properties"]["parameters"] = PARAMETERS
        made["$defs"].pop("Parameter")
    return {"$schema": DRAFT, "$id": f"urn:inferswarm:{name}:1", **made}


def schema_text(name: str) -> str:
    """Return a schema as the text of its file."""
    return json.dumps(schema_of(name), indent=2, ensure_ascii=False) + "\n"
