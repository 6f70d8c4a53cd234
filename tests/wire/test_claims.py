"""Messages on `claims.sock`: what a peer must not send names the field."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.claim_status import decode_state, prepared_devices
from k8s_rdma.wire.claims import (
    MAX_IPS,
    Offers,
    decode_answer,
    decode_offers,
    decode_question,
    encode_line,
)
from resource_claims import claim, interface

PF = {
    "name": "f0",
    "pf": "f0",
    "pci": "0000:03:00.0",
    "driver": "ice",
    "vendor": "8086:1592",
    "link_type": "ethernet",
    "mtu": 1500,
    "min_rate": "hardware",
    "max_rate": "hardware",
    "rdma": True,
    "bandwidth_mbps": 100_000,
    "vfs": 8,
}
DEVICE = {"request": "a", "pool": "w1", "device": "f0", "share_id": "", "cdi": []}
INTERFACE = {"device": "f0", "share_id": "share-0", "pci": "0000:03:00.2"}
CLAIM = {
    "claim": {"namespace": "default", "name": "c", "uid": "claim-1"},
    "pod": "p",
    "pod_uid": "uid-p",
    "interfaces": [INTERFACE],
}


def offers(pf: dict[str, Any], claim: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"node": "w1", "pfs": [PF | pf], "claims": [CLAIM | claim]})


def test_offers_with_their_least_fields_are_taken() -> None:
    found = decode_offers(offers({}, {}))
    assert (found.pfs[0].vfs, found.claims[0].interfaces[0].ips) == (8, None)
    assert decode_offers(encode_line(found)) == found


@pytest.mark.parametrize(
    ("pf", "claim", "path"),
    [
        ({"vfs": -1}, {}, "$.pfs[0].vfs"),
        ({"mtu": -1}, {}, "$.pfs[0].mtu"),
        ({"mtu": 1 << 31}, {}, "$.pfs[0].mtu"),
        ({"bandwidth_mbps": -100_000}, {}, "$.pfs[0].bandwidth_mbps"),
        ({"bandwidth_mbps": 1 << 32}, {}, "$.pfs[0].bandwidth_mbps"),
        ({"numa_node": -1}, {}, "$.pfs[0].numa_node"),
        ({"name": ""}, {}, "$.pfs[0].name"),
        ({"name": "f" * 254}, {}, "$.pfs[0].name"),
        ({"problems": ["x"] * 65}, {}, "$.pfs[0].problems"),
        ({"problems": ["x" * 4097]}, {}, "$.pfs[0].problems[0]"),
        ({}, {"pod_uid": ""}, "$.claims[0].pod_uid"),
        ({}, {"interfaces": [INTERFACE] * 33}, "$.claims[0].interfaces"),
        ({}, {"interfaces": [INTERFACE | {"ips": ["::1"] * 17}]}, "$.claims[0].interfaces[0].ips"),
        ({}, {"interfaces": [INTERFACE | {"min_tx_rate": -1}]}, "$.claims[0].interfaces[0].min_tx_rate"),
    ],
)
def test_offers_beyond_a_bound_are_refused(pf: dict[str, Any], claim: dict[str, Any], path: str) -> None:
    with pytest.raises(MalformedError) as refused:
        decode_offers(offers(pf, claim))
    assert refused.value.message.endswith(f"`{path}`")


@pytest.mark.parametrize(
    ("answer", "path"),
    [
        ({"error": "x" * 4097}, "$.error"),
        ({"devices": [DEVICE] * 33}, "$.devices"),
        (
            {"devices": [DEVICE | {"request": ""}]},
            "$.devices[0].request",
        ),
    ],
)
def test_answer_beyond_a_bound_is_refused(answer: dict[str, Any], path: str) -> None:
    with pytest.raises(MalformedError) as refused:
        decode_answer(msgspec.json.encode(answer))
    assert refused.value.message.endswith(f"`{path}`")


@pytest.mark.parametrize(
    "question",
    [{"follow": True, "abandoned_by": "p"}, {"unprepare": CLAIM["claim"], "abandoned_by": ""}],
)
def test_question_that_abandons_no_claim_is_refused(question: dict[str, Any]) -> None:
    with pytest.raises(MalformedError, match="abandoned_by"):
        decode_question(msgspec.json.encode(question))


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


def test_most_addresses_of_an_interface_are_taken() -> None:
    ips = [f"192.0.2.{index}/24" for index in range(MAX_IPS)]
    assert isinstance(decode_offers(offers({}, {"interfaces": [INTERFACE | {"ips": ips}]})), Offers)


def test_claim_of_more_results_than_there_can_be_has_no_status() -> None:
    document = claim(*(interface(f"r{index}") for index in range(10_000)))
    with pytest.raises(MalformedError, match=r"results"):
        decode_state(msgspec.json.encode(document))
