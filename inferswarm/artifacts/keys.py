"""Keys for signing, one for each purpose, derived from a swarm's token.

Promises: who has no token can make no signature, and a signature for one purpose, scope or Node is none for another.
Does not promise: that a Node which holds the token cannot sign in another's name. All Nodes of a swarm hold it; what
this keeps apart is the swarm and everybody else, and one scope from the next.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final, Literal

from inferswarm.errors import SpecError

KeyPurpose = Literal["artifact-ticket", "inventory-receipt"]
_SALT: Final = b"inferswarm/artifacts/1"


def derive_key(token: str, purpose: KeyPurpose, subject: str) -> bytes:
    """Return the 32 bytes that sign for a purpose, for one subject: a scope, a Node.

    HKDF of RFC 5869 with SHA-256, one block. Raises SpecError for an empty token: a key that everybody can derive.
    """
    if not token:
        raise SpecError("token", token, "the swarm's token, which is not empty")
    # Lengths in front: no two pairs of purpose and subject give the same bytes.
    info = b"".join(len(part).to_bytes(4, "big") + part for part in (purpose.encode(), subject.encode()))
    extracted = hmac.digest(_SALT, token.encode(), hashlib.sha256)
    return hmac.digest(extracted, info + b"\x01", hashlib.sha256)


def sign(key: bytes, data: bytes) -> bytes:
    """Return the HMAC-SHA256 of data."""
    return hmac.digest(key, data, hashlib.sha256)


def is_signature(key: bytes, data: bytes, signature: bytes) -> bool:
    """Return whether a signature is that of the data, in a time that does not depend on where it differs."""
    return hmac.compare_digest(sign(key, data), signature)
