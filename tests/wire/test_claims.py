"""Messages on `claims.sock`: a refusal of a peer's message names the field."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.claims import MAX_IPS, Offers, decode_answer, decode_offers, decode_question, encode_line
from wire.claim_messages import CLAIM, INTERFACE, offers

DEVICE = {"request": "a", "pool": "w1", "device": "f0", "share_id": "", "cdi": []}


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


def test_most_addresses_of_an_interface_are_taken() -> None:
    ips = [f"192.0.2.{index}/24" for index in range(MAX_IPS)]
    assert isinstance(decode_offers(offers({}, {"interfaces": [INTERFACE | {"ips": ips}]})), Offers)
