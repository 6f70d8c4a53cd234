"""Signatures of placements: by a shared secret or by an Ed25519 pair, while keys change."""

from __future__ import annotations

import json
from base64 import b64encode
from hashlib import sha512

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl import bindings as nacl_bindings

from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.types import NodeName, PodUid, pci_address
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.ed25519_keys import PrivateKey, PublicKey
from k8s_rdma.wire.placement_annotation import decode, decode_promise, encode
from k8s_rdma.wire.placement_keys import PlacementKeys, SharedKey

W1, UID = NodeName("w1"), PodUid("uid")
PLACEMENT = Placement(node=W1, interfaces=(PlacedInterface(pf=pci_address("0000:03:00.0")),))

OLD, NEW = SharedKey(b"the key of before"), SharedKey(b"the key of now")
PAIR, OTHER_PAIR = PrivateKey(b"p" * 32), PrivateKey(b"q" * 32)
SIGNERS = {"hmac": NEW, "ed25519": PAIR}


def signed(signer: SharedKey | PrivateKey) -> str:
    return encode(PLACEMENT, UID, PlacementKeys.from_keys(signer))


def verifying(*keys: SharedKey | PublicKey | PrivateKey) -> PlacementKeys:
    return PlacementKeys.from_keys(None, keys)


def refusal(text: str, keys: PlacementKeys) -> str:
    with pytest.raises(MalformedError) as refused:
        decode(text, uid=UID, node=W1, keys=keys)
    return refused.value.message


def test_ed25519_signs_as_rfc_8032_says():
    """Section 7.1, test 2."""
    seed = bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
    public = bytes.fromhex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")
    key = PrivateKey(seed)
    assert key.verifier == PublicKey(public)
    assert key.verifier.verify(b"\x72", key.sign(b"\x72"))
    assert not key.verifier.verify(b"\x73", key.sign(b"\x72"))


@pytest.mark.parametrize("signer", SIGNERS.values(), ids=SIGNERS)
@pytest.mark.parametrize("before", [OLD, OTHER_PAIR], ids=["hmac", "ed25519"])
def test_placement_counts_by_any_accepted_key_and_tells_which(signer, before):
    keys = PlacementKeys.from_keys(signer, [before.verifier])
    for key in (signer, before):
        promise = decode_promise(signed(key), keys=keys)
        assert (promise.placement, promise.key_id) == (PLACEMENT, key.verifier.id)


@pytest.mark.parametrize("signer", SIGNERS.values(), ids=SIGNERS)
def test_placement_is_refused_when_its_key_is_removed(signer):
    field = signer.document_field
    assert f"{field}: not made with this cluster's key" in refusal(signed(signer), verifying(OLD))


@pytest.mark.parametrize("signer", SIGNERS.values(), ids=SIGNERS)
@pytest.mark.parametrize("change", [{"node": "w2"}, {"uid": "another"}, {"policy": "same-pf"}])
def test_placement_is_refused_when_changed_after_signing(signer, change):
    text = json.dumps({**json.loads(signed(signer)), **change})
    for key in (signer, signer.verifier):
        assert "not made with this cluster's key" in refusal(text, verifying(key))


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


def test_signer_verifies_although_its_public_half_is_accepted_too():
    keys = PlacementKeys.from_keys(PAIR, [OTHER_PAIR.verifier, PAIR.verifier])
    assert keys.accepted == (PAIR, OTHER_PAIR.verifier)


def test_signature_by_a_private_key_is_no_hmac_of_a_public_one():
    """What the public key's holder can compute: everybody, of whom the agent must not believe it."""
    public = PAIR.verifier
    forged = encode(PLACEMENT, UID, PlacementKeys.from_keys(SharedKey(public.raw)))
    assert "hmac: not made with" in refusal(forged, verifying(public))


def test_signature_beside_an_hmac_is_refused():
    both = json.loads(signed(PAIR)) | {"hmac": json.loads(signed(NEW))["hmac"]}
    assert "one of them" in refusal(json.dumps(both), verifying(PAIR.verifier, NEW))


@pytest.mark.parametrize("spaced", [False, True])
@pytest.mark.parametrize("signer", SIGNERS.values(), ids=SIGNERS)
def test_placement_counts_however_its_document_is_written(signer, spaced):
    document = dict(sorted(json.loads(signed(signer)).items(), reverse=True))
    text = json.dumps(document, indent=1 if spaced else None)
    assert decode(text, uid=UID, node=W1, keys=verifying(signer.verifier)) == PLACEMENT


@given(st.text(), st.booleans())
def test_any_other_signature_is_refused(said: str, named: bool):
    public = PAIR.verifier
    for key in (PAIR, public):
        assert not key.verify(b"m", public.prefix + said if named else said)
    assert not NEW.verify(b"m", said)


@pytest.mark.parametrize("body", ["", "AAAA", "A" * 86 + "==", "A" * 86 + "==\n", "é"])
def test_signature_of_a_wrong_form_is_refused(body: str):
    assert not PAIR.verifier.verify(b"m", PAIR.verifier.prefix + body)


def test_ids_differ_and_tell_no_secret():
    keys: list[SharedKey | PublicKey] = [OLD, NEW, PAIR.verifier, OTHER_PAIR.verifier]
    assert len({key.id for key in keys}) == len(keys)
    assert not any(str(key.secret) in repr(key) for key in (OLD, NEW))
    assert str(PAIR.seed) not in repr(PlacementKeys.from_keys(PAIR))


def test_keys_that_only_verify_cannot_sign():
    with pytest.raises(ValueError, match="none of them signs"):
        encode(PLACEMENT, UID, verifying(NEW))
