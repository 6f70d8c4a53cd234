"""Addresses that nodes hold by Leases: the extender refuses them before the pod is bound."""

from __future__ import annotations

import pytest

from extender.node_server import PF0
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.placement import PlacedInterface
from k8s_rdma.core.request import InterfaceRequest, Request
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.extender.fit_cache import FitCache
from k8s_rdma.extender.leased_addresses import MOST_OF_A_NODE, LeasedAddresses
from k8s_rdma.extender.node_cache import ClusterState
from k8s_rdma.extender.nominated_pods import NominatedPods
from k8s_rdma.extender.pod_requests import PendingPod
from k8s_rdma.extender.pod_store import PodStore
from k8s_rdma.extender.rdmanode_informer import RdmaNodeInformer
from k8s_rdma.extender.reservation import Reservation
from k8s_rdma.extender.scheduler_cache import AddressCheck
from k8s_rdma.kube.informer import Changed, Deleted, Listed
from k8s_rdma.kube.published_api import LeaseView
from k8s_rdma.wire.address_leases import lease_name

MAC, GUID = "02:00:00:00:00:05", "02:00:00:ff:fe:00:00:05"
W1, W2 = NodeName("w1"), NodeName("w2")
P = PodUid("p")


def lease(address: str, node: str = W1, name: str = "") -> LeaseView:
    return LeaseView(
        namespace="k8s-rdma", name=name or lease_name(address), holder=node, duration_s=3600, version="7"
    )


def asking(**options: str) -> PendingPod:
    wanted = Request((InterfaceRequest(options=InterfaceOptions(**options)),))
    return PendingPod(uid=P, namespace="default", name="p", priority=0, request=wanted)


def check_of(state: ClusterState) -> AddressCheck:
    nominations = NominatedPods(
        state, PodStore(), FitCache(), lambda: 0.0, nomination_s=60.0, on_release=lambda _: None
    )
    return AddressCheck(state, nominations)


@pytest.mark.parametrize(("key", "address"), [("mac", MAC), ("guid", GUID)])
def test_address_that_a_claim_holds_is_refused_until_its_lease_is_deleted(key: str, address: str):
    freed: list[NodeName] = []
    state = ClusterState(on_addresses=freed.append)
    states = RdmaNodeInformer(state, None, lambda: 0.0, stale_s=60, namespace="k8s-rdma")
    check, pod = check_of(state), asking(**{key: address})
    assert check.conflict(pod) is None
    states.take_lease(Changed(lease(address)))
    conflict = check.conflict(pod)
    assert conflict.node == W1
    assert conflict.why_for("default") == (
        f"interface 0 asks for {key} {address}, which node w1 holds (Lease {lease_name(address)})"
    )
    assert not states._nodes  # no node has the name of such a Lease
    states.take_lease(Deleted(lease(address)))
    assert check.conflict(pod) is None
    assert freed == [W1]


def test_address_of_a_lease_that_ended_while_the_watch_was_lost_is_free():
    freed: list[NodeName] = []
    state = ClusterState(on_addresses=freed.append)
    states = RdmaNodeInformer(state, None, lambda: 0.0, stale_s=60, namespace="k8s-rdma")
    states.take_lease(Listed((lease(MAC), lease(GUID))))
    states.take_lease(Listed((lease(GUID),)))
    assert check_of(state).conflict(asking(mac=MAC)) is None
    assert check_of(state).conflict(asking(guid=GUID)) is not None
    assert freed == [W1]


def test_pod_may_have_the_address_that_its_own_node_holds_for_it():
    state = ClusterState()
    placed = PlacedInterface(pf=PF0, options=InterfaceOptions(mac=MAC))
    state.reserve(W1, P, Reservation(interfaces=(placed,), pod="default/p", created_at=0))
    state.leased_addresses.put(lease(MAC, W1))
    assert check_of(state).conflict(asking(mac=MAC)) is None
    state.leased_addresses.put(lease(MAC, W2))
    assert check_of(state).conflict(asking(mac=MAC)).node == W2


def test_lease_without_a_holder_and_one_of_a_block_hold_no_address():
    leased = LeasedAddresses(on_free=lambda _: None)
    leased.put(lease(MAC, ""))
    leased.put(lease("", W1, name="addresses.10-56-0-0.16.24.7"))
    assert leased.holder(MAC) is None
    leased.put(lease(MAC, W1))
    leased.put(lease(MAC, ""))
    assert leased.holder(MAC) is None


def test_node_that_holds_more_addresses_than_it_has_vfs_fills_no_memory():
    leased = LeasedAddresses(on_free=lambda _: None)
    addresses = [f"02:00:00:00:{at >> 8:02x}:{at & 255:02x}" for at in range(MOST_OF_A_NODE + 2)]
    leased.replace(map(lease, addresses))
    assert [leased.holder(address) for address in addresses[-3:]] == [W1, None, None]
    leased.put(lease(addresses[-1], W2))
    assert leased.holder(addresses[-1]) == W2
    leased.drop(lease(addresses[0]))
    leased.put(lease(addresses[-2]))
    assert leased.holder(addresses[-2]) == W1
