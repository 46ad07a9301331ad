"""The commit that a project is at, and whether what a run depends on differs from it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Annotated

import msgspec

from inferswarm.documents import Document, digest_bytes

DECISIVE_PATHS = ("inferswarm", "experiments", "notebooks/arms", "pyproject.toml", "constraints.txt")
"""What a run depends on. Evidence itself is not among them: a run writes it."""
TIMEOUT_SECONDS = 60.0
"""For one question to git: a repository on a slow disk takes seconds."""


class Repository(Document, frozen=True, kw_only=True):
    """Where a project stands. Without a commit (`reason` says why) it counts as changed: nothing shows otherwise."""

    commit: str
    dirty: bool
    diff_digest: Annotated[str, msgspec.Meta(pattern=r"^(sha256:[0-9a-f]{64})?$")]
    """Of what differs from the commit; "" where nothing does, or where there is none."""
    reason: str


def read_repository(project: Path) -> Repository:
    """Ask git about the project's decisive paths. Never raises: what cannot be found out is its reason."""
    try:
        commit = _git(project, "rev-parse", "--verify", "HEAD").decode().strip()
        status = _git(project, "status", "--porcelain=v1", "-z", "--untracked-files=all", "--", *DECISIVE_PATHS)
        changes = _git(project, "diff", "HEAD", "--binary", "--", *DECISIVE_PATHS) if status else b""
    except OSError as error:
        return Repository(commit="", dirty=True, diff_digest="", reason=f"git: {error.strerror}")
    except subprocess.CalledProcessError as error:
        said = (error.stderr.decode(errors="replace").strip().splitlines() or [f"status {error.returncode}"])[0]
        return Repository(commit="", dirty=True, diff_digest="", reason=f"git: {said}")
    except subprocess.TimeoutExpired:
        return Repository(
            commit="", dirty=True, diff_digest="", reason=f"git did not answer within {TIMEOUT_SECONDS:g} s"
        )
    return Repository(
        commit=commit, dirty=bool(status), diff_digest=digest_bytes(status + changes) if status else "", reason=""
    )


def _git(project: Path, *arguments: str) -> bytes:
    command = ["git", "--no-optional-locks", "-C", str(project), *arguments]
    return subprocess.run(command, capture_output=True, check=True, timeout=TIMEOUT_SECONDS).stdout
