"""Ranges of a file of a hub's repository, `hf://owner/name@revision/file`, at one commit.

Promises: the commit is looked up once, is the version of what is described, and every read is of it; a file that the
client's cache holds at that commit is read from there, also without a network; the client's token goes to the hub and
to nobody that it redirects to. Where the hub is, who asks, and whether the network may be used are the client's
affair (HF_ENDPOINT, HF_TOKEN, HF_HUB_CACHE, HF_HUB_OFFLINE).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from inferswarm.artifacts.hub import HubRepository, parse_hub_id
from inferswarm.artifacts.identity import UpstreamObject
from inferswarm.artifacts.origin import LocalFileOrigin
from inferswarm.artifacts.origins.base import Origin
from inferswarm.artifacts.origins.http import HttpOrigin
from inferswarm.artifacts.origins.http_client import Credentials, HttpClient
from inferswarm.artifacts.taxonomy import SOURCE_UNAVAILABLE
from inferswarm.errors import ArtifactError, SpecError

_ADVICE: Final = "a private or gated repository needs its terms accepted and a token: set HF_TOKEN, or hf auth login"


def open_hub_file(
    uri: str,
    expected: UpstreamObject | None = None,
    *,
    client: HttpClient | None = None,
    endpoint: str | None = None,
    cache: Path | None = None,
) -> Origin:
    """Open a file of a repository. `endpoint` and `cache` are the client's own when None.

    Raises SpecError for an id without a file, and for a repository or a revision that is not there or may not be
    read; ArtifactError as HttpOrigin, and `SOURCE_OBJECT_UNAVAILABLE` where nothing may be asked and the cache lacks
    the file.
    """
    wanted = parse_hub_id(uri, any_file=True)
    if wanted.file is None:
        raise SpecError("URL", uri, "hf://owner/name[@revision]/file: one file of the repository")
    repository = HubRepository(wanted, endpoint, cache)
    known = repository.cached_commit() if repository.is_offline else wanted.commit
    commit = known or repository.look_up()[0]
    pinned, version = f"hf://{wanted.repository}@{commit}/{wanted.file}", f"commit:{commit}"
    path = repository.snapshot(commit) / wanted.file
    if path.is_file():
        return LocalFileOrigin(path, expected=expected, uri=pinned, version=version)
    if repository.is_offline:
        lack = f"{path} is a link to nothing (an interrupted download?)" if os.path.islink(path) else f"no {path}"
        raise ArtifactError(SOURCE_UNAVAILABLE, uri, f"HF_HUB_OFFLINE is set, and the cache has not got it: {lack}")
    return HttpOrigin(
        repository.address(wanted.file, commit),
        expected,
        client=client,
        credentials=Credentials(repository.authorization(), _ADVICE),
        uri=pinned,
        version=version,
    )
