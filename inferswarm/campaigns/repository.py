"""The commit that a project is at, and whether what a run depends on differs from it."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from inferswarm.campaigns.git_objects import GIT, QUESTION_SECONDS, GitObjects, git_environment
from inferswarm.campaigns.package_tree import PACKAGE_NAME, is_of_tree, package_tree, tree_of
from inferswarm.documents import Document, digest_bytes
from inferswarm.errors import EvidenceError

DECISIVE_PATHS = ("inferswarm", "experiments", "notebooks/arms", "pyproject.toml", "constraints.txt")
"""What a run depends on. Evidence itself is not among them: a run writes it."""


class Repository(Document, frozen=True, kw_only=True):
    """Where a project stands. Without a commit (`reason` says why) it counts as changed: nothing shows otherwise."""

    commit: str
    dirty: bool
    diff_digest: Annotated[str, msgspec.Meta(pattern=r"^(sha256:[0-9a-f]{64})?\Z")]
    """Of what differs from the commit; "" where nothing does, or where there is none."""
    reason: str


def read_repository(project: Path) -> Repository:
    """Ask git about the project's decisive paths. Never raises: what cannot be found out is its reason.

    Nothing is taken from the repository's own index, which can be told to overlook changes, and the package is
    compared file by file: git overlooks what it is told to ignore.
    """
    try:
        commit = _git(project, {}, "rev-parse", "--verify", "HEAD").decode().strip()
        changes = _changes(project, commit) + _package_changes(project, commit)
    except OSError as error:
        return _unknown(f"git: {error.strerror}")
    except subprocess.CalledProcessError as error:
        said = (error.stderr.decode(errors="replace").strip().splitlines() or [f"status {error.returncode}"])[0]
        return _unknown(f"git: {said}")
    except subprocess.TimeoutExpired:
        return _unknown(f"git did not answer within {QUESTION_SECONDS} s")
    except EvidenceError as error:
        return _unknown(str(error))
    return Repository(
        commit=commit, dirty=bool(changes), diff_digest=digest_bytes(changes) if changes else "", reason=""
    )


def _unknown(reason: str) -> Repository:
    return Repository(commit="", dirty=True, diff_digest="", reason=reason)


def _changes(project: Path, commit: str) -> bytes:
    """Return what git says that differs from the commit, nothing where nothing does."""
    with tempfile.TemporaryDirectory() as work:
        index = {"GIT_INDEX_FILE": os.path.join(work, "index")}
        _git(project, index, "read-tree", commit)
        shown = ("--porcelain=v1", "-z", "--untracked-files=all")
        status = _git(project, index, "status", *shown, "--", *DECISIVE_PATHS)
        if not status:
            return b""
        plain = ("--binary", "--no-ext-diff", "--no-textconv")
        return status + _git(project, index, "diff", commit, *plain, "--", *DECISIVE_PATHS)


def _package_changes(project: Path, commit: str) -> bytes:
    """Return the digest of the project's package where it is another than the commit's, which may have none."""
    if not (project / PACKAGE_NAME).is_dir():
        return b""
    with GitObjects(project) as objects:
        committed = package_digest_at(objects, commit)
    there = package_tree(project).digest
    return b"" if committed in ("", there) else there.encode()


def package_digest_at(objects: GitObjects, commit: str) -> str:
    """Return the digest of the package at a commit, "" where the repository does not hold it.

    Raises EvidenceError as `GitObjects.files_below` does.
    """
    files = objects.files_below(commit, (*objects.prefix, PACKAGE_NAME), "")
    tree = tree_of((f"{PACKAGE_NAME}/{path}", data) for path, data in files if is_of_tree(path))
    return tree.digest if tree.files else ""


def _git(project: Path, variables: Mapping[str, str], *arguments: str) -> bytes:
    command = [*GIT, "-c", "core.sparseCheckout=false", "-c", "core.fsmonitor=false", "-C", str(project), *arguments]
    environment = {**git_environment(), **variables}
    return subprocess.run(command, capture_output=True, check=True, timeout=QUESTION_SECONDS, env=environment).stdout
