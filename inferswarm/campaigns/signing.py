"""Making signatures: a local Ed25519 key, and an envelope beside a run's statement. Needs the extra `sign`.

Nothing leaves the machine. The manifest does not list the envelope, so that a run can be signed when it is finished.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from inferswarm.campaigns.arm_files import write_whole
from inferswarm.campaigns.layout import ENVELOPE, STATEMENT
from inferswarm.campaigns.signatures import PAYLOAD_TYPE, Envelope, EnvelopeSignature
from inferswarm.campaigns.spec import read_bytes
from inferswarm.documents import write_document
from inferswarm.errors import EvidenceError, SpecError

PRIVATE_MODE: Final = 0o600


def make_keys(private: Path, public: Path) -> str:
    """Write a new key pair as PEM, the private one readable for its owner alone; return the key's id.

    Raises SpecError when a file is there already or cannot be written, ModuleNotFoundError without the extra.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from securesystemslib.signer import CryptoSigner

    key = Ed25519PrivateKey.generate()
    signer = CryptoSigner(key)
    public_bytes = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    _write_new(private, signer.private_bytes, PRIVATE_MODE)
    _write_new(public, public_bytes, 0o644)
    return str(signer.public_key.keyid)


def sign_run(directory: Path, private: Path) -> str:
    """Sign the statement of a run with a private key; return the key's id.

    Raises SpecError for a key or a statement that cannot be used, EvidenceError when the run is signed already,
    ModuleNotFoundError without the extra.
    """
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from securesystemslib.dsse import Envelope as Dsse
    from securesystemslib.signer import CryptoSigner

    statement = read_bytes(directory / STATEMENT, "statement")
    if (directory / ENVELOPE).exists():
        raise EvidenceError(f"{directory}: is signed already")
    try:
        signer = CryptoSigner(load_pem_private_key(read_bytes(private, "key"), None))
    except (ValueError, TypeError) as error:
        raise SpecError("key", str(private), f"a private key as PEM, without a passphrase ({error})") from error
    dsse = Dsse(statement, PAYLOAD_TYPE, {})
    dsse.sign(signer)
    said = dsse.to_dict()
    envelope = Envelope(
        payload=said["payload"],
        payload_type=said["payloadType"],
        signatures=tuple(EnvelopeSignature(keyid=item["keyid"], sig=item["sig"]) for item in said["signatures"]),
    )
    write_whole(directory / ENVELOPE, write_document(envelope).encode())
    return str(signer.public_key.keyid)


def _write_new(path: Path, data: bytes, mode: int) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(descriptor, "wb") as file:
            file.write(data)
    except OSError as error:
        raise SpecError("key", str(path), f"a file that is not there yet ({error.strerror})") from error
