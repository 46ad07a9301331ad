"""What importing a package brings along: planning and verifying need neither torch, sockets nor pictures."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "zmq", "matplotlib")
LIGHT_PACKAGES = (
    "inferswarm",
    "inferswarm.planner",
    "inferswarm.resources",
    "inferswarm.evidence",
    "inferswarm.strategies",
    "inferswarm.artifacts",
)


def loaded_after(statement: str, watched: tuple[str, ...]) -> list[str]:
    """Run a statement in a fresh interpreter and return which of the watched modules it loaded."""
    code = f"import sys\n{statement}\nprint(*(name for name in {watched!r} if name in sys.modules))"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return child.stdout.split()


@pytest.mark.parametrize("package", LIGHT_PACKAGES)
def test_importing_a_package_loads_nothing_heavy(package):
    assert loaded_after(f"import {package}", HEAVY) == []


def test_importing_the_front_door_loads_no_other_package():
    assert loaded_after("import inferswarm", ("inferswarm.planner", "inferswarm.swarm", "msgspec", "networkx")) == []


def test_views_load_matplotlib_only_to_draw():
    modules = ("drawing", "html", "text")
    statement = "\n".join(f"import inferswarm.views.{module}" for module in modules)
    assert loaded_after(statement, (*HEAVY, "IPython")) == []


def test_a_heavy_import_would_be_noticed():
    assert loaded_after("import json.tool, sqlite3", ("sqlite3", "torch")) == ["sqlite3"]
