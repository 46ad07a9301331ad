"""Small topologies for tests: texts put together from tables, and a writer of TOML for made-up data."""

from __future__ import annotations

import json
from typing import Any

HEAD = """
format = "inferswarm.topology/1"
name = "test"
summary = "A topology for tests."
figures_from = "nowhere"
"""
MEMORY = """
[[node.memory]]
name = "ram"
kind = "ram"
capacity = "16 GiB"
reserved = "2 GiB"
read_bandwidth = "40 GB/s"
"""
CPU = """
[[node.compute_unit]]
name = "cpu"
kind = "cpu"
threads = 4
memory = ["ram"]
backends = ["torch"]
representations = ["bf16", "fp32"]
arithmetic = { bf16 = "1 TFLOP/s", fp32 = "500 GFLOP/s" }
unit_overhead = "50 us"
"""
CARD = """
[[node.memory]]
name = "vram"
kind = "vram"
capacity = "8 GiB"
reserved = "1 GiB"
read_bandwidth = "400 GB/s"

[[node.compute_unit]]
name = "gpu"
kind = "cuda"
memory = ["vram", "ram"]
backends = ["torch"]
representations = ["bf16", "fp32"]
arithmetic = { bf16 = "20 TFLOP/s", fp32 = "10 TFLOP/s" }
unit_overhead = "80 us"
copy = { into = "20 GB/s", out = "10 GB/s", latency = "10 us" }
"""
LAN = """
[[network]]
name = "lan"
kind = "ethernet"
nodes = ["*"]
sharing = "switch"
rate = "1 Gbit/s"
latency = "200 us"
"""


def node(name: str, *parts: str) -> str:
    """Return a Node's table with its memory, its CPU, and what else is given."""
    return f'\n[[node]]\nname = "{name}"\n{"".join(parts) or MEMORY + CPU}'


def link(source: str, target: str, **keys: Any) -> str:
    """Return the table of a Link of 1 Gbit/s and 0.1 ms, unless told otherwise."""
    fields = {"from": source, "to": target, "kind": "ethernet", "rate": "1 Gbit/s", "latency": "0.1 ms"} | keys
    lines = [f"{key} = {json.dumps(value)}" for key, value in fields.items() if value is not None]
    return "\n[[link]]\n" + "\n".join(lines) + "\n"


def topology(*tables: str) -> str:
    """Return a whole file."""
    return HEAD + "".join(tables)


def to_toml(data: dict[str, Any]) -> str:
    """Write data of texts, numbers, booleans, lists and tables as TOML; all of it inline."""
    return "".join(f"{json.dumps(str(key))} = {_value(value)}\n" for key, value in data.items())


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))} = {_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, str):
        return json.dumps(value).replace("\x7f", "\\u007f")
    if isinstance(value, float):
        return {"inf": "inf", "-inf": "-inf", "nan": "nan"}.get(str(value), repr(value))
    return json.dumps(value)
