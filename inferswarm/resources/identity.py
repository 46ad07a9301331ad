"""Who is who: identities that survive restart, enumeration order, renamed interfaces and changed addresses.

An identity is derived from what stays with the machine (its machine-id, or a firmware serial number), mixed with
the swarm's salt so that the raw value is never published, and from what distinguishes the parts of a host: the
virtual Node's name, the NUMA index, an accelerator's UUID. Nothing is derived from an address, an interface name,
a process id or an ordinal. Replaced hardware therefore has another identity.

Two hosts cloned from one image may share a machine-id. They then claim one identity, and a graph that holds both
refuses the duplicate; give each its own machine-id, or run them with their own state directories and no machine-id.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import secrets
import tempfile
from pathlib import Path

from inferswarm.errors import SpecError
from inferswarm.resources.types import Fact, observed, unknown

_HEXADECIMAL_DIGITS = 16
_SALT_FILE = "host-identity"
_MACHINE_ID_FILES = ("etc/machine-id", "var/lib/dbus/machine-id")
_FIRMWARE_FILES = ("sys/class/dmi/id/product_uuid", "sys/firmware/devicetree/base/serial-number")
_PLACEHOLDERS = ("00000000000000000000000000000000", "f" * 32, "03000200040005000006000700080009")
"""Values that firmware and image builders leave where an identity should be."""


def _derive(prefix: str, *parts: str) -> str:
    joined = "\0".join(parts).encode()
    return f"{prefix}-{hashlib.sha256(joined).hexdigest()[:_HEXADECIMAL_DIGITS]}"


def _clean(text: str) -> str | None:
    """Return the identifying characters of a firmware or machine-id value, or None when it identifies nothing."""
    value = re.sub(r"[^0-9a-z]", "", text.lower())
    if len(value) < 8 or len(set(value)) == 1 or value in _PLACEHOLDERS or value == "uninitialized":
        return None
    return value


def read_machine_source(root: Path = Path("/")) -> Fact[str]:
    """Return what identifies this machine for good: machine-id first, then the firmware's own serial number.

    The value is private: publish it only through `host_id`. Unknown, with the reason of every file tried, when
    none can be read or all hold placeholders.
    """
    reasons: list[str] = []
    for name in _MACHINE_ID_FILES + _FIRMWARE_FILES:
        path = root / name
        try:
            text = path.read_text(errors="replace")
        except OSError as error:
            reasons.append(f"{path}: {error.strerror}")
            continue
        value = _clean(text)
        if value is None:
            reasons.append(f"{path}: holds no identity")
            continue
        if name in _MACHINE_ID_FILES and not re.fullmatch(r"[0-9a-f]{32}", value):
            reasons.append(f"{path}: is not 32 hexadecimal digits")
            continue
        return observed(value, str(path))
    return unknown("; ".join(reasons))


def load_or_create_host_salt(state_directory: Path) -> str:
    """Return the random identity kept in `state_directory`, made at the first call and the same ever after.

    It stands in for a machine-id where none can be read: 32 hexadecimal digits. Two processes that ask at once get
    the same one. Raises SpecError when the directory cannot be written, or the file holds something else.
    """
    path = state_directory / _SALT_FILE
    try:
        if not path.exists():
            state_directory.mkdir(parents=True, exist_ok=True)
            _write_once(path, secrets.token_hex(16))
        text = path.read_text().strip()
    except OSError as error:
        raise SpecError(
            "state directory", str(state_directory), f"a writable directory ({error.strerror})"
        ) from error
    if not re.fullmatch(r"[0-9a-f]{32}", text):
        raise SpecError(str(path), text[:40], "32 hexadecimal digits")
    return text


def _write_once(path: Path, text: str) -> None:
    """Write `path` whole or not at all; leave it as it is when somebody else was first."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "w") as stream:
            stream.write(text + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        os.unlink(temporary)


def host_id(swarm_salt: str, source: str) -> str:
    """Return the identity of a host in one swarm; `source` cannot be recovered from it without the salt."""
    if not swarm_salt or not source:
        raise SpecError("host identity", (swarm_salt, source), "a swarm salt and a machine source, neither empty")
    tag = hmac.new(swarm_salt.encode(), source.encode(), hashlib.sha256).hexdigest()
    return f"host-{tag[:_HEXADECIMAL_DIGITS]}"


def node_id(host: str, virtual_name: str | None = None) -> str:
    """Return the identity of a Node: the host's own, or that of a virtual Node with this name on it."""
    return _derive("node", host) if virtual_name is None else _derive("node", host, "virtual", virtual_name)


def cpu_id(node: str, numa_index: int | None = None) -> str:
    """Return the identity of a Node's CPU Compute Unit; None means all cores together."""
    return _derive("cpu", node, "all" if numa_index is None else f"numa {numa_index}")


def further_cpu_id(node: str, place: int) -> str:
    """Return the identity of a further CPU Compute Unit that a virtual Node declares; the first one is `cpu_id`."""
    return _derive("cpu", node, f"declared {place}")


def accelerator_id(kind: str, uuid: str) -> str:
    """Return the identity of an accelerator: its UUID's alone, so it follows the card to another slot or host."""
    return _derive(kind, uuid)


def core_set_id(host: str) -> str:
    """Return the id of the cores that all virtual Nodes of a host share."""
    return _derive("cores", host)


def ram_id(node: str, numa_index: int | None = None) -> str:
    """Return the identity of a Node's RAM; None means all of it as one domain."""
    return _derive("ram", node, "all" if numa_index is None else f"numa {numa_index}")


def vram_id(accelerator: str) -> str:
    """Return the identity of the memory on an accelerator."""
    return _derive("vram", accelerator)


def link_id(source: str, target: str, kind: str, adapter: str = "") -> str:
    """Return the identity of a directed Link; `adapter` tells parallel links apart by a hardware address."""
    return _derive("link", source, target, kind, adapter)


def declared_id(prefix: str, topology: str, *names: str) -> str:
    """Return the identity of something that a topology declares: of its names alone, and never that of a real one.

    >>> declared_id("node", "home", "desk") == declared_id("node", "home", "desk") != node_id("home", "desk")
    True
    """
    return _derive(prefix, "declared", topology, *names)


def short(identity: str) -> str:
    """Write an identity for people.

    >>> short("node-3f9a1c0d5e6f7a8b")
    'node-3f9a1c…'
    """
    prefix, _, digits = identity.rpartition("-")
    return identity if len(digits) <= 6 else f"{prefix}-{digits[:6]}…"
