"""Keys for placements (`wire.placement_keys`) from a file, or from a directory such as a Secret's volume.

A file holds Ed25519 keys in PEM, if `-----BEGIN` is in it, or a secret, which is the whole file with any
bytes. A public key in another form is refused, because everyone could sign by it as a secret. All files of a
directory verify; `signing.key` signs, or without that file `placement.key`.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64encode
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, TypeAlias

from k8s_rdma.config.bounded_files import read_found_file
from k8s_rdma.config.reloading import Reloaded, files_of
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.ed25519_keys import KEY_BYTES, SPKI_PREFIX, PrivateKey, PublicKey
from k8s_rdma.wire.placement_keys import MAX_KEYS, UNSIGNED, KeySource, PlacementKeys, SharedKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Key: TypeAlias = SharedKey | PrivateKey | PublicKey

FIELD = "placementKeyFile"
SIGNING_FILES = ("signing.key", "placement.key")
"""The first of them that is in a directory signs."""

LEAST_KEY_BYTES = 16
"""The minimum length of a secret: a shorter one is open to a brute-force attack. NIST SP 800-131A allows no
HMAC key of fewer than 112 bits."""

_MAX_BYTES = 1 << 20

_PKCS8_PREFIX = bytes.fromhex("302e020100300506032b657004220420")
"""The prefix of a private Ed25519 key in DER (PrivateKeyInfo, RFC 8410, section 7), before its 32 bytes."""

_PEM = b"-----BEGIN "
_PUBLIC = (SPKI_PREFIX, b64encode(SPKI_PREFIX), b"ssh-", b"ecdsa-", b"sk-", b"---- BEGIN ")
"""The prefixes of public keys in other formats than PEM: DER, that in Base64, OpenSSH's and RFC 4716."""

_BLOCK = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----([A-Za-z0-9+/=\s]*)-----END \1-----")
_HOW_TO_CREATE = "openssl genpkey -algorithm ed25519 makes a private key, openssl pkey -pubout its public one"


def extender_keys(path: str | None, clock: Callable[[], float] = monotonic) -> KeySource:
    """Return the keys of a signer, read again when they change; UNSIGNED without a path.

    MalformedError names the file that cannot be read or holds no key, because a cluster that signs must not
    stop silently. It is raised also if a key could be guessed.
    """
    if path is None:
        return UNSIGNED
    return Reloaded(lambda: _load_signing(Path(path)), Path(path), clock=clock)


def agent_keys(path: str | None) -> KeySource:
    """Load the keys of a process that verifies only and must not have a private key."""
    if path is None:
        return UNSIGNED
    return Reloaded(lambda: _load_verifying(Path(path)), Path(path))


def keys_of_files(origin: str, files: Mapping[str, bytes]) -> PlacementKeys:
    """Read the keys that verify from the files of a Secret. origin: it, for MalformedError."""
    contents = {Path(origin, name): content for name, content in files.items()}
    keys = chain.from_iterable(_parse(origin, contents).values())
    return PlacementKeys.from_keys(None, map(_verifier, keys))


def _load_signing(path: Path) -> PlacementKeys:
    files = _read(path)
    name = (
        path.name
        if path in files
        else next((file_name for file_name in SIGNING_FILES if path / file_name in files), "")
    )
    if not name:
        raise MalformedError(f"{FIELD} {path}: has no file {' or '.join(SIGNING_FILES)}, by which to sign")
    signing = path if path in files else path / name
    signer = files[signing][0]
    if isinstance(signer, PublicKey):
        raise MalformedError(f"{FIELD} {signing}: begins with a public key, and only a private one signs")
    return PlacementKeys.from_keys(signer, map(_verifier, chain.from_iterable(files.values())))


def _load_verifying(path: Path) -> PlacementKeys:
    files = _read(path)
    for file, keys in files.items():
        if any(isinstance(key, PrivateKey) for key in keys):
            why = "holds a private key, by which a node could sign for others; give agents the public one"
            raise MalformedError(f"{FIELD} {file}: {why}")
    return PlacementKeys.from_keys(None, map(_verifier, chain.from_iterable(files.values())))


def _verifier(key: Key) -> SharedKey | PublicKey:
    return key.verifier if isinstance(key, PrivateKey) else key


def _read(path: Path) -> dict[Path, Sequence[Key]]:
    """Return the keys by file; at least one, and no more than are tried."""
    try:
        files = files_of(path) if path.is_dir() else [path]
        contents = {file: read_found_file(file, _MAX_BYTES) for file in files}
    except OSError as error:
        raise MalformedError(f"{FIELD} {error.filename or path}: {error.strerror}") from error
    return _parse(f"{FIELD} {path}", contents)


def _parse(origin: str, contents: Mapping[Path, bytes]) -> dict[Path, Sequence[Key]]:
    files = {file: _keys(file, content.strip()) for file, content in contents.items()}
    if not files:
        raise MalformedError(f"{origin}: is empty; wanted files of keys")
    if (number := sum(map(len, files.values()))) > MAX_KEYS:
        raise MalformedError(f"{origin}: holds {number} keys; at most {MAX_KEYS}")
    return files


def _keys(file: Path, content: bytes) -> Sequence[Key]:
    """Parse the keys of a file: of PEM several, of anything else one."""
    if _PEM in content:
        return tuple(_pem_keys(file, content))
    if content.startswith(_PUBLIC) or _PEM in content.replace(b"\0", b""):  # in UTF-16 each other byte is 0
        raise MalformedError(f"{FIELD} {file}: is a public key in another form than PEM; {_HOW_TO_CREATE}")
    if len(content) < LEAST_KEY_BYTES:
        problem = f"has a key of {8 * len(content)} bits" if content else "is empty"
        msg = f"{FIELD} {file}: {problem}; wanted {LEAST_KEY_BYTES} bytes or more, such as 32 random ones"
        raise MalformedError(msg)
    return (SharedKey(content),)


def _pem_keys(file: Path, content: bytes) -> Iterator[Key]:
    blocks = _BLOCK.findall(content)
    if len(blocks) != content.count(_PEM):
        raise MalformedError(f"{FIELD} {file}: is no PEM file; {_HOW_TO_CREATE}")
    for kind, body in blocks:
        if (key := _pem_key(kind, body)) is None:
            raise MalformedError(f"{FIELD} {file}: {kind.decode()}: is no Ed25519 key; {_HOW_TO_CREATE}")
        yield key


def _pem_key(kind: bytes, body: bytes) -> Key | None:
    try:
        der = binascii.a2b_base64(body)
    except ValueError:
        return None
    prefix = {b"PUBLIC KEY": SPKI_PREFIX, b"PRIVATE KEY": _PKCS8_PREFIX}.get(kind)
    if prefix is None or not der.startswith(prefix) or len(der) != len(prefix) + KEY_BYTES:
        return None
    raw = der.removeprefix(prefix)
    return PublicKey(raw) if prefix is SPKI_PREFIX else PrivateKey(raw)
