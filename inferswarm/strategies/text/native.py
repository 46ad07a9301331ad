"""The border to the `tokenizers` library, whose faults are plain `Exception` and `ValueError` objects."""

from __future__ import annotations

from types import TracebackType

from inferswarm.errors import ModelError


class NativeFaults:
    """A context in which the library's own faults become ModelError; every other exception passes as it is."""

    def __init__(self, source: str, doing: str) -> None:
        self._source = source
        self._doing = doing

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if kind in (Exception, ValueError):
            raise ModelError(self._source, f"{self._doing}: {error}") from error
