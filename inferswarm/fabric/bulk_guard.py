"""The guard at the Coordinator's entry: what comes from couriers are records, never a model's bytes.

Every value of a message is looked at, at any depth. Counted is what could carry bytes in bulk: byte strings longer
than a digest needs, and texts longer than any name. The sum is what the Coordinator observed of a model; it has to
be 0, and a ledger writes it down each time.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

MOST_BYTES: Final = 256
"""The longest byte string that is no bulk: a digest or a signature has 32 or 64 bytes."""
MOST_CHARACTERS: Final = 8192
"""The longest text that is no bulk: servers of HTTP take addresses and headers of 8 KiB."""


def bulk_bytes(value: Any) -> int:
    """Return the bytes of everything in a message that is too long to be a record's.

    >>> bulk_bytes(("a name", b"x" * 32)), bulk_bytes(((1, {"data": b"x" * 1000}),))
    (0, 1000)
    """
    found, waiting = 0, [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            found += len(item) if len(item) > MOST_CHARACTERS else 0
        elif isinstance(item, bytes | bytearray | memoryview):
            found += len(item) if len(item) > MOST_BYTES else 0
        elif isinstance(item, msgspec.Struct):
            waiting += (getattr(item, name) for name in item.__struct_fields__)
        elif isinstance(item, tuple | list | set | frozenset):
            waiting += item
        elif isinstance(item, dict):
            waiting += (*item.keys(), *item.values())
    return found
