"""Executing an arm's notebook with papermill. Nothing else in this package imports papermill or Jupyter.

Everything is relative to the working directory, a scratch directory of the run: papermill takes paths for format
strings and writes them into the notebook. The kernel is this very interpreter, whatever kernels are installed, and is
spoken to over Unix sockets: other kernels that start at the same time cannot take its ports.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import papermill
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager

from inferswarm.campaigns.child_layout import CONNECTION, EXECUTED, KERNEL_PID, SOURCE
from inferswarm.campaigns.notebooks import KERNEL_NAME, LANGUAGE
from inferswarm.campaigns.records import Parameter

START_SECONDS = 120
"""For a kernel to start: a second, but a minute was not enough where many started at once."""
IOPUB_SECONDS = 60
"""For a cell's output to arrive after the cell has ended; what comes later would be missing without a word."""


class IpcKernelManager(AsyncKernelManager):
    """Starts kernels with this interpreter, on Unix sockets beside the connection file, and notes their process."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.transport = "ipc"
        self.connection_file = str(Path("..", CONNECTION).resolve())

    @property
    def kernel_spec(self) -> KernelSpec:
        """Return how the kernel is started, whatever its name."""
        command = [sys.executable, "-m", "inferswarm.campaigns.kernel", "-f", "{connection_file}"]
        command += ["--InteractiveShell.automagic=False"]  # or `ls -l` is a magic, and not a difference
        return KernelSpec(argv=command, display_name="Python 3", language=LANGUAGE)

    async def _async_launch_kernel(self, kernel_cmd: list[str], **options: Any) -> None:
        await super()._async_launch_kernel(kernel_cmd, **options)
        Path("..", KERNEL_PID).write_text(str(getattr(self.provisioner, "pid", "")), encoding="utf-8")

    _launch_kernel = _async_launch_kernel


def execute(parameters: tuple[Parameter, ...]) -> None:
    """Execute `../source.ipynb` to `../executed.ipynb`. Raises what papermill and nbclient raise."""
    papermill.execute_notebook(
        f"../{SOURCE}",
        f"../{EXECUTED}",
        parameters={item.name: item.value for item in parameters},
        kernel_name=KERNEL_NAME,
        language=LANGUAGE,
        progress_bar=False,
        start_timeout=START_SECONDS,
        stdout_file=sys.stdout,
        stderr_file=sys.stderr,
        kernel_manager_class=IpcKernelManager,
        iopub_timeout=IOPUB_SECONDS,
    )
