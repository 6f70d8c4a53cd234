"""Who waits, and which nodes are of interest for it."""

from __future__ import annotations

from k8s_rdma.core.request import InterfaceRequest, Request
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.extender.requeue import MAX_INTERFACES, UnschedulablePods

W1, W2 = NodeName("w1"), NodeName("w2")


def request(rate: int) -> Request:
    return Request((InterfaceRequest(min_tx_rate_mbps=rate),))


def refuse(waiting: UnschedulablePods, pod: str, rate: int, *nodes: NodeName, at: float = 0.0) -> None:
    waiting.refuse(PodUid(pod), request(rate), nodes or (W1,), at, "default")


def test_nodes_are_of_interest_while_anyone_waits():
    waiting = UnschedulablePods()
    refuse(waiting, "p", 1, W1)
    refuse(waiting, "q", 2, W2)
    waiting.on_delete(PodUid("p"))
    assert waiting.nodes() == [W1, W2]
    waiting.on_delete(PodUid("q"))
    assert waiting.nodes() == []
    assert not waiting.interesting(W1)


def test_requests_come_once_and_the_one_refused_last_first():
    waiting = UnschedulablePods()
    for pod, rate in (("p", 1), ("q", 2), ("r", 1), ("s", 3)):
        refuse(waiting, pod, rate)
    assert waiting.requests() == [("default", request(3)), ("default", request(1)), ("default", request(2))]
    waiting.on_delete(PodUid("p"))
    assert waiting.waits("default", request(1))
    waiting.on_delete(PodUid("r"))
    assert not waiting.waits("default", request(1))


def test_pod_refused_again_with_another_request_waits_for_that_one():
    waiting = UnschedulablePods()
    refuse(waiting, "p", 1)
    refuse(waiting, "p", 2)
    assert len(waiting) == 1
    assert waiting.requests() == [("default", request(2))]


def test_touched_node_is_of_interest_again_when_it_refuses_again():
    waiting = UnschedulablePods()
    refuse(waiting, "p", 1, W1, W2)
    waiting.touched(W1)
    assert waiting.nodes() == [W2]
    refuse(waiting, "p", 1, W1)
    assert waiting.interesting(W1)


def test_pods_and_nodes_expire_when_they_are_not_tried_for_long():
    waiting = UnschedulablePods()
    refuse(waiting, "p", 1, W1, at=0.0)
    refuse(waiting, "q", 2, W2, at=800.0)
    waiting.expire(901.0)
    assert len(waiting) == 1
    assert waiting.nodes() == [W2]
    waiting.expire(1_701.0)
    assert len(waiting) == 0
    assert waiting.nodes() == []


def test_pods_are_not_kept_without_bound():
    waiting = UnschedulablePods()
    for number in range(10_005):
        refuse(waiting, f"p{number}", number % 3)
    assert len(waiting) == 10_000


def test_pods_of_many_interfaces_are_kept_in_smaller_number():
    waiting = UnschedulablePods()
    most = MAX_INTERFACES // 1000
    for number in range(most + 5):
        large = Request((InterfaceRequest(min_tx_rate_mbps=number),) * 1000)
        waiting.refuse(PodUid(f"p{number}"), large, (W1,), 0.0, "default")
    assert len(waiting) == len(waiting.requests()) + most - 64 == most
    for number in range(most + 5):
        waiting.on_delete(PodUid(f"p{number}"))
    refuse(waiting, "p", 1)
    assert (len(waiting), waiting.requests()) == (1, [("default", request(1))])


def test_comparisons_are_shared_by_namespaces_if_one_has_many_pods():
    waiting = UnschedulablePods()
    refuse(waiting, "victim", 7)
    for number in range(200):
        waiting.refuse(PodUid(f"p{number}"), request(1_000 + number), (W1,), 1.0, "crowd")
    compared = waiting.requests()
    assert len(compared) == 64
    assert compared.index(("default", request(7))) < 2


def test_pods_of_the_largest_namespace_are_forgotten_when_there_are_too_many():
    waiting = UnschedulablePods()
    refuse(waiting, "victim", 7)
    for number in range(MAX_INTERFACES // 1000 + 5):
        large = Request((InterfaceRequest(min_tx_rate_mbps=number),) * 1000)
        waiting.refuse(PodUid(f"p{number}"), large, (W1,), 0.0, "crowd")
    assert waiting.waits("default", request(7))
    assert not waiting.waits("crowd", Request((InterfaceRequest(),) * 1000))
