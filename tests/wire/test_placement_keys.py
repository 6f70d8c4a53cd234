"""Signatures of placements: by a shared secret or by an Ed25519 pair, while keys change."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.types import NodeName, PodUid, pci_address
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.placement_annotation import decode, decode_promise, encode
from k8s_rdma.wire.placement_keys import PlacementKeys, SharedKey
from wire.signing_keys import NEW, OLD, OTHER_PAIR, PAIR

if TYPE_CHECKING:
    from k8s_rdma.wire.ed25519_keys import PrivateKey, PublicKey

W1, UID = NodeName("w1"), PodUid("uid")
PLACEMENT = Placement(node=W1, interfaces=(PlacedInterface(pf=pci_address("0000:03:00.0")),))
SIGNERS = {"hmac": NEW, "ed25519": PAIR}


def signed(signer: SharedKey | PrivateKey) -> str:
    return encode(PLACEMENT, UID, PlacementKeys.from_keys(signer))


def verifying(*keys: SharedKey | PublicKey | PrivateKey) -> PlacementKeys:
    return PlacementKeys.from_keys(None, keys)


def refusal(text: str, keys: PlacementKeys) -> str:
    with pytest.raises(MalformedError) as refused:
        decode(text, uid=UID, node=W1, keys=keys)
    return refused.value.message


@pytest.mark.parametrize("signer", SIGNERS.values(), ids=SIGNERS)
@pytest.mark.parametrize("before", [OLD, OTHER_PAIR], ids=["hmac", "ed25519"])
def test_placement_counts_by_any_accepted_key_and_names_it(signer, before):
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


def test_signer_verifies_although_its_public_half_is_accepted_too():
    keys = PlacementKeys.from_keys(PAIR, [OTHER_PAIR.verifier, PAIR.verifier])
    assert keys.accepted == (PAIR, OTHER_PAIR.verifier)


def test_signature_by_a_private_key_is_no_hmac_of_a_public_one():
    """Every holder of the public key can compute it, which is everybody: the agent must not believe it."""
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


def test_ids_differ_and_tell_no_secret():
    keys: list[SharedKey | PublicKey] = [OLD, NEW, PAIR.verifier, OTHER_PAIR.verifier]
    assert len({key.id for key in keys}) == len(keys)
    assert not any(str(key.secret) in repr(key) for key in (OLD, NEW))
    assert str(PAIR.seed) not in repr(PlacementKeys.from_keys(PAIR))


def test_keys_that_only_verify_cannot_sign():
    with pytest.raises(ValueError, match="none of them signs"):
        encode(PLACEMENT, UID, verifying(NEW))
