"""Keys that sign placements and verify them.

Either a secret that extender and agents share (HMAC with SHA-256, RFC 2104), or a pair of Ed25519 keys
(RFC 8032): the extender has the private one, and an agent, which has the public one, cannot sign.

A set has one key that signs, and several that verify while one takes another's place.
"""

from __future__ import annotations

import binascii
import hmac
from base64 import b64encode
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nacl.signing import SigningKey

MAX_KEYS = 16
"""Keys of a set: a forged placement is held against each of them."""

KEY_BYTES = 32
"""The length of either half of an Ed25519 pair."""

SPKI_PREFIX = bytes.fromhex("302a300506032b6570032100")
"""The prefix of a public Ed25519 key in DER (SubjectPublicKeyInfo, RFC 8410, section 4), before its 32
bytes."""

_SIGNATURE_BYTES = 64
_RECENT = 256
_ID_DIGITS = 16


class VerifyingKey(Protocol):
    """A key that verifies placements.

    id: names the key and does not reveal it.
    document_field: the field of its signatures.
    """

    @property
    def id(self) -> str: ...  # noqa: D102

    @property
    def document_field(self) -> str: ...  # noqa: D102

    @property
    def algorithm(self) -> str: ...  # noqa: D102

    def verify(self, message: bytes, signature: str) -> bool:
        """Report whether this key made the signature of the message."""
        ...


@dataclass(frozen=True)
class SharedKey:
    """A secret that extender and agents share: a process that can verify with it can also sign."""

    secret: bytes = field(repr=False)
    document_field: ClassVar[str] = "hmac"
    algorithm: ClassVar[str] = "hmac-sha256"

    def __post_init__(self) -> None:
        """ValueError for a key that is publicly known."""
        if not self.secret:
            msg = "an empty key signs nothing; without a key pass None"
            raise ValueError(msg)

    @cached_property
    def id(self) -> str:
        """Derived from the secret, so that it reveals no more of it than a signature does."""
        return hmac.digest(self.secret, b"k8s-rdma key id", "sha256").hex()[:_ID_DIGITS]

    @property
    def verifier(self) -> SharedKey:
        """Return the key itself: there is no public half."""
        return self

    def sign(self, message: bytes) -> str:
        """Return the message's HMAC in hexadecimal."""
        return hmac.digest(self.secret, message, "sha256").hex()

    def verify(self, message: bytes, signature: str) -> bool:
        """Report whether it is the message's HMAC."""
        # compare_digest takes text only if it is ASCII
        return hmac.compare_digest(self.sign(message).encode(), signature.encode())


@dataclass(frozen=True)
class PublicKey:
    """The public half of an Ed25519 pair; its signatures are `ed25519:ID:BASE64`."""

    raw: bytes
    document_field: ClassVar[str] = "signature"
    algorithm: ClassVar[str] = "ed25519"

    @cached_property
    def id(self) -> str:
        """The key's id: the beginning of the output of `openssl pkey -pubin -outform DER | sha256sum`."""
        return sha256(SPKI_PREFIX + self.raw).hexdigest()[:_ID_DIGITS]

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


SignerKey: TypeAlias = SharedKey | PrivateKey


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementKeys:
    """The keys of one moment.

    signer: the key that signs, if placements are signed here; an agent has no such key.
    accepted: the keys that verify, the signer's first.
    """

    signer: SignerKey | None
    accepted: tuple[VerifyingKey, ...]

    @classmethod
    def from_keys(cls, signer: SignerKey | None, verifiers: Iterable[VerifyingKey] = ()) -> PlacementKeys:
        """Collect keys, each once."""
        own: tuple[VerifyingKey, ...] = () if signer is None else (signer,)
        by_id: dict[str, VerifyingKey] = {}
        for key in (*own, *verifiers):
            by_id.setdefault(key.id, key)
        return cls(signer=signer, accepted=tuple(by_id.values()))

    @classmethod
    def shared(cls, secret: bytes) -> PlacementKeys:
        """Make keys of one secret that signs and verifies."""
        return cls.from_keys(SharedKey(secret))


class KeySource(Protocol):
    """The keys as they are now."""

    @property
    def failure(self) -> str:
        """The reason why the files' present content is not in force; empty if it is."""
        ...

    def __call__(self) -> PlacementKeys | None:
        """Return the present keys, if placements are signed."""
        ...


@dataclass(frozen=True, slots=True)
class FixedKeys:
    """Keys that stay as they are."""

    keys: PlacementKeys | None = None
    failure: str = ""

    def __call__(self) -> PlacementKeys | None:
        """Return the keys."""
        return self.keys


UNSIGNED = FixedKeys()
"""The keys of a cluster without signed placements: an empty set."""
