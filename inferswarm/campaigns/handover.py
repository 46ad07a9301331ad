"""What the parent of a run hands to the processes that it starts: where the run is, and how its processes are known.

Everything goes through the environment, which children inherit: the nonce marks every process of the run, so that
those that outlive it can be found; the directory stays out of the notebook, so that no path of this machine gets into
what is published.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from inferswarm.errors import SpecError

RUN_DIRECTORY = "INFERSWARM_RUN_DIRECTORY"
"""Environment variable: the run's directory, absolute."""
RUN_NONCE = "INFERSWARM_RUN_NONCE"
"""Environment variable: the nonce of the run's request."""


RUN_PROJECT = "INFERSWARM_RUN_PROJECT"
"""Environment variable: the directory of the project whose campaign is run, absolute."""


def handed_over(directory: Path, nonce: str, project: Path) -> dict[str, str]:
    """Return the variables that say to a process which run it belongs to."""
    return {RUN_DIRECTORY: str(directory), RUN_NONCE: nonce, RUN_PROJECT: str(project.resolve())}


def given_project(variables: Mapping[str, str] = os.environ) -> Path | None:
    """Return the project of the run that this process was started for, if it was for one."""
    return Path(variables[RUN_PROJECT]) if variables.get(RUN_PROJECT) else None


def given_run(run: str, variables: Mapping[str, str] = os.environ) -> tuple[Path, str]:
    """Return the directory and the nonce of the run that this process was started for.

    Raises SpecError when it was started for none, or for another than `run`.
    """
    directory, nonce = variables.get(RUN_DIRECTORY, ""), variables.get(RUN_NONCE, "")
    if not directory or not nonce:
        raise SpecError("run", run, "'' for a rehearsal: only `inferswarm campaign run` starts a run")
    if Path(directory).name != run:
        raise SpecError("run", run, f"{Path(directory).name!r}, for which this process was started")
    return Path(directory), nonce
