"""Ed25519 pairs sign as RFC 8032 says, and verify no signature but their own."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha512

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl import bindings as nacl_bindings

from k8s_rdma.wire.ed25519_keys import PrivateKey, PublicKey
from wire.signing_keys import NEW, OTHER_PAIR, PAIR


def test_ed25519_signs_as_rfc_8032_says():
    """Section 7.1, test 2."""
    seed = bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
    public = bytes.fromhex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")
    key = PrivateKey(seed)
    assert key.verifier == PublicKey(public)
    assert key.verifier.verify(b"\x72", key.sign(b"\x72"))
    assert not key.verifier.verify(b"\x73", key.sign(b"\x72"))


def test_private_key_verifies_its_own_signatures_and_no_others():
    assert PAIR.verify(b"m", PAIR.sign(b"m"))
    assert not PAIR.verify(b"n", PAIR.sign(b"m"))
    assert not PAIR.verify(b"m", PAIR.verifier.prefix + OTHER_PAIR.sign(b"m").rpartition(":")[2])


def test_private_key_verifies_a_signature_of_another_nonce():
    """As `PublicKey` does: RFC 8032, section 5.1.6, with any number for r."""
    digest = sha512(PAIR.seed).digest()
    a = nacl_bindings.crypto_core_ed25519_scalar_reduce(_clamped(digest[:32]) + bytes(32))
    r = nacl_bindings.crypto_core_ed25519_scalar_reduce(b"r" * 64)
    point = nacl_bindings.crypto_scalarmult_ed25519_base_noclamp(r)
    challenge = sha512(point + PAIR.verifier.raw + b"m").digest()
    k = nacl_bindings.crypto_core_ed25519_scalar_reduce(challenge)
    s = nacl_bindings.crypto_core_ed25519_scalar_add(r, nacl_bindings.crypto_core_ed25519_scalar_mul(k, a))
    signature = PAIR.verifier.prefix + b64encode(point + s).decode()
    assert signature != PAIR.sign(b"m")
    assert PAIR.verifier.verify(b"m", signature)
    assert PAIR.verify(b"m", signature)


def _clamped(scalar: bytes) -> bytes:
    """RFC 8032, section 5.1.5, step 2."""
    return bytes([scalar[0] & 0xF8, *scalar[1:31], scalar[31] & 0x7F | 0x40])


@given(st.text(), st.booleans())
def test_any_other_signature_is_refused(said: str, named: bool):
    public = PAIR.verifier
    for key in (PAIR, public):
        assert not key.verify(b"m", public.prefix + said if named else said)
    assert not NEW.verify(b"m", said)


@pytest.mark.parametrize("body", ["", "AAAA", "A" * 86 + "==", "A" * 86 + "==\n", "é"])
def test_signature_of_a_wrong_form_is_refused(body: str):
    assert not PAIR.verifier.verify(b"m", PAIR.verifier.prefix + body)
