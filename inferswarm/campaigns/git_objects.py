"""What a repository holds at a commit, read object by object, each held against the name that git gives it.

Only objects that are here are read: nothing is fetched, no replacement and no hook of the repository's takes part. A
name is a SHA-1 (or, in repositories of that kind, a SHA-256) of the object; that it is believed is git's own promise.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, NamedTuple, Self

from inferswarm.errors import EvidenceError

_NAME: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_TIME: Final = re.compile(rb"^committer .*> (\d+) [+-]\d{4}$", re.MULTILINE)
_FOLDER: Final = b"40000"
_FILES: Final = (b"100644", b"100755")
QUESTION_SECONDS: Final = 60
"""For one question to git: on a slow disk a repository takes seconds."""
GIT: Final = ("git", "--no-replace-objects", "--no-optional-locks", "-c", "advice.graftFileDeprecated=false")
"""How git is called: nothing is written, no hook of the repository's takes part, no object stands for another."""


class TreeEntry(NamedTuple):
    """One name in a folder of a commit; `mode` as git writes it."""

    mode: bytes
    object_name: str


class GitObjects:
    """The objects of the repository that a folder belongs to. A context manager: it holds a process of git.

    Raises EvidenceError where there is no git, or no repository.
    """

    def __init__(self, folder: Path) -> None:
        self._environment = git_environment()
        self._command = [*GIT, "-C", str(folder)]
        self.prefix = tuple(part for part in self._ask("rev-parse", "--show-prefix").split("/") if part)
        """The folder's own path in the repository."""
        self.top = Path(self._ask("rev-parse", "--show-toplevel"))
        self._trees: dict[str, dict[str, TreeEntry]] = {}
        self._parents: dict[str, tuple[str, ...]] = {}
        self._known_places: dict[tuple[str, str], tuple[tuple[str, ...], ...]] = {}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process of git."""
        if self._process is not None:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.close()
            self._process.stdout.close()
            self._process.wait()
            self._process = None

    def head(self) -> str:
        """Return the commit that the repository is at. Raises EvidenceError where there is none."""
        return self._ask("rev-parse", "--verify", "HEAD^{commit}")

    def is_ancestor(self, old: str, new: str) -> bool:
        """Return whether a commit is another, or came before it, by the parents that each names.

        Commits that are not here (a shallow clone has few) lead nowhere. Raises EvidenceError when `new` is not here.
        """
        seen, left = {new}, [new]
        while left and old not in seen:
            name = left.pop()
            try:
                parents = self._parents_of(name)
            except EvidenceError:
                if name == new:
                    raise
                continue
            left += [parent for parent in parents if parent not in seen]
            seen.update(parents)
        return old in seen and self._is_here(old)

    def versions(self, name: str, with_logs: bool) -> Iterator[tuple[str, tuple[str, ...], bytes]]:
        """Yield every version of the plain files of one name, in whatever folder, that any ref's history has.

        Each with a commit that has it, its path in the repository, and its bytes; `with_logs`: also of commits that a
        ref was at before. Raises EvidenceError as `file_at` does: of what is lost, nobody knows what it was.
        """
        which = ("--all", *(("--reflog",) if with_logs else ()), "--full-history")
        for commit in self._ask("rev-list", *which, "--", f":(top,glob)**/{name}").split():
            for path in self._places(self._root(commit), name):
                if (data := self.file_at(commit, path)) is not None:
                    yield commit, path, data

    def _places(self, tree: str, name: str) -> tuple[tuple[str, ...], ...]:
        """Return the paths below a folder that end with a name."""
        if (tree, name) not in self._known_places:
            entries = self._tree(tree).items()
            here = [(name,)] if name in self._tree(tree) else []
            below = [
                (folder, *path)
                for folder, entry in entries
                if entry.mode == _FOLDER
                for path in self._places(entry.object_name, name)
            ]
            self._known_places[tree, name] = (*here, *below)
        return self._known_places[tree, name]

    def _root(self, commit: str) -> str:
        header = self._read(commit, "commit").split(b"\n", 1)[0]
        return header.removeprefix(b"tree ").decode("ascii", "replace")

    def _is_here(self, commit: str) -> bool:
        try:
            self._parents_of(commit)
        except EvidenceError:
            return False
        return True

    def _parents_of(self, commit: str) -> tuple[str, ...]:
        if commit not in self._parents:
            header = self._read(commit, "commit").split(b"\n\n")[0].splitlines()
            lines = (line.removeprefix(b"parent ") for line in header if line.startswith(b"parent "))
            self._parents[commit] = tuple(line.decode("ascii", "replace") for line in lines)
        return self._parents[commit]

    def commit_seconds(self, commit: str) -> int:
        """Return when a commit was made, by its own word, in seconds since 1970. Raises EvidenceError without one."""
        found = _TIME.search(self._read(commit, "commit").split(b"\n\n")[0])
        if found is None:
            raise EvidenceError(f"commit {commit} has no time")
        return int(found.group(1))

    def file_at(self, commit: str, path: tuple[str, ...]) -> bytes | None:
        """Return the bytes of a plain file at a commit, or None where there is none.

        Raises EvidenceError when the commit, or anything on the way, is not here or is not what its name says.
        """
        entry = self._entry_at(commit, path)
        return self._read(entry.object_name, "blob") if entry is not None and entry.mode in _FILES else None

    def files_below(self, commit: str, folder: tuple[str, ...], suffix: str) -> Iterator[tuple[str, bytes]]:
        """Yield all plain files with this ending below a folder, by their path in it, with their bytes.

        Raises EvidenceError as `file_at` does, and for a link or a module with that ending: what it leads to is not
        in the commit.
        """
        entry = self._entry_at(commit, folder)
        if entry is not None and entry.mode == _FOLDER:
            yield from self._files(entry.object_name, "", suffix)

    def _files(self, tree: str, place: str, suffix: str) -> Iterator[tuple[str, bytes]]:
        for name, entry in self._tree(tree).items():
            path = f"{place}{name}"
            if entry.mode == _FOLDER:
                yield from self._files(entry.object_name, f"{path}/", suffix)
            elif entry.mode not in _FILES:
                raise EvidenceError(f"{path} is no plain file in the commit (mode {entry.mode.decode()})")
            elif name.endswith(suffix):
                yield path, self._read(entry.object_name, "blob")

    def _entry_at(self, commit: str, path: tuple[str, ...]) -> TreeEntry | None:
        entry = TreeEntry(_FOLDER, self._root(commit))
        for part in path:
            if entry.mode != _FOLDER:
                return None
            found = self._tree(entry.object_name).get(part)
            if found is None:
                return None
            entry = found
        return entry

    def _tree(self, name: str) -> dict[str, TreeEntry]:
        if name not in self._trees:
            self._trees[name] = dict(_tree_entries(self._read(name, "tree"), len(name) // 2))
        return self._trees[name]

    def _read(self, name: str, kind: str) -> bytes:
        """Return an object's content after computing its name again."""
        if not _NAME.fullmatch(name):
            raise EvidenceError(f"{name!r} is no name of an object")
        stdin, stdout = self._pipes()
        try:
            stdin.write(f"{name}\n".encode())
            stdin.flush()
            header = stdout.readline().split()
            if len(header) != 3:
                raise EvidenceError(f"{kind} {name} is not in the repository")
            data = stdout.read(int(header[2]))
            stdout.read(1)
        except (OSError, ValueError) as error:
            raise EvidenceError(f"git stopped answering: {error}") from error
        algorithm = hashlib.sha256 if len(name) == 64 else hashlib.sha1
        computed = algorithm(b"%s %d\0" % (header[1], len(data)) + data).hexdigest()
        if computed != name or header[1] != kind.encode():
            raise EvidenceError(f"{kind} {name} is a {header[1].decode()} whose name would be {computed}")
        return data

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        if self._process is None:
            self._process = subprocess.Popen(
                [*self._command, "cat-file", "--batch"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=self._environment,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def _ask(self, *question: str) -> str:
        try:
            done = subprocess.run(
                [*self._command, *question],
                capture_output=True,
                encoding="utf-8",
                errors="surrogateescape",
                check=True,
                timeout=QUESTION_SECONDS,
                env=self._environment,
            )
        except subprocess.CalledProcessError as error:
            said = (error.stderr.strip().splitlines() or [f"status {error.returncode}"])[0]
            raise EvidenceError(f"git: {said}") from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EvidenceError(f"git: {error}") from error
        return done.stdout.removesuffix("\n")


def _tree_entries(data: bytes, name_bytes: int) -> Iterator[tuple[str, TreeEntry]]:
    """Read git's form of a folder: mode, blank, name, zero, the object's name as bytes; again and again."""
    start = 0
    while start < len(data):
        blank = data.index(b" ", start)
        zero = data.index(b"\0", blank)
        end = zero + 1 + name_bytes
        name = data[blank + 1 : zero].decode("utf-8", "surrogateescape")
        yield name, TreeEntry(data[start:blank], data[zero + 1 : end].hex())
        start = end


def git_environment() -> dict[str, str]:
    """Return the environment without what would lead git elsewhere, and with what keeps it from fetching."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    fixed = {"GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0", "GIT_GRAFT_FILE": os.devnull, "LC_ALL": "C"}
    return {**kept, **fixed}
