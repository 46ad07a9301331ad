"""The process of a kernel: IPython's own, which is killed when papermill ends."""

from __future__ import annotations

import os
import runpy

from inferswarm.campaigns.processes import die_with_parent

PARENT_VARIABLE = "JPY_PARENT_PID"
"""Environment variable in which `jupyter_client` names the process that starts a kernel."""


def main() -> None:
    """Become the kernel that the command line's arguments describe."""
    die_with_parent(int(os.environ[PARENT_VARIABLE]))
    runpy.run_module("ipykernel_launcher", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
