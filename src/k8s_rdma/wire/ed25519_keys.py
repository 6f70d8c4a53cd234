"""A pair of Ed25519 keys (RFC 8032) that signs placements.

The extender has the private key. An agent has the public key, and cannot sign.
"""

from __future__ import annotations

import binascii
import hmac
from base64 import b64encode
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from nacl.signing import SigningKey

KEY_BYTES = 32
"""The length of either half of an Ed25519 pair."""

SPKI_PREFIX = bytes.fromhex("302a300506032b6570032100")
"""The prefix of a public Ed25519 key in DER (SubjectPublicKeyInfo, RFC 8410, section 4), before its 32
bytes."""

_SIGNATURE_BYTES = 64
_RECENT = 256

ID_DIGITS = 16
"""The length of the id of a key, also of one that is a shared secret."""


@dataclass(frozen=True)
class PublicKey:
    """The public half of an Ed25519 pair; its signatures are `ed25519:ID:BASE64`."""

    raw: bytes
    document_field: ClassVar[str] = "signature"
    algorithm: ClassVar[str] = "ed25519"

    @cached_property
    def id(self) -> str:
        """The key's id: the beginning of the output of `openssl pkey -pubin -outform DER | sha256sum`."""
        return sha256(SPKI_PREFIX + self.raw).hexdigest()[:ID_DIGITS]

    @cached_property
    def prefix(self) -> str:
        """The prefix of the key's signatures."""
        return f"{self.algorithm}:{self.id}:"

    def verify(self, message: bytes, signature: str) -> bool:
        """Report whether the private half made it. A signature that names another key is refused at once."""
        raw = self.signature_in(signature)
        return raw is not None and self.verifies(message, raw)

    def signature_in(self, text: str) -> bytes | None:
        """Read the signature's bytes, unless it names another key, or is malformed."""
        if not text.startswith(self.prefix):
            return None
        try:
            raw = binascii.a2b_base64(text.removeprefix(self.prefix), strict_mode=True)
        except ValueError:
            return None
        return raw if len(raw) == _SIGNATURE_BYTES else None

    def verifies(self, message: bytes, signature: bytes) -> bool:
        """Verify a signature's bytes."""
        from nacl.exceptions import BadSignatureError  # noqa: PLC0415  memory where no key is of this kind
        from nacl.signing import VerifyKey  # noqa: PLC0415

        try:
            VerifyKey(self.raw).verify(message, signature)
        except BadSignatureError:
            return False
        return True


@dataclass(frozen=True)
class PrivateKey:
    """The private half of an Ed25519 pair, by its seed."""

    seed: bytes = field(repr=False)
    document_field: ClassVar[str] = PublicKey.document_field
    algorithm: ClassVar[str] = PublicKey.algorithm
    _recent: dict[bytes, bytes] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def verifier(self) -> PublicKey:
        """The public half of the key."""
        return PublicKey(bytes(self._signing_key.verify_key))

    @property
    def id(self) -> str:
        """The id of the pair."""
        return self.verifier.id

    def sign(self, message: bytes) -> str:
        """Return the signature, with its key's name; it is cached: the watch shows it after a bind."""
        signature = self._recent[message] = self._sign(message)
        if len(self._recent) > _RECENT:
            del self._recent[next(iter(self._recent))]
        return self.verifier.prefix + b64encode(signature).decode()

    def verify(self, message: bytes, signature: str) -> bool:
        """Report whether this pair signed it, as `PublicKey.verify` in a third of the time.

        A message has the same signature each time (RFC 8032, section 5.1.6), so it is signed again. The two
        are compared in constant time: how far they agree would tell a forger how the signature begins.
        """
        raw = self.verifier.signature_in(signature)
        if raw is None:
            return False
        own = self._recent.get(message) or self._sign(message)
        return hmac.compare_digest(own, raw) or self.verifier.verifies(message, raw)

    def _sign(self, message: bytes) -> bytes:
        return self._signing_key.sign(message).signature

    @cached_property
    def _signing_key(self) -> SigningKey:
        from nacl.signing import SigningKey  # noqa: PLC0415  memory where no key is of this kind

        return SigningKey(self.seed)
