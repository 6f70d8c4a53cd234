"""Placements that this process has just signed count without a verification of its own signature."""

from __future__ import annotations

import pytest
from msgspec import structs

from extender.world import until, world
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.types import NodeName, PciAddress, PodUid
from k8s_rdma.extender.own_placements import OwnPlacements
from k8s_rdma.kube.api import PodView
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, Promise, decode_own, encode
from k8s_rdma.wire.placement_keys import PlacementKeys, SharedKey

KEY = SharedKey(b"a secret of the cluster")
KEYS = PlacementKeys.from_keys(KEY)
UID, W1 = PodUid("u-1"), NodeName("w1")
PLACEMENT = Placement(
    node=W1, interfaces=(PlacedInterface(pf=PciAddress("0000:03:00.0"), min_tx_rate_mbps=1_000),)
)
TEXT = encode(PLACEMENT, UID, KEYS)
POD = PodView(
    namespace="default",
    name="p",
    uid=UID,
    node=W1,
    finished=False,
    annotations={PLACEMENT_ANNOTATION: TEXT},
)


def put(*uids: PodUid) -> OwnPlacements:
    own = OwnPlacements()
    for uid in uids:
        own.put(encode(PLACEMENT, uid, KEYS), Promise(uid=uid, placement=PLACEMENT, key_id=KEY.id))
    return own


def test_placement_is_taken_once_as_it_would_be_read():
    own = put(UID)
    assert own.take(POD) == decode_own(TEXT, uid=UID, node=W1, keys=KEYS)
    assert own.take(POD) is None


@pytest.mark.parametrize(
    "change",
    [
        {"annotations": {PLACEMENT_ANNOTATION: TEXT.replace("1000", "1")}},
        {"annotations": {}},
        {"node": NodeName("w2")},
        {"uid": PodUid("u-2")},
        {"host_network": True},
    ],
    ids=["text", "no text", "node", "uid", "network of the node"],
)
def test_placement_is_not_taken_for_another_pod_text_or_node(change):
    assert put(UID).take(structs.replace(POD, **change)) is None


def test_earliest_placements_are_forgotten_beyond_a_thousand():
    own = put(UID, *(PodUid(f"u-{number}") for number in range(2, 1_002)))
    assert own.take(POD) is None
    assert put(UID, *(PodUid(f"u-{number}") for number in range(2, 1_001))).take(POD) is not None


@pytest.mark.anyio
async def test_bound_pod_is_counted_by_the_signing_key_even_if_it_verifies_nothing():
    """If no key is accepted, a verification of the signature would fail."""
    async with world("w1", key=PlacementKeys(signer=KEY, accepted=())) as w:
        await w.create_pod("p", 1)
        assert await w.bind("p", "w1") == ""
        await until(w.extender.cache.pods.signature_counts)
        assert w.extender.cache.pods.signature_counts() == {(KEY.id, "", "removed"): 1}


@pytest.mark.anyio
async def test_placement_that_is_edited_after_the_bind_is_verified():
    async with world("w1", key=PlacementKeys(signer=KEY, accepted=())) as w:
        await w.create_pod("p", 1)
        w.api.streaming.clear()
        assert await w.bind("p", "w1") == ""
        bound = (await w.read_pod("p"))["metadata"]["annotations"][PLACEMENT_ANNOTATION]
        edited = {"metadata": {"annotations": {PLACEMENT_ANNOTATION: bound.replace('":1,', '":2,')}}}
        await w.patch_pod("p", edited)
        forged = await w.api.real.get_pod("default", "p")
        assert forged is not None
        assert forged.annotations[PLACEMENT_ANNOTATION] != bound
        w.extender.leadership.pods.on_update(forged)
        assert w.extender.cache.pods.signature_counts() == {("", "", "none"): 1}
        assert w.extender.cache.state.pods() == {forged.uid}
        w.api.streaming.set()
