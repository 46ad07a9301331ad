"""From the name of an object to an opened origin of its bytes, by the scheme of the name."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from inferswarm.artifacts.identity import UpstreamObject
from inferswarm.artifacts.origin import LocalFileOrigin
from inferswarm.artifacts.origins.base import Origin
from inferswarm.artifacts.origins.checking import AbsentObject
from inferswarm.errors import ArtifactError, SpecError

if TYPE_CHECKING:
    from inferswarm.artifacts.origins.http_client import HttpClient

HUB_SCHEME: Final = "hf"
FILE_SCHEME: Final = "file"
HTTP_SCHEMES: Final = ("http", "https")

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def scheme_of(uri: str) -> str | None:
    """Return the scheme of a name in lowercase, or None for a path.

    >>> scheme_of("https://example.org/m.gguf"), scheme_of("models/m.gguf")
    ('https', None)
    """
    match = _SCHEME.match(uri)
    return match[1].lower() if match else None


def is_remote(uri: str) -> bool:
    """Return whether a name is that of an object that no path leads to."""
    return scheme_of(uri) not in (None, FILE_SCHEME)


def open_origin(uri: str, expected: UpstreamObject | None = None, *, client: HttpClient | None = None) -> Origin:
    """Open the object that a name stands for: a path, `file://`, `http(s)://`, `hf://`, or a scheme of fsspec.

    `client` is used for what is reached by HTTP, so that several origins share connections. Raises SpecError for a
    name that no origin reads and for a client library that is not installed; ArtifactError as the origins, and
    `PROVENANCE_IDENTITY_MISMATCH` for another object than `expected`.
    """
    try:
        return _open(uri, expected, client)
    except AbsentObject as error:
        # As the errors of one tree that other processes know.
        raise ArtifactError(error.code, error.subject, error.reason) from error


def find_origin(uri: str, *, client: HttpClient | None = None) -> Origin | None:
    """Open as `open_origin`, or return None when the origin says that it has no such object.

    A refusal, silence or a failure is no absence: they raise as in `open_origin`.
    """
    if not is_remote(uri) and not os.path.lexists(local_path(uri)):
        return None
    try:
        return _open(uri, None, client)
    except AbsentObject:
        return None


def local_path(uri: str) -> Path:
    """Return the path that a path or a `file://` name stands for. Raises SpecError for a file of another computer."""
    if scheme_of(uri) is None:
        return Path(uri)
    computer, slash, path = uri[len(FILE_SCHEME) + 3 :].partition("/")
    if computer not in ("", "localhost") or not slash:
        raise SpecError("URL", uri, "a file of this computer: file:///…")
    return Path(unquote(slash + path))


def _open(uri: str, expected: UpstreamObject | None, client: HttpClient | None) -> Origin:
    scheme = scheme_of(uri)
    if scheme in (None, FILE_SCHEME):
        return LocalFileOrigin(local_path(uri), expected=expected)
    try:
        if scheme in HTTP_SCHEMES:
            from inferswarm.artifacts.origins.http import HttpOrigin

            return HttpOrigin(uri, expected, client=client)
        if scheme == HUB_SCHEME:
            from inferswarm.artifacts.origins.hub import open_hub_file

            return open_hub_file(uri, expected, client=client)
        from inferswarm.artifacts.origins.fsspec import FsspecOrigin

        return FsspecOrigin(uri, expected)
    except ImportError as error:
        raise SpecError("URL", uri, f"what reads {scheme}://: {error} (pip install 'inferswarm[fabric]')") from error
