"""Signatures of statements, as they are checked: DSSE envelopes beside the statement that they sign.

A signature says that whoever had the key signed this statement; the statement names every file by digest. Whose key
it is, and what they saw, it does not say. Reading an envelope needs nothing; checking one needs the extra `sign` and
a public key that is trusted. Who gives such a key asks for signatures: a run without one is then broken.
"""

from __future__ import annotations

import base64
import binascii
import importlib.util
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from inferswarm.campaigns.bundle import Bundle
from inferswarm.campaigns.findings import broken, proven, unproven
from inferswarm.campaigns.laws import Finding
from inferswarm.campaigns.layout import ENVELOPE, STATEMENT
from inferswarm.documents import Document, read_document
from inferswarm.errors import DocumentError, SpecError

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

LAW: Final = "signature"
PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
UNSIGNED: Final = "unsigned: shows alteration after the fact to who kept the ledger's head, not who ran it"
_WANTED: Final = "a signature of the statement by a key that is trusted"


class EnvelopeSignature(Document, frozen=True, kw_only=True):
    """One signature: the key's id, and the signature in Base64."""

    keyid: str
    sig: str


class Envelope(Document, frozen=True, kw_only=True, rename="camel"):
    """`statement.dsse.json`: a statement's exact bytes in Base64, and who signed them."""

    payload: str
    payload_type: str
    signatures: tuple[EnvelopeSignature, ...]


class SignatureChecker:
    """Holds the public keys that somebody trusts, as PEM. Raises SpecError for one that cannot be used."""

    def __init__(self, public_keys: Sequence[bytes] = ()) -> None:
        if public_keys and not can_sign():
            raise SpecError("key", "given", "the extra 'sign' to check it with: pip install 'inferswarm[sign]'")
        self._keys = [_public_key(data) for data in public_keys]

    def check(self, bundle: Bundle) -> Iterator[Finding]:
        """Yield what is found of a run's signature: unproven where none can be checked, broken where one is wrong."""
        data, statement = bundle.files.get(ENVELOPE), bundle.files.get(STATEMENT)
        if data is None:
            is_asked_for = bool(self._keys) and statement is not None
            yield (broken if is_asked_for else unproven)(LAW, ENVELOPE, _WANTED, UNSIGNED)
            return
        try:
            envelope = read_document(Envelope, data, ENVELOPE)
            payload = base64.b64decode(envelope.payload, validate=True)
        except (DocumentError, ValueError) as error:
            yield broken(LAW, ENVELOPE, "a DSSE envelope", str(error))
            return
        if envelope.payload_type != PAYLOAD_TYPE or payload != statement or not envelope.signatures:
            yield broken(LAW, ENVELOPE, f"a signature over {STATEMENT}, as {PAYLOAD_TYPE}", "another envelope")
            return
        yield self._checked(envelope, payload)

    def _checked(self, envelope: Envelope, payload: bytes) -> Finding:
        signers = ", ".join(item.keyid for item in envelope.signatures)
        if not can_sign():
            return unproven(LAW, ENVELOPE, _WANTED, f"present, not checked (needs the extra 'sign'): {signers}")
        if not self._keys:
            return unproven(LAW, ENVELOPE, _WANTED, f"present, not checked (no key was given): {signers}")
        known = {key.keyid: key for key in self._keys}
        named = [item for item in envelope.signatures if item.keyid in known]
        if not named:
            return broken(LAW, ENVELOPE, _WANTED, f"signed by others: {signers}")
        if wrong := [item.keyid for item in named if not _holds(known[item.keyid], item, payload)]:
            return broken(LAW, ENVELOPE, _WANTED, f"no signature by {', '.join(wrong)}")
        return proven(LAW, ENVELOPE, _WANTED, f"signed by {', '.join(item.keyid for item in named)}")


def can_sign() -> bool:
    """Return whether the extra `sign` is installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("securesystemslib", "cryptography"))


def _public_key(data: bytes) -> SSlibKey:
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from securesystemslib.signer import SSlibKey

    try:
        return SSlibKey.from_crypto(load_pem_public_key(data))
    except (ValueError, TypeError) as error:
        raise SpecError("key", data[:40], f"a public key as PEM ({error})") from error


def _holds(key: SSlibKey, signature: EnvelopeSignature, payload: bytes) -> bool:
    from securesystemslib.dsse import Envelope as Dsse
    from securesystemslib.exceptions import VerificationError
    from securesystemslib.signer import Signature

    try:
        raw = base64.b64decode(signature.sig, validate=True)
    except binascii.Error:
        return False
    made = Dsse(payload, PAYLOAD_TYPE, {signature.keyid: Signature(signature.keyid, raw.hex())})
    try:
        made.verify([key], 1)
    except VerificationError:
        return False
    return True
