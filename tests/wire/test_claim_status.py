"""The state of a claim, and the status of its devices beside those that others wrote."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.claim_status import decode_state, prepared_devices
from k8s_rdma.wire.claims import decode_offers
from resource_claims import claim, interface
from wire.claim_messages import INTERFACE, offers


@pytest.mark.parametrize(
    "devices",
    [
        [{"driver": "rdma.k8s-rdma.io", "pool": 1, "device": None, "conditions": "x", "networkData": 7}],
        [
            {
                "driver": "rdma.k8s-rdma.io",
                "pool": "w1",
                "device": "f0",
                "shareID": "share-0",
                "conditions": [3, {"type": "Ready", "status": "True"}],
                "networkData": {"ips": ["x", 5, "192.0.2.5/24"]},
            }
        ],
    ],
)
def test_status_that_others_wrote_does_no_harm(devices: list[dict[str, Any]]) -> None:
    document = claim(interface("a"))
    document["status"]["devices"] = devices
    found = decode_state(msgspec.json.encode(document))
    attached = INTERFACE | {"ifname": "rdma0", "mac": "02:00:00:00:00:01"}
    [prepared] = decode_offers(offers({}, {"interfaces": [attached]})).claims
    [device] = prepared_devices(prepared, "w1", found, "2026-01-01T00:00:00Z")
    assert device["conditions"][0]["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    assert set(device["networkData"].get("ips", ())) <= {"192.0.2.5/24"}


def test_status_leaves_out_devices_that_are_no_longer_allocated() -> None:
    document = claim(interface("a"))
    document["status"]["allocation"] = None
    found = decode_state(msgspec.json.encode(document))
    prepared = decode_offers(offers({}, {})).claims[0]
    assert prepared_devices(prepared, "w1", found, "2026-01-01T00:00:00Z") == []


def test_claim_of_more_results_than_there_can_be_has_no_status() -> None:
    document = claim(*(interface(f"r{index}") for index in range(10_000)))
    with pytest.raises(MalformedError, match=r"results"):
        decode_state(msgspec.json.encode(document))
