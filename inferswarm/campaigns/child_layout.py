"""The working directory of a run's processes: where the child finds what it executes, and what it leaves.

It is not part of the run, and goes with it. The child names everything relative to its scratch directory: papermill
takes paths for format strings and writes them into the notebook.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from inferswarm.campaigns.package_tree import python_path
from inferswarm.campaigns.records import Parameter
from inferswarm.campaigns.spec import RUN_PARAMETER
from inferswarm.documents import Document

SCRATCH = "scratch"
ORDERS = "child.json"
KERNEL_PID = "kernel.pid"
SOURCE = "source.ipynb"
EXECUTED = "executed.ipynb"
BYTECODE = "bytecode"
CONNECTION = "kernel/k.json"
"""Short, because the kernel's sockets lie beside it: the path of a Unix socket has at most 107 bytes."""


class ChildOrders(Document, frozen=True, kw_only=True):
    """What the child is to do, beside what lies beside it: the values of the parameters, with their types."""

    parameters: tuple[Parameter, ...]


def lay_out(work: Path, notebook: bytes, run_id: str, parameters: tuple[Parameter, ...]) -> tuple[str, ...]:
    """Fill a working directory for the child, and return the command that starts it there."""
    for path in (work / SCRATCH, (work / CONNECTION).parent, work / "ipython"):
        path.mkdir()
    (work / SOURCE).write_bytes(notebook)
    orders = ChildOrders(parameters=(Parameter(RUN_PARAMETER, run_id), *parameters))
    # Not canonical bytes: those write 1.0 as 1, and the notebook would get another type.
    (work / ORDERS).write_bytes(msgspec.json.encode(orders))
    return (sys.executable, "-m", "inferswarm.campaigns.child")


def variables(work: Path) -> dict[str, str]:
    """Return environment variables that keep what is not of the run out of it.

    That is: a user's own start-up files and settings of IPython; another copy of the package than the parent's; and
    bytecode that lies beside sources and may be of others. It is compiled anew, once for all processes of the run.
    """
    return {
        "IPYTHONDIR": str(work / "ipython"),
        "JUPYTER_RUNTIME_DIR": str((work / CONNECTION).parent),
        "PYTHONPATH": python_path(),
        "PYTHONPYCACHEPREFIX": str(work / BYTECODE),
        "PYTHONDONTWRITEBYTECODE": "",  # not set, for Python
    }
