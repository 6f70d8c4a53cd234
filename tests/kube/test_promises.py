"""The promises of a bound pod's placement annotation."""

from __future__ import annotations

from msgspec.structs import replace

from k8s_rdma.core.namespace_policy import NO_POLICIES
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.types import NodeName, PodUid, pci_address
from k8s_rdma.kube.api import PodView
from k8s_rdma.kube.promises import read_promise, unverified_promise
from k8s_rdma.wire.annotation import ANNOTATION
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, encode

UID = PodUid("0f6ed6ac-7d4a-4b6c-9f7a-2f4d1d0d8a11")
PLACEMENT = Placement(
    node=NodeName("w1"),
    interfaces=(PlacedInterface(pf=pci_address("01:00.0"), min_tx_rate_mbps=300),),
)
POD = PodView(
    namespace="default",
    name="p",
    uid=UID,
    node=NodeName("w1"),
    finished=False,
    annotations={
        ANNOTATION: '[{"min_tx_rate": 300}]',
        PLACEMENT_ANNOTATION: encode(PLACEMENT, UID, None),
    },
)


def test_pod_in_the_network_of_its_node_has_no_promise():
    """One that was bound before extenders refused it reserves no rates for interfaces that it never gets."""
    promise = read_promise(POD, None, NO_POLICIES)
    assert promise is not None
    assert promise.placement.interfaces == PLACEMENT.interfaces
    in_host_network = replace(POD, host_network=True)
    assert read_promise(in_host_network, None, NO_POLICIES) is None
    assert unverified_promise(in_host_network) is None
