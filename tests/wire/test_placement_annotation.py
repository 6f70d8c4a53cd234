"""The placement annotation: nobody but its writer can change it, and it is for one pod on one node."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8s_rdma.core.ids import NodeName, PodUid, pci_address
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.rates import MAX_RATE_MBPS, Enforce
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, Promise, decode, decode_promise, encode

KEY = b"a key of this test"
W1 = NodeName("w1")
UID = PodUid("137e6465-c8fe-449b-b887-6de091a51ce8")
PLACEMENT = Placement(
    node=W1,
    interfaces=(
        PlacedInterface(pf=pci_address("0000:03:00.0"), min_tx_rate_mbps=15000, max_tx_rate_mbps=20000),
        PlacedInterface(pf=pci_address("0000:03:00.1")),
    ),
)
UNSIGNED = (
    '{"version":1,"node":"w1","uid":"137e6465-c8fe-449b-b887-6de091a51ce8","interfaces":['
    '{"pf":"0000:03:00.0","min_tx_rate":15000,"max_tx_rate":20000},'
    '{"pf":"0000:03:00.1","min_tx_rate":0,"max_tx_rate":0}]}'
)


def changed(text: str, **fields: object) -> str:
    return json.dumps({**json.loads(text), **fields})


def without(text: str, field: str) -> str:
    return json.dumps({key: value for key, value in json.loads(text).items() if key != field})


def refusal(text: str, key: bytes | None = KEY, uid: str = UID, node: str = "w1") -> MalformedError:
    with pytest.raises(MalformedError) as refused:
        decode(text, uid=PodUid(uid), node=NodeName(node), key=key)
    assert refused.value.message.startswith(f"{PLACEMENT_ANNOTATION}: ")
    assert refused.value.message.encode()
    return refused.value


def test_text_is_the_canonical_document_when_there_is_no_key() -> None:
    assert encode(PLACEMENT, UID, None) == UNSIGNED


def test_text_ends_in_the_hmac_of_the_unsigned_text_when_there_is_a_key() -> None:
    expected = hmac.new(KEY, UNSIGNED.encode(), hashlib.sha256).hexdigest()
    assert encode(PLACEMENT, UID, KEY) == f'{UNSIGNED[:-1]},"hmac":"{expected}"}}'


SIGNED_BEFORE_ENFORCE = (
    UNSIGNED[:-1] + ',"hmac":"' + hmac.digest(KEY, UNSIGNED.encode(), "sha256").hex() + '"}'
)


def test_placement_signed_by_an_older_extender_is_valid() -> None:
    assert decode(SIGNED_BEFORE_ENFORCE, uid=UID, node=W1, key=KEY) == PLACEMENT


def test_text_says_enforce_only_where_hardware_must() -> None:
    first, second = PLACEMENT.interfaces
    demanding = replace(PLACEMENT, interfaces=(first, replace(second, enforce=Enforce.HARDWARE)))
    text = encode(demanding, UID, KEY)
    assert json.loads(text)["interfaces"] == [
        {"pf": "0000:03:00.0", "min_tx_rate": 15000, "max_tx_rate": 20000},
        {"pf": "0000:03:00.1", "min_tx_rate": 0, "max_tx_rate": 0, "enforce": "hardware"},
    ]
    assert decode(text, uid=UID, node=W1, key=KEY) == demanding
    assert "hmac: not made" in refusal(text.replace(',"enforce":"hardware"', "")).message


placements = st.builds(
    Placement,
    node=st.text(min_size=1).map(NodeName),
    interfaces=st.lists(
        st.builds(
            PlacedInterface,
            pf=st.sampled_from(["0000:03:00.0", "0000:83:1f.7", "10000:00:00.0"]).map(pci_address),
            min_tx_rate_mbps=st.integers(0, MAX_RATE_MBPS),
            max_tx_rate_mbps=st.just(0) | st.just(MAX_RATE_MBPS),
            enforce=st.sampled_from(Enforce),
        )
        | st.integers(1, MAX_RATE_MBPS).map(
            lambda rate: PlacedInterface(
                pf=pci_address("0000:03:00.0"), min_tx_rate_mbps=rate, max_tx_rate_mbps=rate
            )
        ),
        min_size=1,
        max_size=5,
    ).map(tuple),
)


@given(placements, st.text(), st.none() | st.binary(min_size=1))
def test_placement_survives_when_encoded_and_decoded(
    placement: Placement, uid: str, key: bytes | None
) -> None:
    text = encode(placement, PodUid(uid), key)
    assert decode(text, uid=PodUid(uid), node=placement.node, key=key) == placement
    assert decode_promise(text, key=key) == Promise(uid=PodUid(uid), placement=placement)


def test_placement_is_valid_when_its_text_was_reformatted() -> None:
    text = json.dumps(json.loads(encode(PLACEMENT, UID, KEY)), indent=2, sort_keys=True)
    assert decode(text, uid=UID, node=W1, key=KEY) == PLACEMENT


def test_hmac_is_not_looked_at_when_the_reader_has_no_key() -> None:
    text = changed(encode(PLACEMENT, UID, KEY), hmac="anything")
    assert decode(text, uid=UID, node=W1, key=None) == PLACEMENT


@pytest.mark.parametrize(
    "changes",
    [
        {"node": "w2"},
        {"uid": "other"},
        {"interfaces": [{"pf": "0000:03:00.0", "min_tx_rate": 15001, "max_tx_rate": 20000}]},
        {"interfaces": [{"pf": "0000:03:00.0", "min_tx_rate": 15000, "max_tx_rate": 20000}]},
        {"hmac": "0" * 64},
        {"hmac": "é"},
    ],
)
def test_placement_is_refused_when_anything_was_changed_after_signing(changes: dict[str, Any]) -> None:
    refused = refusal(
        changed(encode(PLACEMENT, UID, KEY), **changes),
        uid=changes.get("uid", UID),
        node=changes.get("node", "w1"),
    )
    assert refused.reason is Reason.MALFORMED_ANNOTATION
    assert "hmac: not made with this cluster's key" in refused.message


def test_placement_is_refused_when_signed_with_another_key() -> None:
    assert "hmac: not made" in refusal(encode(PLACEMENT, UID, b"another")).message


@pytest.mark.parametrize("text", [UNSIGNED, changed(UNSIGNED, hmac="")])
def test_placement_is_refused_when_unsigned_and_the_reader_has_a_key(text: str) -> None:
    assert "hmac: absent" in refusal(text).message


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize(("uid", "node", "named"), [("other", "w1", "UID"), (UID, "w2", "node w1, not w2")])
def test_placement_is_stale_when_it_is_for_another_pod_or_node(
    key: bytes | None, uid: str, node: str, named: str
) -> None:
    refused = refusal(encode(PLACEMENT, UID, key), key, uid, node)
    assert refused.reason is Reason.STALE_PLACEMENT
    assert named in refused.message


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "truncated"),
        ("[]", "Expected `object`"),
        ("\ud800", "surrogates"),
        ("[" * 100_000, "Expected `object`"),
        (changed(UNSIGNED, version=2), "$.version"),
        (changed(UNSIGNED, extra=1), "`extra`"),
        (without(UNSIGNED, "uid"), "`uid`"),
        (without(UNSIGNED, "node"), "`node`"),
        (without(UNSIGNED, "interfaces"), "`interfaces`"),
        (changed(UNSIGNED, interfaces=[]), "$.interfaces"),
        (changed(UNSIGNED, interfaces=[{}] * 1025), "$.interfaces"),
        (changed(UNSIGNED, interfaces=[{"pf": "x", "min_tx_rate": 0}]), "`max_tx_rate`"),
        (changed(UNSIGNED, interfaces=[{"pf": "x", "min_tx_rate": 0, "max_tx_rate": 0, "vf": 1}]), "`vf`"),
        (changed(UNSIGNED, interfaces=[{"pf": "x", "min_tx_rate": -1, "max_tx_rate": 0}]), ">= 0"),
        (changed(UNSIGNED, interfaces=[{"pf": "x", "min_tx_rate": 1.5, "max_tx_rate": 0}]), "float"),
        (
            changed(UNSIGNED, interfaces=[{"pf": "x", "min_tx_rate": 2**32, "max_tx_rate": 0}]),
            "<= 4294967295",
        ),
        (changed(UNSIGNED, interfaces=[{"pf": "x", "min_tx_rate": 0, "max_tx_rate": 0}]), "interfaces[0].pf"),
        (
            changed(
                UNSIGNED, interfaces=[{"pf": "x", "min_tx_rate": 0, "max_tx_rate": 0, "enforce": "soft"}]
            ),
            "'soft'",
        ),
        (
            changed(UNSIGNED, interfaces=[{"pf": "0000:03:00.0", "min_tx_rate": 2, "max_tx_rate": 1}]),
            "interfaces[0].min_tx_rate: 2 is above max_tx_rate 1",
        ),
    ],
)
def test_placement_is_refused_naming_the_field_when_malformed(text: str, named: str) -> None:
    refused = refusal(text, key=None)
    assert refused.reason is Reason.MALFORMED_ANNOTATION
    assert named in refused.message


def test_empty_key_is_an_error_of_the_caller() -> None:
    with pytest.raises(ValueError, match="empty key"):
        encode(PLACEMENT, UID, b"")


@given(st.text(), st.none() | st.just(KEY))
def test_decoding_raises_nothing_but_malformed_for_any_text(text: str, key: bytes | None) -> None:
    with contextlib.suppress(MalformedError):
        decode_promise(text, key=key)
