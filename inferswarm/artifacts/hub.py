"""Models by a hub's id, `hf://owner/name[@revision][/file.gguf]`, through Hugging Face's own client and cache.

Promises: only what a model needs is fetched (configuration, the texts of its tokenizer, safetensors, or one GGUF
model), all of it at one commit; weights come last, so that a snapshot with its weights is whole; what is whole in
the cache serves when the hub cannot be reached. Where the hub is, who asks, where the cache lies and whether the
network may be used are the client's affair (HF_ENDPOINT, HF_TOKEN, HF_HUB_CACHE, HF_HUB_OFFLINE). Code that a
repository ships is never fetched.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import unquote

from inferswarm.artifacts.directory import (
    CONFIGURATION,
    GENERATION,
    INDEX,
    WEIGHTS,
    check_is_model,
    gguf_models,
    read_index,
)
from inferswarm.artifacts.gguf_files import part_names
from inferswarm.artifacts.taxonomy import SOURCE_UNAVAILABLE
from inferswarm.errors import ArtifactError, InferSwarmError, SpecError

FORM: Final = "hf://owner/name[@revision][/file.gguf]"
DEFAULT_REVISION: Final = "main"
TEXT_FILES: Final = (
    *(CONFIGURATION, GENERATION, "tokenizer.json", "tokenizer_config.json", "tokenizer.model"),
    *("special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt"),
    *("chat_template.jinja", "chat_template.json", INDEX),
)
"""Files beside the weights that say what the model is and how it reads and writes text."""

_TIMEOUT_SECONDS: Final = 10.0
_ID: Final = re.compile(
    r"hf://(?P<repository>[\w.-]+/[\w.-]+)(?:@(?P<revision>refs/(?:pr|convert)/[^/]+|[^/@]+))?(?:/(?P<file>.+))?"
)
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class HubId:
    """An id, taken apart."""

    uri: str
    repository: str
    revision: str
    file: str | None

    @property
    def where(self) -> str:
        """Return repository and revision, for messages."""
        return f"{self.repository}@{self.revision}"

    @property
    def commit(self) -> str | None:
        """Return the commit, where the revision is one."""
        return self.revision if _COMMIT.fullmatch(self.revision) else None


def parse_hub_id(uri: str, *, any_file: bool = False) -> HubId:
    """Return the parts of an id; a revision may be percent-encoded. Raises SpecError naming the form.

    The file is a GGUF model, or with `any_file` any file of the repository.

    >>> parse_hub_id("hf://owner/name@v1/small.gguf")
    HubId(uri='hf://owner/name@v1/small.gguf', repository='owner/name', revision='v1', file='small.gguf')
    """
    match = _ID.fullmatch(uri)
    if match is None:
        raise SpecError("model", uri, FORM)
    file = match["file"]
    if file is not None and not (_is_below(file) and (any_file or file.lower().endswith(".gguf"))):
        kind = "file" if any_file else "GGUF file"
        raise SpecError("model", uri, f"{FORM}: the path of a {kind} inside the repository")
    revision = unquote(match["revision"] or DEFAULT_REVISION)
    if not _is_below(revision):
        raise SpecError("model", uri, f"{FORM}: the name of a branch or tag, or a commit")
    return HubId(uri, match["repository"], revision, file)


def fetch_snapshot(uri: str, *, endpoint: str | None = None, cache: Path | None = None) -> Path:
    """Return the local directory or GGUF file of a hub's model, fetching what is not in the cache.

    `endpoint` and `cache` are the client's own when None. Raises SpecError for an id, a repository, a revision or a
    file that is not there or may not be read, and when several GGUF models could be meant; UnsupportedModel for
    weights that are not read; ArtifactError `SOURCE_OBJECT_UNAVAILABLE` naming repository and revision when the hub
    cannot be reached and the cache does not hold the whole model, or when a transfer fails.
    """
    wanted = parse_hub_id(uri)
    hub = HubRepository(wanted, endpoint, cache)
    if wanted.commit and (found := _find_complete(hub.snapshot(wanted.commit), wanted)):
        return found
    try:
        commit, names = hub.look_up()
    except ArtifactError as error:
        cached = hub.cached_commit()
        if cached is not None and (found := _find_complete(hub.snapshot(cached), wanted)):
            return found
        there = "holds no part of it" if cached is None else f"holds commit {cached[:12]} in part"
        raise ArtifactError(error.code, error.subject, f"{error.reason}; the cache {hub.folder} {there}") from error
    found = _fetch(hub, commit, names)
    hub.remember(commit)
    return found


def _fetch(hub: HubRepository, commit: str, names: frozenset[str]) -> Path:
    """Fetch a model at a commit: the texts first, then the weights that they call for."""
    wanted = hub.wanted
    check_names(names, wanted)
    file = wanted.file or only_gguf(names, wanted)
    if file is not None:
        paths = [hub.fetch(name, commit) for name in _parts(file)]
        return paths[0]
    for name in TEXT_FILES:
        if name in names:
            hub.fetch(name, commit)
    snapshot = hub.snapshot(commit)
    for name in _weights(snapshot):
        hub.fetch(name, commit)
    return snapshot


def check_names(names: frozenset[str], wanted: HubId) -> None:
    """Refuse an id of a file that the repository does not have. Raises SpecError naming those that it has."""
    if wanted.file is not None and wanted.file not in names:
        there = ", ".join(gguf_models(names)) or "none"
        raise SpecError("model", wanted.uri, f"a GGUF file of {wanted.where}, which holds: {there}")


def only_gguf(names: frozenset[str], wanted: HubId) -> str | None:
    """Return the one GGUF model of a repository without safetensors; None for one with safetensors.

    Raises SpecError when there are several, or none of either; UnsupportedModel for weights that are not read.
    """
    if CONFIGURATION not in names or not {WEIGHTS, INDEX} & names:
        models = gguf_models(names)
        if len(models) > 1:
            choices = ", ".join(f"hf://{wanted.repository}/{name}" for name in models)
            raise SpecError("model", wanted.uri, f"one of its GGUF models: {choices}")
        if models and _is_below(models[0]):
            return models[0]
    check_is_model(f"hf://{wanted.where}", names)
    return None


def _weights(snapshot: Path) -> tuple[str, ...]:
    """Return the names of a snapshot's files of weights, as its index has them."""
    if not (snapshot / INDEX).exists():
        return (WEIGHTS,)
    return tuple(sorted(set(read_index(snapshot / INDEX)[0].values())))


def _find_complete(snapshot: Path, wanted: HubId) -> Path | None:
    """Return what a snapshot of the cache has for an id, or None when it is not all there."""
    if wanted.file is not None:
        parts = [snapshot / name for name in _parts(wanted.file)]
        return parts[0] if all(part.is_file() for part in parts) else None
    try:
        if (snapshot / CONFIGURATION).is_file() and all((snapshot / name).is_file() for name in _weights(snapshot)):
            return snapshot
        names = frozenset(path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*.gguf"))
    except InferSwarmError:
        return None
    models = gguf_models(names)
    if len(models) != 1 or not all((snapshot / part).is_file() for part in _parts(models[0])):
        return None
    return snapshot / models[0]


def _parts(file: str) -> tuple[str, ...]:
    """Return the paths of all parts of the split model that a path in a repository belongs to."""
    path = PurePosixPath(file)
    return tuple(str(path.with_name(name)) for name in part_names(path.name))


def _is_below(path: str) -> bool:
    """Return whether a path stays below where it starts."""
    return bool(path) and not path.startswith("/") and not {"\\", "\0"} & set(path) and ".." not in path.split("/")


class HubRepository:
    """One repository of one hub, and its folder in the cache."""

    endpoint: str
    """Where the hub is."""
    folder: Path
    """What the client's cache has of the repository."""

    def __init__(self, wanted: HubId, endpoint: str | None, cache: Path | None) -> None:
        try:
            import huggingface_hub
            from huggingface_hub import constants
        except ImportError as error:
            raise SpecError("model", wanted.uri, "the hub's client: pip install 'inferswarm[fabric]'") from error
        self.wanted = wanted
        self.endpoint = endpoint or constants.ENDPOINT
        self.cache = Path(cache or constants.HF_HUB_CACHE)
        self.folder = self.cache / f"models--{wanted.repository.replace('/', '--')}"
        self._client: Any = huggingface_hub
        self._offline = bool(constants.HF_HUB_OFFLINE)

    def snapshot(self, commit: str) -> Path:
        """Return the folder of a commit in the cache, whether or not it is there."""
        return self.folder / "snapshots" / commit

    def cached_commit(self) -> str | None:
        """Return the commit that the cache knows for the revision."""
        if self.wanted.commit:
            return self.wanted.commit
        try:
            commit = (self.folder / "refs" / self.wanted.revision).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return None
        return commit if _COMMIT.fullmatch(commit) else None

    @property
    def is_offline(self) -> bool:
        """Return whether the client was told to ask nothing (HF_HUB_OFFLINE)."""
        return self._offline

    def address(self, name: str, commit: str) -> str:
        """Return the URL of a file at a commit."""
        return str(self._client.hf_hub_url(self.wanted.repository, name, revision=commit, endpoint=self.endpoint))

    def authorization(self) -> dict[str, str]:
        """Return the header field with the client's token, where it has one and may send it. Not to be shown."""
        found: str | None = self._client.utils.build_hf_headers().get("authorization")
        return {} if found is None else {"Authorization": found}

    def look_up(self) -> tuple[str, frozenset[str]]:
        """Ask the hub for the commit of the revision and the names of the files in it."""
        with _Translated(self, "its list of files"):
            api = self._client.HfApi(endpoint=self.endpoint)
            info = api.model_info(self.wanted.repository, revision=self.wanted.revision, timeout=_TIMEOUT_SECONDS)
            commit = info.sha
            names = frozenset(entry.rfilename for entry in info.siblings or ())
        if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
            raise ArtifactError(SOURCE_UNAVAILABLE, self.wanted.where, f"{self.endpoint} named no commit: {commit!r}")
        return commit, names

    def fetch(self, name: str, commit: str) -> Path:
        """Bring one file into the cache, or find it there."""
        with _Translated(self, name):
            return Path(
                self._client.hf_hub_download(
                    self.wanted.repository, name, revision=commit, endpoint=self.endpoint, cache_dir=self.cache
                )
            )

    def remember(self, commit: str) -> None:
        """Let the cache know which commit the revision was, now that the model is whole at that commit."""
        path = self.folder / "refs" / self.wanted.revision
        if self.wanted.revision == commit or self.cached_commit() == commit:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f"{path.name}.{os.getpid()}")
            temporary.write_text(commit, encoding="ascii")
            temporary.replace(path)
        except OSError as error:
            raise ArtifactError(SOURCE_UNAVAILABLE, str(path), f"cannot be written: {error.strerror}") from error


class _Translated:
    """Turns the client's errors about one file, or the list of files, into this project's."""

    def __init__(self, hub: HubRepository, what: str) -> None:
        self._hub, self._what = hub, what

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from huggingface_hub import errors

        # The client's base of transport errors comes from whichever HTTP library its version uses.
        transport = (errors.HTTPError, getattr(errors, "XetDownloadError", OSError), OSError)  # type: ignore[attr-defined]
        wanted, endpoint = self._hub.wanted, self._hub.endpoint
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(error, errors.RevisionNotFoundError):
            raise SpecError("model", wanted.uri, f"a revision that {wanted.repository} has at {endpoint}") from error
        if isinstance(error, errors.EntryNotFoundError) and status == 404:
            raise SpecError("model", wanted.uri, f"a revision with {self._what}; {endpoint} has none") from error
        if isinstance(error, errors.HFValidationError):
            raise SpecError("model", wanted.uri, f"{FORM}: {error}") from error
        if status in (401, 403, 404):
            raise SpecError(
                "model",
                wanted.uri,
                f"a repository that {endpoint} shows to you; it answered {status} for {self._what} "
                "(a private or gated one needs its terms accepted and a token: hf auth login)",
            ) from error
        if isinstance(error, transport):
            answered = f"answered {status}" if status is not None else f"failed: {_first_line(error)}"
            raise ArtifactError(
                SOURCE_UNAVAILABLE, f"hf://{wanted.where}", f"{self._what}: {endpoint} {answered}"
            ) from error
        if isinstance(error, (ValueError, TypeError, KeyError, AttributeError)):
            raise ArtifactError(
                SOURCE_UNAVAILABLE,
                f"hf://{wanted.where}",
                f"{self._what}: the answer of {endpoint} is not a hub's: {_first_line(error)}",
            ) from error


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
