"""Where a run came from: that what it froze, and the package that it used, are those of the commit that it names.

It takes a repository that has that commit. Without one, or for a run from a changed tree, nothing is proven and
nothing is broken. Evidence is held against its own commit, never against the tree as it is today.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

from inferswarm.campaigns import layout
from inferswarm.campaigns.bundle import Run
from inferswarm.campaigns.committed_ledgers import COMMIT_CHARACTERS, CommittedLedger, committed_ledgers
from inferswarm.campaigns.findings import broken, compared, proven, unproven
from inferswarm.campaigns.git_objects import GitObjects
from inferswarm.campaigns.laws import Finding
from inferswarm.campaigns.package_tree import PACKAGE_NAME
from inferswarm.campaigns.records import Request
from inferswarm.campaigns.repository import package_digest_at
from inferswarm.documents import digest_bytes
from inferswarm.errors import EvidenceError

COMMITTED: Final = "expectations-committed"
PACKAGE: Final = "package-at-commit"


class Provenance:
    """The repository of a project, or the reason why there is none; package digests are computed once a commit."""

    def __init__(self, objects: GitObjects | None, reason: str) -> None:
        self._objects = objects
        self._reason = reason
        self._package_digests: dict[str, str] = {}
        self._ledgers: tuple[CommittedLedger, ...] | None = None

    def check(self, run: Run) -> Iterator[Finding]:
        """Yield the findings of both laws for a run."""
        request = run.request
        if request is None:
            reason = "there is no request that would name a commit"
        elif request.dirty:
            reason = f"the project differed from its commit {request.commit or '(none)'}"
        else:
            reason = self._reason
        if request is None or self._objects is None or reason:
            yield unproven(COMMITTED, layout.REQUEST, "campaign, expectations and notebook as committed", reason)
            yield unproven(PACKAGE, layout.REQUEST, "the package as committed", reason)
            return
        try:
            yield from self._committed(run, request, self._objects)
            yield self._package(request, self._objects)
        except EvidenceError as error:
            yield unproven(COMMITTED, layout.REQUEST, f"commit {request.commit}", str(error))
            yield unproven(PACKAGE, layout.REQUEST, f"commit {request.commit}", str(error))

    def _committed(self, run: Run, request: Request, objects: GitObjects) -> Iterator[Finding]:
        folder = (layout.EXPERIMENTS, request.campaign)
        places: dict[str, tuple[str, ...]] = {
            layout.CAMPAIGN: (*folder, layout.CAMPAIGN),
            layout.EXPECTATIONS: (*folder, layout.EXPECTATIONS),
        }
        if run.arm is None:
            yield unproven(COMMITTED, layout.NOTEBOOK, "the notebook as committed", "the arm is not known")
        else:
            places[layout.NOTEBOOK] = PurePosixPath(run.arm.notebook).parts
        for name, place in places.items():
            data = objects.file_at(request.commit, (*objects.prefix, *place))
            found = "no such file" if data is None else digest_bytes(data)
            path = f"{request.commit[:COMMIT_CHARACTERS]}:{'/'.join(place)}"
            yield compared(COMMITTED, path, run.bundle.digest(name), found)
        yield from self._before(request, objects)
        made, requested = objects.commit_seconds(request.commit), int(request.requested_at) // layout.NANOSECONDS
        if made > requested:
            wanted = "a commit from before the request"
            yield unproven(COMMITTED, layout.REQUEST, wanted, f"made {made - requested} s after it")

    def _before(self, request: Request, objects: GitObjects) -> Iterator[Finding]:
        """The commit is in the history of the newest one, and came before each that has the run in its ledger.

        Its time is only its own word: without this, whoever has seen the samples can commit another expectation.
        """
        path = request.commit[:COMMIT_CHARACTERS]
        if not objects.is_ancestor(request.commit, objects.head()):
            yield unproven(COMMITTED, path, "a commit in the history of HEAD", "HEAD does not come from it")
        if self._ledgers is None:
            self._ledgers = committed_ledgers(objects, with_logs=False)
        for commit in {item.commit for item in self._ledgers if request.run_id in item.marks}:
            if commit == request.commit or not objects.is_ancestor(request.commit, commit):
                wanted = f"a commit from before {commit[:COMMIT_CHARACTERS]}, which has the run already"
                yield unproven(COMMITTED, path, wanted, "one that does not lead to it")

    def _package(self, request: Request, objects: GitObjects) -> Finding:
        if request.commit not in self._package_digests:
            self._package_digests[request.commit] = package_digest_at(objects, request.commit)
        found = self._package_digests[request.commit]
        path = f"{request.commit[:COMMIT_CHARACTERS]}:{PACKAGE_NAME}"
        if not found:
            return unproven(PACKAGE, path, request.package_digest, "the repository does not hold the package")
        if found == request.package_digest:
            return proven(PACKAGE, path, found)
        return broken(PACKAGE, path, request.package_digest, found)
