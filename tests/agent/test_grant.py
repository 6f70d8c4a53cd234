from __future__ import annotations

from dataclasses import replace

import pytest

from factories import PF0
from k8s_rdma.agent.cni.grant import Grant, Policy, read_grant
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.request import InterfaceRequest, PfPolicy, Request
from k8s_rdma.core.types import NodeName, PodUid, VfDriver
from k8s_rdma.errors import K8sRdmaError, MalformedError, Reason
from k8s_rdma.wire.placement_annotation import encode
from k8s_rdma.wire.placement_keys import FixedKeys, PlacementKeys

KEY = PlacementKeys.shared(b"key")
PLACEMENT = Placement(
    node=NodeName("w1"), interfaces=(PlacedInterface(pf=PF0, min_tx_rate_mbps=5, max_tx_rate_mbps=9),)
)
REQUEST = Request((InterfaceRequest(min_tx_rate_mbps=5, max_tx_rate_mbps=9),))


def read(annotations: dict[str, str], key: PlacementKeys | None = None, **policy: bool):
    return read_grant(
        annotations, uid=PodUid("u"), node=NodeName("w1"), policy=Policy(keys=FixedKeys(key), **policy)
    )


def test_grant_is_empty_if_the_pod_has_no_annotation() -> None:
    assert read({}) == read({"rdma_interfaces_required": "[]"})
    assert not read({}).request


def test_wanted_needs_no_request_annotation_when_the_placement_is_signed() -> None:
    found = read({"k8s-rdma.io/placement": encode(PLACEMENT, PodUid("u"), KEY)}, KEY)
    assert (found.request, found.promised, found.ignored) == (REQUEST, PLACEMENT, "")


def test_wanted_ignores_an_unsigned_placement_when_no_request_stands_beside_it() -> None:
    found = read({"k8s-rdma.io/placement": encode(PLACEMENT, PodUid("u"), None)})
    assert not found.request
    assert found.promised is None
    assert "not signed" in found.ignored


def test_wanted_says_why_a_placement_does_not_count() -> None:
    text = encode(PLACEMENT, PodUid("somebody else"), None)
    found = read(
        {"k8s-rdma.io/placement": text, "rdma_interfaces_required": '[{"min_tx_rate": 5, "max_tx_rate": 9}]'}
    )
    assert found.request == REQUEST
    assert found.promised is None
    assert "somebody else" in found.ignored


def test_wanted_refuses_a_malformed_request() -> None:
    with pytest.raises(MalformedError, match="max-tx-rate"):
        read({"rdma_interfaces_required": '[{"max-tx-rate": 5}]'})


def test_wanted_takes_unknown_keys_when_not_strict() -> None:
    text = '[{"min_tx_rate": 5, "max_tx_rate": 9, "colour": "red"}]'
    assert read({"rdma_interfaces_required": text}, strict=False).request == REQUEST


@pytest.mark.parametrize(
    ("key", "policy", "refused"),
    [
        (None, {}, False),
        (KEY, {}, True),
        (KEY, {"allow_unplaced": True}, False),
        (None, {"allow_unplaced": False}, True),
    ],
)
def test_grant_needs_a_placement_if_placements_are_signed(key, policy, refused) -> None:
    asked = {"rdma_interfaces_required": '[{"min_tx_rate": 5, "max_tx_rate": 9}]'}
    if not refused:
        assert read(asked, key, **policy).request == REQUEST
        return
    with pytest.raises(K8sRdmaError) as caught:
        read(asked, key, **policy)
    assert caught.value.reason is Reason.STALE_PLACEMENT
    assert caught.value.message == (
        "the extender did not place this pod: its schedulerName is not the one that asks it, or it requests "
        "no managed resource; correct that in what makes the pod, and make the pod anew"
    )
    assert not read({}, key, **policy).request


def test_wanted_has_the_policy_of_the_annotation_unless_a_signed_placement_has_another() -> None:
    asked = {
        "rdma_interfaces_required": '[{"min_tx_rate": 5, "max_tx_rate": 9}]',
        "k8s-rdma.io/policy": "same-numa",
    }
    under = replace(PLACEMENT, policy=PfPolicy.SPREAD_PFS)
    assert read(asked).request == replace(REQUEST, policy=PfPolicy.SAME_NUMA)
    unsigned = read({**asked, "k8s-rdma.io/placement": encode(under, PodUid("u"), None)})
    assert (unsigned.request.policy, unsigned.promised) == (PfPolicy.SAME_NUMA, under)
    signed = read({**asked, "k8s-rdma.io/placement": encode(under, PodUid("u"), KEY)}, KEY)
    assert (signed.request.policy, signed.promised) == (PfPolicy.SPREAD_PFS, under)


def test_part_and_defaults_keep_the_policy() -> None:
    both = Grant(request=Request(REQUEST.interfaces * 2, PfPolicy.SAME_PF))
    assert both.part((1,)).with_defaults(7, VfDriver.KERNEL).request.policy is PfPolicy.SAME_PF


def test_part_is_of_request_and_placement_alike() -> None:
    both = Grant(
        request=Request(tuple(InterfaceRequest(min_tx_rate_mbps=rate) for rate in (1, 2, 3))),
        promised=Placement(
            node=NodeName("w1"),
            interfaces=tuple(PlacedInterface(pf=PF0, min_tx_rate_mbps=rate) for rate in (1, 2, 3)),
        ),
    )
    part = both.part((2, 0))
    assert [each.min_tx_rate_mbps for each in part.request.interfaces] == [3, 1]
    assert [each.min_tx_rate_mbps for each in part.promised.interfaces] == [3, 1]
    assert both.part(()).promised is None
    assert not both.part(()).request


def test_defaults_are_of_those_that_name_no_vlan_and_the_driver_of_all() -> None:
    asked = (InterfaceOptions(), InterfaceOptions(vlan=9), InterfaceOptions(vlan=0))
    both = Grant(
        request=Request(tuple(InterfaceRequest(options=options) for options in asked)),
        promised=Placement(
            node=NodeName("w1"),
            interfaces=tuple(PlacedInterface(pf=PF0, options=options) for options in asked),
        ),
    )
    assert both.with_defaults(0, VfDriver.KERNEL) is both
    found = both.with_defaults(7, VfDriver.VFIO_PCI)
    for interfaces in (found.request.interfaces, found.promised.interfaces):
        assert [each.options.vlan for each in interfaces] == [7, 9, 0]
        assert {each.options.driver for each in interfaces} == {VfDriver.VFIO_PCI}
