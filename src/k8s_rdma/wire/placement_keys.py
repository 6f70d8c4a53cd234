"""Keys that sign placements and verify them.

Either a secret that extender and agents share (HMAC with SHA-256, RFC 2104), or a pair of Ed25519 keys
(RFC 8032): the extender has the private one, and an agent, which has the public one, cannot sign.

A set has one key that signs, and several that verify while one takes another's place.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeAlias

from k8s_rdma.wire.ed25519_keys import ID_DIGITS, PrivateKey

if TYPE_CHECKING:
    from collections.abc import Iterable


MAX_KEYS = 16
"""Keys of a set: a forged placement is held against each of them."""


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
        return hmac.digest(self.secret, b"k8s-rdma key id", "sha256").hex()[:ID_DIGITS]

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
