"""The placement annotation: only its writer can change it, and it is for one pod on one node."""

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

from asked_options import drawn_options
from k8s_rdma.core.options import NO_OPTIONS, InterfaceOptions
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.request import PfPolicy
from k8s_rdma.core.types import (
    MAX_RATE_MBPS,
    Enforce,
    LinkState,
    LinkType,
    NodeName,
    PfSelector,
    PodUid,
    VfDriver,
    VlanProto,
    pci_address,
)
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.ed25519_keys import PrivateKey
from k8s_rdma.wire.placement_annotation import (
    PLACEMENT_ANNOTATION,
    Promise,
    decode,
    decode_promise,
    decode_unverified,
    encode,
    generation_in,
)
from k8s_rdma.wire.placement_keys import PlacementKeys

SECRET = b"a key of this test"
KEY = PlacementKeys.shared(SECRET)
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

FREE = {"pf": "0000:03:00.0", "min_tx_rate": 0, "max_tx_rate": 0}


CHANGED = replace(
    PLACEMENT,
    interfaces=(replace(PLACEMENT.interfaces[0], previous_min_tx_rate_mbps=0), PLACEMENT.interfaces[1]),
    generation=3,
)


def test_change_of_rates_is_a_later_generation_with_the_reservation_before():
    text = encode(CHANGED, UID, KEY)
    assert decode(text, uid=UID, node=W1, keys=KEY) == CHANGED
    assert text.startswith(f'{{"version":1,"node":"w1","uid":"{UID}","generation":3,"interfaces":[')
    assert generation_in(text) == 3
    assert generation_in(encode(PLACEMENT, UID, KEY)) == 0


def test_generation_cannot_be_changed_without_the_key():
    text = encode(CHANGED, UID, KEY).replace('"generation":3', '"generation":4')
    assert generation_in(text) == 4
    assert "the placement was changed afterwards" in refusal(text).message


@pytest.mark.parametrize("text", ["", "{", '{"generation":5}', ' {"version":1', '{"version":1,"node":"\\"}'])
def test_text_of_no_placement_has_no_generation(text: str):
    assert generation_in(text) == 0


def changed(text: str, **fields: object) -> str:
    return json.dumps({**json.loads(text), **fields})


def without(text: str, field: str) -> str:
    return json.dumps({key: value for key, value in json.loads(text).items() if key != field})


def refusal(text: str, key: PlacementKeys | None = KEY, uid: str = UID, node: str = "w1") -> MalformedError:
    with pytest.raises(MalformedError) as refused:
        decode(text, uid=PodUid(uid), node=NodeName(node), keys=key)
    assert refused.value.message.startswith(f"{PLACEMENT_ANNOTATION}: ")
    assert refused.value.message.encode()
    return refused.value


def test_text_is_the_canonical_document_when_there_is_no_key() -> None:
    assert encode(PLACEMENT, UID, None) == UNSIGNED


def test_text_ends_in_the_hmac_of_the_unsigned_text_when_there_is_a_key() -> None:
    expected = hmac.new(SECRET, UNSIGNED.encode(), hashlib.sha256).hexdigest()
    assert encode(PLACEMENT, UID, KEY) == f'{UNSIGNED[:-1]},"hmac":"{expected}"}}'


SIGNED_BEFORE_ENFORCE = (
    UNSIGNED[:-1] + ',"hmac":"' + hmac.digest(SECRET, UNSIGNED.encode(), "sha256").hex() + '"}'
)


def test_placement_signed_by_an_older_extender_is_valid() -> None:
    assert decode(SIGNED_BEFORE_ENFORCE, uid=UID, node=W1, keys=KEY) == PLACEMENT


@pytest.mark.parametrize("enforce", [Enforce.HARDWARE, Enforce.SOFTWARE])
def test_text_has_enforce_only_if_an_enforcer_is_demanded(enforce: Enforce) -> None:
    first, second = PLACEMENT.interfaces
    demanding = replace(PLACEMENT, interfaces=(first, replace(second, enforce=enforce)))
    text = encode(demanding, UID, KEY)
    assert json.loads(text)["interfaces"] == [
        {"pf": "0000:03:00.0", "min_tx_rate": 15000, "max_tx_rate": 20000},
        {"pf": "0000:03:00.1", "min_tx_rate": 0, "max_tx_rate": 0, "enforce": enforce.value},
    ]
    assert decode(text, uid=UID, node=W1, keys=KEY) == demanding
    assert "hmac: not made" in refusal(text.replace(f',"enforce":"{enforce}"', "")).message


@pytest.mark.parametrize("policy", PfPolicy)
def test_text_has_the_policy_only_if_there_is_one(policy: PfPolicy) -> None:
    under = replace(PLACEMENT, policy=policy)
    text = encode(under, UID, KEY)
    told = json.loads(text)
    assert told.get("policy", "any") == policy
    assert ("policy" in told) == (policy is not PfPolicy.ANY)
    assert decode(text, uid=UID, node=W1, keys=KEY) == under
    if policy is not PfPolicy.ANY:
        assert "hmac: not made" in refusal(without(text, "policy")).message
        assert "policy" in refusal(changed(text, policy="sane-pf")).message


EVERYTHING = InterfaceOptions(
    name="data0",
    network="storage",
    pf=PfSelector(
        names=frozenset({"b", "a"}),
        pcis=frozenset({pci_address("41:00.0")}),
        vendors=frozenset({"15b3:1017"}),
        drivers=frozenset({"mlx5_core"}),
    ),
    link_type=LinkType.ETHERNET,
    driver=VfDriver.VFIO_PCI,
    vlan=100,
    qos=3,
    vlan_proto=VlanProto.DOT1AD,
    mac="02:00:00:00:00:01",
    mtu=9000,
    trust=False,
    spoof_check=True,
    link_state=LinkState.ENABLE,
    guid="02:00:00:ff:fe:00:00:01",
    pkey=0x8001,
)


def asking(*options: InterfaceOptions) -> Placement:
    pf = pci_address("0000:03:00.0")
    return Placement(node=W1, interfaces=tuple(PlacedInterface(pf=pf, options=each) for each in options))


def test_text_has_requested_options_once_and_no_others() -> None:
    tagged = InterfaceOptions(vlan=0, trust=False)
    text = encode(asking(tagged, NO_OPTIONS, EVERYTHING, tagged), UID, KEY)
    document = json.loads(text)
    assert list(document) == ["version", "node", "uid", "interfaces", "options", "hmac"]
    assert [interface.get("options") for interface in document["interfaces"]] == [0, None, 1, 0]
    assert document["options"] == [
        {"vlan": 0, "trust": False},
        {
            "name": "data0",
            "network": "storage",
            "pf": {
                "name": ["a", "b"],
                "pci": ["0000:41:00.0"],
                "vendor": ["15b3:1017"],
                "driver": ["mlx5_core"],
            },
            "link_type": "ethernet",
            "driver": "vfio-pci",
            "vlan": 100,
            "qos": 3,
            "vlan_proto": "802.1ad",
            "mac": "02:00:00:00:00:01",
            "mtu": 9000,
            "trust": False,
            "spoof_check": True,
            "link_state": "enable",
            "guid": "02:00:00:ff:fe:00:00:01",
            "pkey": 32769,
        },
    ]
    assert decode(text, uid=UID, node=W1, keys=KEY) == asking(tagged, NO_OPTIONS, EVERYTHING, tagged)
    assert "hmac: not made" in refusal(text.replace('"vlan":100', '"vlan":101')).message
    assert "hmac: not made" in refusal(text.replace(',"options":0}]', ',"options":1}]')).message


def test_text_of_many_interfaces_that_ask_for_the_same_is_hardly_longer() -> None:
    plain, asked = (len(encode(asking(*[each] * 1024), UID, KEY)) for each in (NO_OPTIONS, EVERYTHING))
    assert asked < plain + 1024 * len(',"options":0') + 500
    assert asked < 256 * 1024 / 2  # of all annotations of an object, Kubernetes takes 256 KiB


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
            options=st.just(NO_OPTIONS) | drawn_options(),
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


keys = st.binary(min_size=1).map(PlacementKeys.shared) | st.binary(min_size=32, max_size=32).map(
    lambda seed: PlacementKeys.from_keys(PrivateKey(seed))
)


@given(placements, st.text(), st.none() | keys)
def test_placement_survives_when_encoded_and_decoded(
    placement: Placement, uid: str, key: PlacementKeys | None
) -> None:
    text = encode(placement, PodUid(uid), key)
    assert decode(text, uid=PodUid(uid), node=placement.node, keys=key) == placement
    assert decode_promise(text, keys=key) == Promise(
        uid=PodUid(uid), placement=placement, key_id=key.accepted[0].id if key else ""
    )


def test_placement_is_valid_when_its_text_was_reformatted() -> None:
    text = json.dumps(json.loads(encode(PLACEMENT, UID, KEY)), indent=2, sort_keys=True)
    assert decode(text, uid=UID, node=W1, keys=KEY) == PLACEMENT


def test_hmac_is_not_looked_at_when_the_reader_has_no_key() -> None:
    text = changed(encode(PLACEMENT, UID, KEY), hmac="anything")
    assert decode(text, uid=UID, node=W1, keys=None) == PLACEMENT


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
    assert "hmac: not made" in refusal(encode(PLACEMENT, UID, PlacementKeys.shared(b"another"))).message


@pytest.mark.parametrize("text", [UNSIGNED, changed(UNSIGNED, hmac="")])
def test_placement_is_refused_when_unsigned_and_the_reader_has_a_key(text: str) -> None:
    assert "hmac: absent" in refusal(text).message


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize(("uid", "node", "named"), [("other", "w1", "UID"), (UID, "w2", "node w1, not w2")])
def test_placement_is_stale_when_it_is_for_another_pod_or_node(
    key: PlacementKeys | None, uid: str, node: str, named: str
) -> None:
    refused = refusal(encode(PLACEMENT, UID, key), key, uid, node)
    assert refused.reason is Reason.STALE_PLACEMENT
    assert named in refused.message


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "ends too early"),
        ("[]", "Expected `object`"),
        ("\ud800", "surrogates"),
        ("[" * 100_000, "nested deeper than 64 levels"),
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
        (
            changed(UNSIGNED, interfaces=[{**FREE, "options": 1}], options=[{}]),
            "interfaces[0].options: 1 is none of the 1 options",
        ),
        (changed(UNSIGNED, interfaces=[{**FREE, "options": -1}], options=[{}]), "$.interfaces[0].options"),
        (changed(UNSIGNED, options=[{"colour": 1}]), "`colour`"),
        (changed(UNSIGNED, options=[{"pf": {"slot": "1"}}]), "`slot`"),
        (changed(UNSIGNED, options=[{"pf": {"pci": ["x"]}}]), "options[0].pf.pci: not a PCI address"),
        (changed(UNSIGNED, options=[{"vlan": 4095}]), "$.options[0].vlan"),
        (changed(UNSIGNED, options=[{"mac": "02:00:00:00:00:01\n"}]), "$.options[0].mac"),
        (changed(UNSIGNED, options=[{"driver": "igb"}]), "'igb'"),
    ],
)
def test_placement_is_refused_naming_the_field_when_malformed(text: str, named: str) -> None:
    refused = refusal(text, key=None)
    assert refused.reason is Reason.MALFORMED_ANNOTATION
    assert named in refused.message


def test_empty_key_is_an_error_of_the_caller() -> None:
    with pytest.raises(ValueError, match="empty key"):
        encode(PLACEMENT, UID, PlacementKeys.shared(b""))


@given(st.text(), st.none() | st.just(KEY))
def test_decoding_raises_only_malformed_for_any_text(text: str, key: PlacementKeys | None) -> None:
    with contextlib.suppress(MalformedError):
        decode_promise(text, keys=key)


SIGNED = encode(PLACEMENT, UID, KEY)
SIGNATURE = SIGNED.rpartition(',"hmac":')[2]


def unverified(text: str) -> object:
    try:
        return decode_unverified(text, uid=UID, node=W1)
    except MalformedError as error:
        return error.message


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        pytest.param(SIGNED, True, id="as-written"),
        pytest.param(encode(replace(PLACEMENT, policy=PfPolicy.SAME_PF), UID, KEY), True, id="policy"),
        pytest.param(encode(CHANGED, UID, KEY), False, id="generation"),
        pytest.param(SIGNED.replace('"version":1', '"version":2'), False, id="version"),
        pytest.param(SIGNED.replace('"w1"', '"w2"'), False, id="node"),
        pytest.param(SIGNED.replace(UID, "other"), False, id="uid"),
        pytest.param(SIGNED.replace(',"hmac":', ',"uid":"other","hmac":'), False, id="second-uid"),
        pytest.param(SIGNED.replace(',"hmac":', ',"hmac":"a","signature":'), False, id="two-signatures"),
        pytest.param(SIGNED.replace(SIGNATURE, '""}'), False, id="no-signature"),
        pytest.param(SIGNED.replace(SIGNATURE, '"\\"}'), False, id="quote-that-is-escaped"),
        pytest.param(SIGNED.replace(',"hmac":', ',"more":1,"hmac":'), False, id="unknown-field"),
        pytest.param(SIGNED.replace("0000:03:00.1", "eth0"), False, id="pf"),
    ],
)
def test_terms_by_the_signers_writing_are_those_of_the_document(text: str, counts: bool):
    assert isinstance(unverified(text), tuple) is counts
    assert unverified(text) == unverified(f"{text} ")  # another writing of the same document


DEVICES = Placement(
    node=W1,
    interfaces=tuple(
        PlacedInterface(
            pf=pci_address(f"0000:03:00.{pf}"), min_tx_rate_mbps=rate, pool="tencent.com/rdma", entry=entry
        )
        for entry, rate in enumerate((15000, 5000))
        for pf in range(2)
    ),
)
UNSIGNED_DEVICES = (
    '{"version":1,"node":"w1","uid":"137e6465-c8fe-449b-b887-6de091a51ce8","interfaces":['
    '{"min_tx_rate":15000,"max_tx_rate":0,"pool":0},{"min_tx_rate":5000,"max_tx_rate":0,"pool":0}],'
    '"pools":[{"resource":"tencent.com/rdma","pfs":["0000:03:00.0","0000:03:00.1"]}]}'
)


def test_text_names_the_pods_own_rates_once_and_the_pfs_of_its_devices() -> None:
    assert encode(DEVICES, UID, None) == UNSIGNED_DEVICES


@pytest.mark.parametrize("key", [None, KEY])
def test_placement_of_devices_is_read_as_it_was_written(key: PlacementKeys | None) -> None:
    read = decode(encode(DEVICES, UID, key), uid=UID, node=W1, keys=key)
    assert read == DEVICES
    assert [each.min_tx_rate_mbps for each in read.request().interfaces] == [15000, 5000]
    assert read.devices() == {"tencent.com/rdma": 2}


def test_hmac_covers_the_pools() -> None:
    other = encode(DEVICES, UID, KEY).replace("tencent.com/rdma", "tencent.com/other")
    assert "hmac" in refusal(other).message


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pools": []}, "interfaces[0].pf: not a PCI address"),
        ({"interfaces": [{**FREE, "pool": 0}]}, "interfaces[0].pool: expected one of the 1 pools, and no pf"),
        ({"interfaces": [FREE]}, "interfaces[0].pool: expected one of the 1 pools, and no pf"),
        (
            {"interfaces": [{"min_tx_rate": 0, "max_tx_rate": 0, "pool": 1}]},
            "interfaces[0].pool: expected one of the 1 pools, and no pf",
        ),
        ({"pools": [{"resource": "r.io/a", "pfs": ["x"]}]}, "interfaces[0].pf: not a PCI address"),
        ({"pools": [{"resource": "r.io/a", "pfs": []}]}, "pools[0].pfs"),
        ({"pools": [{"resource": "", "pfs": ["0000:03:00.0"]}]}, "pools[0].resource"),
        (
            {
                "interfaces": [{"min_tx_rate": 0, "max_tx_rate": 0, "pool": 0}] * 1024,
                "pools": [{"resource": "r.io/a", "pfs": ["0000:03:00.0"] * 64}],
            },
            "interfaces: on 65536 PFs together",
        ),
    ],
)
def test_refusal_names_the_field_when_pools_are_not_as_they_must_be(
    changes: dict[str, Any], said: str
) -> None:
    assert said in refusal(changed(UNSIGNED_DEVICES, **changes), key=None).message


def test_interface_of_a_pool_is_refused_if_there_are_no_pools() -> None:
    text = changed(UNSIGNED, interfaces=[{**FREE, "pool": 0}])
    assert "interfaces[0].pool: 0 is none of the 0 pools" in refusal(text, key=None).message


def test_interfaces_that_may_come_to_several_pfs_are_on_each():
    first, second = PLACEMENT.interfaces
    placement = replace(
        PLACEMENT,
        interfaces=(replace(second, entry=1), replace(second, pf=first.pf, entry=1), replace(first, entry=0)),
    )
    read = decode(encode(placement, UID, KEY), uid=UID, node=W1, keys=KEY)
    assert read == placement
    assert read.request() == PLACEMENT.request()


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([0, None], "interfaces[1].entry: absent, and others have one"),
        ([1, 1], "interfaces: their entries are not 0 to 0"),
        ([0, 2], "interfaces: their entries are not 0 to 1"),
        ([0, 1024], "1023"),
        ([0, -1], ">= 0"),
    ],
)
def test_entries_that_leave_interfaces_out_are_refused(entries: list[int | None], message: str):
    interfaces = [FREE if entry is None else FREE | {"entry": entry} for entry in entries]
    with pytest.raises(MalformedError) as refused:
        decode_promise(changed(UNSIGNED, interfaces=interfaces), keys=None)
    assert message in refused.value.message
