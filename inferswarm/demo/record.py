"""What the demonstration leaves behind: one JSON file with the documents and the raw numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec

from inferswarm import __version__
from inferswarm.demo.checks import Check
from inferswarm.documents import digest
from inferswarm.planner.plan import ExecutionPlan
from inferswarm.resources.types import ResourceGraph
from inferswarm.swarm import Generation
from inferswarm.swarm.service import NodeMemory


def write_record(
    path: Path,
    graph: ResourceGraph,
    plan: ExecutionPlan,
    answer: Generation,
    memory: Sequence[NodeMemory],
    checks: Sequence[Check],
) -> None:
    """Write everything that the printed lines were made of. The file appears whole or not at all."""
    record = {
        "producer": f"inferswarm {__version__}",
        "graph": msgspec.to_builtins(graph),
        "graph_digest": digest(graph),
        "plan": msgspec.to_builtins(plan),
        "plan_digest": digest(plan),
        "session": msgspec.to_builtins(answer.record),
        "stages": [_fields(report) for report in answer.reports],
        "memory": {item.node_name: msgspec.to_builtins(item.report) for item in memory},
        "checks": [check._asdict() for check in checks],
    }
    partial = path.with_suffix(".json.partial")
    partial.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(path)


def _fields(struct: msgspec.Struct) -> dict[str, object]:
    """Return a struct that travels as an array with its field names."""
    return {name: getattr(struct, name) for name in struct.__struct_fields__}
