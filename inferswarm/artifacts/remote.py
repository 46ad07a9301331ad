"""Models by address: texts fetched whole, of the weights only the headers, into a cache of this computer.

Takes the address of a GGUF file (any part of a split one), of a directory as Hugging Face lays it out (ending in
`/`), or an `hf://` id. Promises: of weights nothing behind the header is asked for (a header's reader asks in pieces,
the last of which may reach beyond it); what is kept of a version is not fetched again; a folder is complete when it
appears under its name. The result is read like files (`artifacts.headers`); who executes the model acquires its bytes
itself.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import secrets
import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, TypeVar
from urllib.parse import quote, unquote

import msgspec

from inferswarm.artifacts.directory import (
    ADAPTER,
    CONFIGURATION,
    INDEX,
    WEIGHTS,
    check_is_model,
    open_directory,
    read_index,
)
from inferswarm.artifacts.gguf import read_gguf
from inferswarm.artifacts.gguf_files import open_gguf, part_names
from inferswarm.artifacts.header_pruning import FOLDER_DIGITS, KEPT, MODELS, kept_name, prune_headers
from inferswarm.artifacts.headers import RECORD, KeptFile, KeptHeaders, header_cache, hold_kept, same_bytes
from inferswarm.artifacts.hub import TEXT_FILES, HubRepository, check_names, fetch_snapshot, only_gguf, parse_hub_id
from inferswarm.artifacts.identity import UpstreamObject
from inferswarm.artifacts.origin import LocalFileOrigin
from inferswarm.artifacts.origins.base import Origin, Readable
from inferswarm.artifacts.origins.http_client import HttpClient, without_query
from inferswarm.artifacts.origins.opening import HTTP_SCHEMES, HUB_SCHEME, find_origin, open_origin, scheme_of
from inferswarm.artifacts.safetensors import read_safetensors
from inferswarm.artifacts.taxonomy import SOURCE_UNAVAILABLE
from inferswarm.artifacts.types import ByteRange
from inferswarm.documents import digest, digest_bytes, write_document
from inferswarm.errors import ArtifactError, ModelError, SpecError

MAX_TEXT_BYTES: Final = 256 * 2**20
"""A text that is longer is refused; the largest tokenizers take about 40 MB."""
NUM_CONNECTIONS: Final = 4

_FORM: Final = "the address of a GGUF file (….gguf) or of a model directory (…/)"

Item = TypeVar("Item")
Result = TypeVar("Result")


class FetchedHeaders(NamedTuple):
    """Where a model's headers are kept, and what they cost."""

    path: Path
    """Read like the GGUF file, or the directory, of the model."""
    bytes_fetched: int
    """Bytes that were received now."""
    bytes_total: int
    """Bytes of all files of the model that were looked at: weights, configuration, texts."""


def fetch_headers(uri: str) -> FetchedHeaders:
    """Bring the headers and texts of a remote model to this computer, or find them there.

    Raises SpecError for a name that stands for no model, and as `open_origin`; ModelError or UnsupportedModel for
    files that are not what they seem; ArtifactError as the origins, and when the cache cannot be written.
    """
    if scheme_of(uri) == HUB_SCHEME:
        place = _hub_place(uri)
        if isinstance(place, Path):
            return FetchedHeaders(place, 0, sum(item.length for item in describe_files(place)))
    else:
        place = _address_place(uri)
    with HttpClient() as client:
        return _Fetching(place, client, header_cache()).run()


def describe_files(path: Path) -> tuple[UpstreamObject, ...]:
    """Return the files of weights of a model on this computer, or of one whose headers are kept here.

    Reads headers. Raises as `open_gguf` and `open_directory`.
    """
    return open_directory(path).objects if path.is_dir() else open_gguf(path).objects


@dataclass(frozen=True, slots=True)
class _Place:
    """A remote folder with a model in it."""

    uri: str
    name: str
    """What the folder is called."""
    file: str | None
    """The GGUF file in it that is the model, or None when the folder is."""
    names: frozenset[str] | None
    """The files in it; None where nobody can list them."""
    address: Callable[[str], str]
    """The address of a file in it."""


def _address_place(uri: str) -> _Place:
    encoded = scheme_of(uri) in HTTP_SCHEMES  # elsewhere a name is written as it is
    address, mark, query = uri.partition("?") if encoded else (uri, "", "")
    folder, _, last = address.rpartition("/")
    read, write = (unquote, quote) if encoded else (str, str)
    file, name = read(last), read(posixpath.basename(folder))
    if (encoded and "#" in uri) or not folder.partition("://")[2] or not _is_name(name):
        raise SpecError("model", without_query(uri), _FORM)
    if file and not (file.lower().endswith(".gguf") and _is_name(file)):
        raise SpecError("model", without_query(uri), _FORM)
    return _Place(uri, name, file or None, None, lambda item: f"{folder}/{write(item)}{mark}{query}")


def _hub_place(uri: str) -> _Place | Path:
    """Return the place of a repository at one commit, or what the cache holds of it where the hub cannot be asked."""
    wanted = parse_hub_id(uri)
    try:
        commit, names = HubRepository(wanted, None, None).look_up()
    except ArtifactError:
        return fetch_snapshot(uri)  # whole in the cache, or it says what is missing
    check_names(names, wanted)
    folder, file = posixpath.split(wanted.file or only_gguf(names, wanted) or "")
    base = f"hf://{wanted.repository}@{commit}/{folder}".rstrip("/")
    inside = frozenset(name.removeprefix(f"{folder}/") for name in names) if folder else names
    return _Place(uri, wanted.repository.split("/")[1], file or None, inside, lambda item: f"{base}/{item}")


class _Fetching:
    """The fetching of one model."""

    def __init__(self, place: _Place, client: HttpClient, cache: Path) -> None:
        self._place, self._client, self._cache = place, client, cache
        self._bytes_fetched: list[int] = []

    def run(self) -> FetchedHeaders:
        """Fetch what is not kept, and give it a folder."""
        place = self._place
        parts = () if place.file is None else part_names(place.file)
        files = _at_once(self._keep_gguf, parts) if parts else self._directory()
        files = sorted(files, key=lambda file: file.name)
        record = KeptHeaders(uri=without_query(place.uri), files=tuple(files))
        folder = self._folder(record)
        if not hold_kept(folder):
            folder = self._folder(record)  # it was pruned in that instant; it is the newest from here on
        prune_headers(self._cache)
        total = sum(file.upstream.length for file in files)
        return FetchedHeaders(folder / (place.file or ""), sum(self._bytes_fetched), total)

    def _directory(self) -> list[KeptFile]:
        """Keep texts first, then the headers of the files of weights that they call for."""
        place = self._place
        names = [name for name in TEXT_FILES if place.names is None or name in place.names]
        texts = [file for file in _at_once(self._keep_text, names) if file is not None]
        there = {file.name for file in texts}
        if INDEX in there:
            index = next(file for file in texts if file.name == INDEX)
            source = without_query(index.upstream.uri)
            weights: Sequence[str] = sorted(set(read_index(self._kept_path(index), source)[0].values()))
        else:
            weights = (WEIGHTS,)
        check_is_model(without_query(place.uri), place.names or self._seen(there, weights))
        return [*texts, *_at_once(self._keep_safetensors, weights)]

    def _seen(self, texts: set[str], weights: Sequence[str]) -> frozenset[str]:
        """Return what a folder that nobody can list is taken to hold; weights are opened by name later."""
        adapter = find_origin(self._place.address(ADAPTER), client=self._client)
        if adapter is not None:
            adapter.close()
        return frozenset({*texts, *(weights if CONFIGURATION in texts else ()), *((ADAPTER,) if adapter else ())})

    # -- one file --

    def _keep_text(self, name: str) -> KeptFile | None:
        origin = find_origin(self._place.address(name), client=self._client)
        if origin is None:
            return None

        def read_all(readable: Readable) -> None:
            if readable.length > MAX_TEXT_BYTES:
                raise ModelError(
                    origin.described.uri, f"has {readable.length:,} B; at most {MAX_TEXT_BYTES:,} B are read"
                )
            readable.read(ByteRange(0, readable.length))

        return self._keep(name, origin, read_all)

    def _keep_gguf(self, name: str) -> KeptFile:
        return self._keep(name, open_origin(self._place.address(name), client=self._client), read_gguf)

    def _keep_safetensors(self, name: str) -> KeptFile:
        return self._keep(name, open_origin(self._place.address(name), client=self._client), read_safetensors)

    def _keep(self, name: str, origin: Origin, read: Callable[[Readable], object]) -> KeptFile:
        """Return what is kept of a file; what `read` reads of it is kept where nothing is kept of this version."""
        with origin:
            described = origin.described
            if (kept := self._find(name, described)) is None:
                beginning = _Beginning(origin)
                read(beginning)
                kept = KeptFile(
                    name=name,
                    upstream=described,
                    num_bytes=len(beginning.data),
                    sha256=digest_bytes(beginning.data),
                )
                _write(self._kept_path(kept), beginning.data)
            if not isinstance(origin, LocalFileOrigin):
                self._bytes_fetched.append(origin.bytes_read)
        return kept

    def _find(self, name: str, described: UpstreamObject) -> KeptFile | None:
        if isinstance(described.version, msgspec.UnsetType):
            return None  # nothing tells the kept version from another
        for path in self._cache.glob(f"{KEPT}/{_hexadecimal(digest(described))}-*"):
            with contextlib.suppress(OSError, ValueError):
                sha256 = f"sha256:{path.name.rpartition('-')[2]}"
                kept = KeptFile(name=name, upstream=described, num_bytes=path.stat().st_size, sha256=sha256)
                if same_bytes(path, kept):
                    os.utime(path)
                    return kept
        return None

    def _kept_path(self, file: KeptFile) -> Path:
        return self._cache / KEPT / kept_name(file)

    # -- the folder --

    def _folder(self, record: KeptHeaders) -> Path:
        """Return the folder of a record; one that is damaged is made again."""
        outer = self._cache / MODELS / _hexadecimal(digest(record))[:FOLDER_DIGITS]
        folder = outer / self._place.name
        text = write_document(record).encode()
        if _is_whole(folder, record, text):
            with contextlib.suppress(OSError):
                os.utime(outer)  # the longest unused one is pruned first
            return folder
        temporary = outer.with_name(f"{outer.name}.{os.getpid()}.{secrets.token_hex(4)}")
        try:
            (temporary / self._place.name).mkdir(parents=True)
            for file in record.files:
                _place_file(self._kept_path(file), temporary / self._place.name / file.name)
            (temporary / self._place.name / RECORD).write_bytes(text)
            if outer.exists() and not _is_whole(folder, record, text):
                shutil.rmtree(outer)
            try:
                temporary.rename(outer)
            except OSError:
                if not _is_whole(folder, record, text):  # somebody else's is as good
                    raise
        except OSError as error:
            raise ArtifactError(SOURCE_UNAVAILABLE, str(outer), f"cannot be written: {error.strerror}") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return folder


class _Beginning:
    """An origin that keeps what is read of it from its first byte on, without holes."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self.data = bytearray()

    @property
    def described(self) -> UpstreamObject:
        return self._origin.described

    @property
    def length(self) -> int:
        return self._origin.length

    def read(self, wanted: ByteRange) -> bytes:
        data = self._origin.read(wanted)
        if wanted.start == len(self.data):
            self.data += data
        return data


def _at_once(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return the results of the items in order, worked on over a few connections."""
    with ThreadPoolExecutor(NUM_CONNECTIONS, thread_name_prefix="headers") as pool:
        return list(pool.map(work, items))


def _is_name(name: str) -> bool:
    return bool(name) and name not in (".", "..", RECORD) and not {"/", "\\", "\0"} & set(name)


def _hexadecimal(sha256: str) -> str:
    return sha256.removeprefix("sha256:")


def _is_whole(folder: Path, record: KeptHeaders, text: bytes) -> bool:
    try:
        said = (folder / RECORD).read_bytes()
    except OSError:
        return False
    return said == text and all(same_bytes(folder / file.name, file) for file in record.files)


def _write(path: Path, data: bytes | bytearray) -> None:
    """Write a file so that it is complete when it appears."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ArtifactError(SOURCE_UNAVAILABLE, str(path), f"cannot be written: {error.strerror}") from error


def _place_file(source: Path, target: Path) -> None:
    """Let a kept file appear in a folder too, without a second copy where the file system can."""
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)
