"""Which Ray node an agent belongs on, what is refused, and what a machine without Ray is told."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from inferswarm.errors import SpecError
from inferswarm.fabric.engines.local import LocalSettings
from inferswarm.fabric.engines.ray_engine import RayEngine
from inferswarm.fabric.engines.ray_placing import Place, RayNode, choose_ray_node, own_place, refuse_elsewhere
from inferswarm.swarm import Swarm


def node(ray_node: str, name: str = "amber", is_alive: bool = True) -> RayNode:
    return RayNode(name=name, ray_node=ray_node, is_alive=is_alive)


@pytest.mark.parametrize(
    ("nodes", "lost_on", "chosen"),
    [
        ([node("1"), node("2", "birch")], (), "1"),
        ([node("1", is_alive=False), node("2")], (), "2"),
        ([node("1"), node("2")], ("1",), "2"),  # the first has gone, and Ray has not noticed yet
        ([node("1")], ("1",), "1"),  # its agent was killed, and it is well
    ],
    ids=["by its label", "alive", "another than the lost one", "the lost one alone"],
)
def test_an_agent_goes_where_its_nodes_name_is(nodes: list[RayNode], lost_on: tuple[str, ...], chosen: str) -> None:
    assert choose_ray_node(nodes, "amber", lost_on) == chosen


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([], "a live Ray node: []"),
        ([node("1", "birch"), node("2", is_alive=False), node("3", "")], "['birch']"),
        ([node("1"), node("2")], "not 2: ['1', '2']"),
    ],
    ids=["none", "another name", "ambiguous"],
)
def test_a_name_that_is_nowhere_or_twice_is_refused(nodes: list[RayNode], said: str) -> None:
    with pytest.raises(SpecError) as refused:
        choose_ray_node(nodes, "amber")
    assert said in str(refused.value)


def test_another_machine_and_another_version_are_refused() -> None:
    own = own_place()
    refuse_elsewhere("amber", own, own_place())
    with pytest.raises(SpecError, match="on this machine"):
        refuse_elsewhere("amber", Place(machine="elsewhere", package=own.package), own)
    with pytest.raises(SpecError, match="not the other"):
        refuse_elsewhere("amber", Place(machine=own.machine, package="the other"), own)


def test_without_ray_a_typed_error_names_the_extra_and_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SpecError, match=r"inferswarm\[ray\]"):
        RayEngine(LocalSettings(scope="x", ledger=str(tmp_path / "ledger"), token="x"), "127.0.0.1:1")
    monkeypatch.setattr("inferswarm.swarm.starting.tempfile.mkdtemp", lambda prefix: str(tmp_path / "temporary"))
    with pytest.raises(SpecError, match=r"inferswarm\[ray\]"):
        Swarm.ray("127.0.0.1:1", state=tmp_path / "state")
    assert not (tmp_path / "temporary").exists()


def test_no_module_but_the_drivers_imports_ray() -> None:
    modules = ("ray_engine", "ray_agent", "ray_messages", "ray_placing")
    code = "\n".join(f"import inferswarm.fabric.engines.{module}" for module in modules)
    code += "\nimport inferswarm.swarm.swarm, sys\nprint('ray' in sys.modules)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert child.stdout.split() == ["False"]
