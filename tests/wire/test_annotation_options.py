"""Options of an interface besides rates: every key at its edges, and keys that do not go together."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asked_options import drawn_options
from k8s_rdma.core.options import NO_OPTIONS, InterfaceOptions
from k8s_rdma.core.request import MAX_INTERFACES, InterfaceRequest, Request, Topology
from k8s_rdma.core.types import Accelerator, LinkState, LinkType, PfSelector, VfDriver, VlanProto
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.annotation import ANNOTATION, format_request, parse_request, read_pod, read_request
from wire.option_values import FIRST, options_of, refusal


def test_options_are_all_read() -> None:
    assert options_of(
        name="data0",
        network="storage",
        pf="enp65s0f0",
        link_type="ethernet",
        vlan=100,
        qos=3,
        vlan_proto="802.1ad",
        mac="02:00:00:00:00:AA",
        mtu=9000,
        trust=True,
        spoof_check=False,
        link_state="enable",
    ) == InterfaceOptions(
        name="data0",
        network="storage",
        pf=PfSelector(names=frozenset({"enp65s0f0"})),
        link_type=LinkType.ETHERNET,
        vlan=100,
        qos=3,
        vlan_proto=VlanProto.DOT1AD,
        mac="02:00:00:00:00:aa",
        mtu=9000,
        trust=True,
        spoof_check=False,
        link_state=LinkState.ENABLE,
    )
    assert options_of(link_type="ib", guid="02:00:00:ff:fe:00:00:01", pkey="0x8001") == InterfaceOptions(
        link_type=LinkType.INFINIBAND, guid="02:00:00:ff:fe:00:00:01", pkey=0x8001
    )
    assert options_of(driver="vfio-pci") == InterfaceOptions(driver=VfDriver.VFIO_PCI)


@pytest.mark.parametrize("keys", [{}, {"driver": "kernel"}, {"min_tx_rate": 5, "enforce": "hardware"}])
def test_options_are_the_one_empty_object_if_no_option_is_requested(keys: dict[str, object]) -> None:
    assert options_of(**keys) is NO_OPTIONS


_NO_NETDEV = "is of a network device, and with driver vfio-pci there is none"

GUID = "02:00:00:ff:fe:00:00:01"
MAC = "02:00:00:00:00:01"


@pytest.mark.parametrize(
    ("keys", "field", "why"),
    [
        ({"driver": "vfio-pci", "mtu": 9000}, "mtu", _NO_NETDEV),
        ({"driver": "vfio-pci", "network": "a"}, "network", _NO_NETDEV),
        ({"link_type": "infiniband", "vlan": 0}, "vlan", "is of Ethernet, and link_type is infiniband"),
        ({"link_type": "infiniband", "mac": MAC}, "mac", "is of Ethernet, and link_type is infiniband"),
        ({"link_type": "infiniband", "trust": False}, "trust", "is of Ethernet, and link_type is infiniband"),
        (
            {"link_type": "infiniband", "spoof_check": True},
            "spoof_check",
            "is of Ethernet, and link_type is infiniband",
        ),
        ({"link_type": "ethernet", "guid": GUID}, "guid", "is of InfiniBand, and link_type is ethernet"),
        ({"link_type": "ethernet", "pkey": 1}, "pkey", "is of InfiniBand, and link_type is ethernet"),
        ({"guid": GUID, "mac": MAC}, "guid", "is of InfiniBand, and mac of Ethernet"),
        ({"pkey": 1, "vlan": 1}, "pkey", "is of InfiniBand, and vlan of Ethernet"),
        ({"count": 2, "name": "a"}, "count", "asks for interfaces that are alike, and name is of one alone"),
        ({"count": 2, "mac": MAC}, "count", "asks for interfaces that are alike, and mac is of one alone"),
        ({"count": 1, "guid": GUID}, "count", "asks for interfaces that are alike, and guid is of one alone"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(keys: dict[str, object], field: str, why: str) -> None:
    assert refusal(keys) == f"{FIRST}.{field}: {why}"


@pytest.mark.parametrize(
    ("key", "value", "same"),
    [
        ("name", "a", "a"),
        ("mac", MAC, MAC.replace(":", "-")),
        ("guid", "0a:00:00:ff:fe:00:00:01", "0A:00:00:FF:FE:00:00:01"),
    ],
)
def test_value_that_must_be_unique_is_refused_for_a_second_interface(key: str, value: str, same: str) -> None:
    message = refusal({key: value}, {}, {key: same})
    assert message == f"{ANNOTATION}[2].{key}: {value} is that of {FIRST}, too"


def test_count_stands_for_as_many_alike() -> None:
    text = '[{"min_tx_rate": 5, "vlan": 7, "count": 3}, {"count": 1}]'
    tagged = InterfaceRequest(min_tx_rate_mbps=5, options=InterfaceOptions(vlan=7))
    assert parse_request(text) == Request((tagged, tagged, tagged, InterfaceRequest()))


def test_count_is_bounded_together() -> None:
    assert len(parse_request('[{"count": 1024}]').interfaces) == MAX_INTERFACES
    message = refusal({}, {"count": 1024}, {"count": 1024}, {"nonsense": 1})
    assert message == f"{ANNOTATION}: asks for 1025 interfaces or more; at most 1024"


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("vlanProto", "vlan_proto"),
        ("spoofchk", "spoof_check"),
        ("link-state", "link_state"),
        ("MAC", "mac"),
        ("vlan_id", "vlan"),
        ("drivers", "driver"),
    ],
)
def test_misspelt_key_is_refused_with_the_nearest_one(key: str, meant: str) -> None:
    assert refusal({key: 1}) == f"{FIRST}.{key}: unknown key; did you mean {meant}?"


def test_keys_of_a_selector_are_warnings_when_not_strict() -> None:
    read = read_request('[{"pf": {"NAME": "a", "nme": "b"}}]', strict=False)
    assert read.request.interfaces[0].options.pf == PfSelector(names=frozenset({"a"}))
    assert read.warnings == (
        f"{FIRST}.pf.NAME: unknown key; taken as name",
        f"{FIRST}.pf.nme: unknown key; did you mean name? (ignored)",
    )


def test_selector_that_only_unknown_keys_are_left_of_is_refused_when_not_strict() -> None:
    assert refusal({"pf": {"slot": 1}}, strict=False).startswith(f"{FIRST}.pf: selects nothing")


def unlike(drawn: list[InterfaceOptions]) -> list[InterfaceOptions]:
    """Without values that two of them share and must not."""
    return [
        replace(each, **{key: default for key, default in (("name", ""), ("mac", None), ("guid", None))
                         if getattr(each, key) in [getattr(other, key) for other in drawn[:at]]})
        for at, each in enumerate(drawn)
    ]  # fmt: skip


@given(st.lists(drawn_options(), max_size=8).map(unlike))
def test_options_survive_when_formatted_and_parsed(drawn: list[InterfaceOptions]) -> None:
    request = Request(tuple(InterfaceRequest(min_tx_rate_mbps=5, options=each) for each in drawn))
    assert parse_request(format_request(request)) == request


def test_format_writes_only_requested_options() -> None:
    selected = InterfaceOptions(
        vlan=0, trust=False, pkey=None, pf=PfSelector(names=frozenset({"b", "a"}), drivers=frozenset({"ice"}))
    )
    assert format_request(Request((InterfaceRequest(options=selected),))) == (
        '[{"pf":{"name":["a","b"],"driver":"ice"},"vlan":0,"trust":false}]'
    )


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=6)
    | st.sampled_from(["0x8001", MAC, GUID, "on"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "pci", "vendor"]), inner)
    ),
)
KEYS = st.sampled_from(
    [
        *("count", "name", "network", "pf", "link_type", "driver", "vlan", "qos", "vlan_proto", "mac", "mtu"),
        *("trust", "spoof_check", "link_state", "guid", "pkey", "enforce"),
    ]
)  # fmt: skip


@given(st.lists(st.dictionaries(KEYS, VALUES, max_size=4), max_size=3), st.booleans())
def test_reading_raises_only_malformed_for_any_values(drawn: list[object], strict: bool) -> None:
    with contextlib.suppress(MalformedError):
        request = read_request(json.dumps(drawn), strict=strict).request
        assert parse_request(format_request(request)) == request


# Near GPUs


def near_gpus(*interfaces: object, **annotations: str) -> Request:
    texts = {"rdma_interfaces_required": json.dumps(interfaces)}
    texts |= {f"k8s-rdma.io/{key}": text for key, text in annotations.items()}
    return read_pod(texts, strict=True).request


def test_interfaces_near_gpus_say_so_and_how_near():
    request = near_gpus({"near": "gpu"}, {"per": "gpu", "min_tx_rate": 0}, {}, topology="same-numa")
    assert [each.options.near for each in request.interfaces] == [Accelerator.GPU, None, None]
    assert request.topology is Topology.SAME_NUMA
    assert near_gpus({"near": "gpu"}).topology is Topology.PREFER
    assert near_gpus({}, topology="anything") == near_gpus({})
    expanded = request.per_gpu(3)
    assert [each.options.near for each in expanded.interfaces] == [*[Accelerator.GPU] * 4, None]
    assert not any(each.options.per for each in expanded.interfaces)
    assert read_pod({"rdma_interfaces_required": format_request(request)}, strict=True).request == replace(
        request, topology=Topology.PREFER
    )


@pytest.mark.parametrize(
    ("interfaces", "annotations", "message"),
    [
        (
            [{"near": "gpu"}],
            {"topology": "same-switch"},
            "k8s-rdma.io/topology: same-switch is no topology; known are",
        ),
        (
            [{"near": "gpu"}],
            {"policy": "same-pf"},
            "k8s-rdma.io/policy: rdma_interfaces_required has interfaces near",
        ),
        (
            [{"near": "gpu", "min_tx_rate": 5}, {}, {"near": "gpu"}],
            {},
            "rdma_interfaces_required[2]: differs from rdma_interfaces_required[0] in more than names",
        ),
        ([{"near": "gpu", "per": "gpu"}], {}, "rdma_interfaces_required[0].per: is said beside near"),
        (
            [{"per": "gpu", "name": "a"}],
            {},
            "rdma_interfaces_required[0].name: is of one interface, and per stands",
        ),
        (
            [{"per": "gpu", "count": 2}],
            {},
            "rdma_interfaces_required[0].count: asks for interfaces that are alike",
        ),
    ],
)
def test_option_that_cannot_hold_for_every_gpu_is_refused(
    interfaces: list[object], annotations: dict[str, str], message: str
):
    with pytest.raises(MalformedError) as caught:
        near_gpus(*interfaces, **annotations)
    assert caught.value.message.startswith(message)
