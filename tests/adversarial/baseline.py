"""The baselines that every control starts from: made once by the runner, and copied."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from inferswarm.campaigns.signing import make_keys, sign_run
from inferswarm.campaigns.verdicts import RootVerdict
from inferswarm.campaigns.verify import verify_root
from tests.adversarial.tiny_project import commit, doctor_a_cache, git, make_project, run_command, run_green, run_red


class Baseline(NamedTuple):
    """A committed project, its two evidence roots, and the key that the green one is signed with."""

    project: Path
    roots: dict[str, Path]
    public_key: bytes

    def copy(self, root: str, directory: Path) -> Path:
        """Copy a root to where it can be changed."""
        return Path(shutil.copytree(self.roots[root], directory / "evidence", symlinks=True))

    def verify(self, root: str, where: Path, project: bool = True) -> RootVerdict:
        """Verify a copy of a root; signatures are asked of the green one."""
        keys = (self.public_key,) if root == "green" else ()
        return verify_root(where, self.project if project else None, public_keys=keys)


def make_baseline(directory: Path) -> Baseline:
    """Run both campaigns, accept and sign the green one, and commit the evidence of both."""
    project = make_project(directory / "project")
    doctor_a_cache(project)  # whoever reads it makes a PASS of the flaky arm's FAIL
    private, public = directory / "key.pem", directory / "key.pub"
    make_keys(private, public)
    with ThreadPoolExecutor(2) as pool:
        green, red = pool.submit(run_green, project), pool.submit(run_red, project)
        roots = {"green": green.result(), "red": red.result()}
    for run in (roots["green"] / "green").iterdir():
        sign_run(run, private)
    where = ("--evidence", str(roots["green"]))
    run_command(project, "accept", "green", "--reason", "read", "--by", "tests", *where)
    git(project, "add", "--all")
    commit(project, "evidence")
    return Baseline(project, roots, public.read_bytes())
