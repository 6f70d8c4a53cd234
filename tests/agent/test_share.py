"""Which interfaces of a pod an attachment gives: every entry is some attachment's, and of one only."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8s_rdma.agent.cni.networks import NETWORKS_ANNOTATION, interfaces_of_network, unknown_networks
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.request import InterfaceRequest, Request
from k8s_rdma.errors import MalformedError, Reason

MULTUS = {NETWORKS_ANNOTATION: "a, b"}


def request(*networks: str) -> Request:
    return Request(tuple(InterfaceRequest(options=InterfaceOptions(network=network)) for network in networks))


@pytest.mark.parametrize(
    ("networks", "own", "taken", "part"),
    [
        ((), "a", (), ()),
        (("", ""), "a", (), (0, 1)),
        (("", "a", "b", ""), "a", (), (0, 1, 3)),
        (("", "a", "b", ""), "b", {0, 1, 3}, (2,)),
        (("", "a", "b", ""), "b", (), (0, 2, 3)),
        (("a", "a"), "a", {0}, (1,)),
        (("b",), "a", (), ()),
        (("b", "c"), "bc", (), (0, 1)),
    ],
)
def test_share_has_interfaces_of_its_networks_and_free_ones_without_a_network(
    networks: tuple[str, ...], own: str, taken: set[int], part: tuple[int, ...]
) -> None:
    assert (
        interfaces_of_network(request(*networks), own=set(own), attached=set(taken), annotations=MULTUS)
        == part
    )


@pytest.mark.parametrize("annotations", [{}, {NETWORKS_ANNOTATION: ""}, {"other": "x"}])
def test_network_without_an_attachment_of_the_pod_is_refused_by_field(annotations: dict[str, str]) -> None:
    with pytest.raises(MalformedError) as refused:
        interfaces_of_network(
            request("", "fabric-b"), own={"net", "fabric-a"}, attached=set(), annotations=annotations
        )
    assert refused.value.reason is Reason.MALFORMED_ANNOTATION
    assert refused.value.message.startswith(
        "rdma_interfaces_required[1].network: fabric-b is not fabric-a nor net, and the pod has no "
    )


@pytest.mark.parametrize(
    ("listed", "found"),
    [
        ("", {1: "a", 2: "b", 4: "c-1"}),
        ("a", {2: "b", 4: "c-1"}),
        ("kube-system/b@net2, c-1", {1: "a"}),
        ('[{"name": "c-1", "namespace": "default", "interface": "net1"}, {"name": "ab"}]', {1: "a", 2: "b"}),
    ],
)
def test_networks_that_neither_attachment_nor_annotation_name_are_doubtful(
    listed: str, found: dict[int, str]
) -> None:
    asked = request("", "a", "b", "own", "c-1")
    assert unknown_networks(asked, own={"own"}, annotations={NETWORKS_ANNOTATION: listed}) == found


NETWORKS = st.sampled_from(["", "a", "b", "c"])


@given(st.lists(NETWORKS, max_size=8), st.lists(st.sampled_from("abc"), min_size=1, max_size=6))
def test_attachments_one_after_the_other_never_give_one_twice(
    networks: list[str], attachments: list[str]
) -> None:
    """Whatever the order is in which they come, and however often one network does."""
    asked = request(*networks)
    given_by: dict[int, str] = {}
    for network in attachments:
        part = interfaces_of_network(asked, own={network}, attached=given_by.keys(), annotations=MULTUS)
        assert not given_by.keys() & set(part)
        given_by |= dict.fromkeys(part, network)
    for index, network in enumerate(networks):
        if not network:
            assert given_by[index] == attachments[0]
        elif network in attachments:
            assert given_by[index] == network
        else:
            assert index not in given_by
