"""Annotations are never so long that a pod, once bound, can be written to no more."""

from __future__ import annotations

import json

import pytest

from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.request import MAX_INTERFACES, Request
from k8s_rdma.core.types import NodeName, PodUid, pci_address
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.annotation import annotation_bytes, parse_request
from k8s_rdma.wire.annotations_size import MAX_ANNOTATION_BYTES, placement_room, require_room
from k8s_rdma.wire.ed25519_keys import PrivateKey
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, encode
from k8s_rdma.wire.placement_keys import PlacementKeys

REQUESTS = {
    "one": [{}],
    "rates": [{"min_tx_rate": 100_000, "max_tx_rate": 200_000, "enforce": "hardware"}],
    "options": [{"name": f"rail{at}", "network": "n", "mtu": 9000, "pf": "eth0"} for at in range(64)],
    "most": [{"min_tx_rate": 100_000, "max_tx_rate": 200_000, "count": MAX_INTERFACES}],
}


KEYS = PlacementKeys.from_keys(PrivateKey(bytes(32)))
"""Of the kind whose signatures are the longest."""


def placed(request: Request) -> dict[str, str]:
    """The annotation of the pod on a node of a usual name."""
    interfaces = tuple(
        PlacedInterface(
            pf=pci_address("10000:e1:00.0"),
            min_tx_rate_mbps=each.min_tx_rate_mbps,
            max_tx_rate_mbps=each.max_tx_rate_mbps,
            enforce=each.enforce,
            options=each.options,
        )
        for each in request.interfaces
    )
    placement = Placement(node=NodeName("w1.example"), interfaces=interfaces, policy=request.policy)
    return {PLACEMENT_ANNOTATION: encode(placement, PodUid("u" * 36), KEYS)}


@pytest.mark.parametrize("asked", REQUESTS.values(), ids=REQUESTS)
def test_room_is_enough_for_the_placement_and_not_much_more(asked):
    request = parse_request(json.dumps(asked))
    length = annotation_bytes(placed(request))
    assert length <= placement_room(request) <= length + 2_000 + 10 * len(request.interfaces)


@pytest.mark.parametrize("asked", REQUESTS.values(), ids=REQUESTS)
def test_placement_that_has_just_room_is_taken_and_one_byte_more_refused(asked):
    request = parse_request(json.dumps(asked))
    left = MAX_ANNOTATION_BYTES - placement_room(request)
    require_room(left, request)
    with pytest.raises(MalformedError, match=f"{left + 1} bytes"):
        require_room(left + 1, request)


def test_length_is_of_bytes_and_of_all_keys_and_values():
    assert annotation_bytes({"a": "bc", "d": "ä"}) == 6
