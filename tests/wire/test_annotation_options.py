"""What an interface may ask for besides rates: every key at its edges, and what does not go together."""

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
from k8s_rdma.core.types import Accelerator, LinkState, LinkType, PfSelector, VfDriver, VlanProto, pci_address
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.annotation import ANNOTATION, format_request, parse_request, read_pod, read_request

FIRST = f"{ANNOTATION}[0]"


def options_of(**keys: object) -> InterfaceOptions:
    [wanted] = parse_request(json.dumps([keys])).interfaces
    return wanted.options


def refusal(*elements: object, strict: bool = True) -> str:
    with pytest.raises(MalformedError) as refused:
        read_request(json.dumps(elements), strict=strict)
    assert refused.value.reason is Reason.MALFORMED_ANNOTATION
    assert refused.value.message.encode()
    return refused.value.message


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


@pytest.mark.parametrize(
    ("key", "given_", "read"),
    [
        ("name", "a", "a"),
        ("name", "abcdefghijklmno", "abcdefghijklmno"),
        ("name", "net1.7@x-_", "net1.7@x-_"),
        ("vlan", 0, 0),
        ("vlan", 4094, 4094),
        ("mtu", 68, 68),
        ("mtu", 65535, 65535),
        ("trust", "on", True),
        ("trust", "off", False),
        ("spoof_check", "on", True),
        ("spoof_check", False, False),
        ("link_state", "auto", LinkState.AUTO),
        ("link_state", "disable", LinkState.DISABLE),
        ("link_type", "ETH", LinkType.ETHERNET),
        ("link_type", "ether", LinkType.ETHERNET),
        ("link_type", "infiniband", LinkType.INFINIBAND),
        ("link_type", "IB", LinkType.INFINIBAND),
        ("mac", "0A-00-00-00-00-01", "0a:00:00:00:00:01"),
        ("guid", "FE:ff:ff:ff:ff:ff:ff:ff", "fe:ff:ff:ff:ff:ff:ff:ff"),
        ("pkey", "0x1", 1),
        ("pkey", "0XFFFF", 0xFFFF),
        ("pkey", 0x7FFF, 0x7FFF),
        ("network", "a", "a"),
        ("network", "storage_2.x-y", "storage_2.x-y"),
        ("pf", "41:00.1", PfSelector(pcis=frozenset({pci_address("0000:41:00.1")}))),
        ("pf", {"driver": "a" * 55}, PfSelector(drivers=frozenset({"a" * 55}))),
        ("pf", {"name": [str(at) for at in range(32)]}, PfSelector(names=frozenset(map(str, range(32))))),
        ("network", "a" * 253, "a" * 253),
        ("pf", {"vendor": "15B3"}, PfSelector(vendors=frozenset({"15b3"}))),
        ("pf", {"vendor": ["15b3:1017", "8086"]}, PfSelector(vendors=frozenset({"15b3:1017", "8086"}))),
        (
            "pf",
            {"name": ["a", "b"], "pci": "0000:41:00.0", "driver": "mlx5_core"},
            PfSelector(
                names=frozenset({"a", "b"}),
                pcis=frozenset({pci_address("0000:41:00.0")}),
                drivers=frozenset({"mlx5_core"}),
            ),
        ),
    ],
)
def test_value_is_read_at_the_limits_of_its_range(key: str, given_: object, read: object) -> None:
    assert getattr(options_of(**{key: given_}), key) == read


@pytest.mark.parametrize("proto", ["802.1Q", "802.1q"])
def test_vlan_proto_is_read_in_any_letter_case(proto: str) -> None:
    assert options_of(vlan=1, vlan_proto=proto).vlan_proto is VlanProto.DOT1Q
    assert options_of(vlan=0, qos=5, vlan_proto=proto).qos == 5


_FLAG = 'wanted true, false, "on" or "off"'
_PF = "wanted a PF's name or PCI address"
_PKEY = 'wanted a partition key such as "0x8001"'
_NAMES = "must not be . or .. nor contain / or : or white space"
_LINK_TYPES = "known are ethernet, ether, eth, infiniband, ib"
_NO_NETDEV = "is of a network device, and with driver vfio-pci there is none"
_NO_NETWORK = "is no network's name: letters, digits, _ . - after a letter or digit"
_GUIDS = "is not a GUID such as 02:00:00:ff:fe:00:00:01"
_MTU = "is no whole number from 68 to 65535, as an MTU in bytes is"


@pytest.mark.parametrize(
    ("keys", "field", "why"),
    [
        ({"name": ""}, "name", "is empty; wanted a network interface's name"),
        ({"name": 3}, "name", "is a number; wanted a network interface's name"),
        ({"name": None}, "name", "is null; wanted a network interface's name"),
        ({"name": "abcdefghijklmnop"}, "name", "abcdefghijklmnop is longer than 15 bytes"),
        ({"name": "a b"}, "name", f"a b {_NAMES}"),
        ({"name": ".."}, "name", f".. {_NAMES}"),
        ({"name": "a/b"}, "name", f"a/b {_NAMES}"),
        ({"name": "eth%d"}, "name", "eth%d has a character that is not printable ASCII, or a %"),
        ({"name": "\x01"}, "name", r"'\x01' has a character that is not printable ASCII, or a %"),
        ({"name": "lo"}, "name", "lo is a name that the kernel uses itself"),
        ({"name": "all"}, "name", "all is a name that the kernel uses itself"),
        ({"network": "-a"}, "network", f"-a {_NO_NETWORK}"),
        ({"network": []}, "network", "is a list; wanted a network's name"),
        ({"vlan": 4095}, "vlan", "4095 is no whole number from 0 to 4094, as a VLAN is"),
        ({"vlan": -1}, "vlan", "-1 is no whole number from 0 to 4094, as a VLAN is"),
        ({"vlan": 1.0}, "vlan", "1.0 is no whole number from 0 to 4094, as a VLAN is"),
        ({"vlan": "5"}, "vlan", "is a string; a VLAN is a whole number from 0 to 4094"),
        ({"vlan": True}, "vlan", "is a truth value; a VLAN is a whole number from 0 to 4094"),
        ({"vlan": 1, "qos": 8}, "qos", "8 is no whole number from 0 to 7, as a VLAN's priority is"),
        ({"qos": 1}, "qos", "is of a VLAN, and there is no vlan"),
        ({"vlan_proto": "802.1Q"}, "vlan_proto", "is of a VLAN, and there is no vlan"),
        ({"vlan": 0, "vlan_proto": "802.1Q"}, "vlan_proto", "is of a tag, and vlan 0 without qos is none"),
        ({"vlan": 1, "vlan_proto": "qinq"}, "vlan_proto", "qinq is unknown; known are 802.1Q, 802.1ad"),
        ({"vlan": 1, "vlan_proto": 8021}, "vlan_proto", "is a number; known are 802.1Q, 802.1ad"),
        ({"mac": "02:00:00:00:00"}, "mac", "02:00:00:00:00 is not a MAC such as 02:00:00:00:00:01"),
        ({"mac": "0200.0000.0001"}, "mac", "0200.0000.0001 is not a MAC such as 02:00:00:00:00:01"),
        ({"mac": "02:00:00:00:00:0g"}, "mac", "02:00:00:00:00:0g is not a MAC such as 02:00:00:00:00:01"),
        (
            {"mac": "00-00-00-00-00-00"},
            "mac",
            "00:00:00:00:00:00 stands for none; leave the key out to have the VF's own",
        ),
        (
            {"mac": "FF:FF:FF:FF:FF:FF"},
            "mac",
            "ff:ff:ff:ff:ff:ff is that of a group; an interface has one with an even first octet",
        ),
        (
            {"mac": "01:00:5e:00:00:01"},
            "mac",
            "01:00:5e:00:00:01 is that of a group; an interface has one with an even first octet",
        ),
        ({"mtu": 67}, "mtu", f"67 {_MTU}"),
        ({"mtu": 65536}, "mtu", f"65536 {_MTU}"),
        ({"mtu": int("9" * 4000)}, "mtu", "9" * 60 + f"... {_MTU}"),
        ({"trust": "yes"}, "trust", f"is yes; {_FLAG}"),
        ({"trust": 1}, "trust", f"is a number; {_FLAG}"),
        ({"spoof_check": None}, "spoof_check", f"is null; {_FLAG}"),
        ({"link_state": "up"}, "link_state", "up is unknown; known are auto, enable, disable"),
        ({"link_type": "token"}, "link_type", f"token is unknown; {_LINK_TYPES}"),
        ({"link_type": 1}, "link_type", f"is a number; {_LINK_TYPES}"),
        ({"driver": "igb_uio"}, "driver", "igb_uio is unknown; known are kernel, vfio-pci"),
        ({"guid": "02:00:00:00:00:01"}, "guid", f"02:00:00:00:00:01 {_GUIDS}"),
        (
            {"guid": "00:00:00:00:00:00:00:00"},
            "guid",
            "00:00:00:00:00:00:00:00 stands for none; leave the key out to have the VF's own",
        ),
        ({"guid": "ff:ff:ff:ff:ff:ff:ff:ff"}, "guid", "ff:ff:ff:ff:ff:ff:ff:ff is reserved"),
        ({"pkey": "8001"}, "pkey", f"8001 is not hexadecimal with up to four digits; {_PKEY}"),
        ({"pkey": "0x10001"}, "pkey", f"0x10001 is not hexadecimal with up to four digits; {_PKEY}"),
        ({"pkey": 65536}, "pkey", "65536 is no whole number from 0 to 65535, as a partition key is"),
        ({"pkey": "0x8000"}, "pkey", f"0x8000 is no partition, as its lower 15 bits are 0; {_PKEY}"),
        ({"pkey": 0}, "pkey", f"0x0000 is no partition, as its lower 15 bits are 0; {_PKEY}"),
        ({"pkey": True}, "pkey", f"is a truth value; {_PKEY}"),
        ({"pf": ""}, "pf", f"'' is empty; {_PF}"),
        ({"pf": "\ud800"}, "pf", rf"'\ud800' is not printable; {_PF}"),
        ({"pf": "0000:41:00.9"}, "pf", f"0000:41:00.9 {_NAMES}; {_PF}"),
        ({"pf": ["a"]}, "pf", f'is a list; {_PF}, or an object such as {{"driver": "mlx5_core"}}'),
        ({"pf": {}}, "pf", "selects nothing; known are name, pci, vendor, driver"),
        ({"pf": {"name": []}}, "pf.name", "is an empty list; wanted a string, or a list of some"),
        ({"pf": {"name": ["a", 1]}}, "pf.name[1]", "is a number; wanted a string, or a list of some"),
        ({"pf": {"names": "a"}}, "pf.names", "unknown key; did you mean name?"),
        ({"pf": {"pci": "x"}}, "pf.pci", "x is not a PCI address such as 0000:65:00.0"),
        (
            {"pf": {"vendor": "mlx"}},
            "pf.vendor",
            "mlx is no PCI vendor (15b3), nor vendor and device (15b3:1017)",
        ),
        ({"pf": {"driver": "a b"}}, "pf.driver", "a b is no driver's name, such as mlx5_core"),
        ({"pf": {"name": ["a"] * 33}}, "pf.name", "has 33 values; at most 32"),
        ({"pf": {"driver": "a" * 56}}, "pf.driver", f"{'a' * 56} is no driver's name, such as mlx5_core"),
        ({"network": "a" * 254}, "network", f"{'a' * 60}... {_NO_NETWORK}"),
        ({"count": 0}, "count", "0 is no whole number from 1 to 1024, as a number of interfaces is"),
        ({"count": 1025}, "count", "1025 is no whole number from 1 to 1024, as a number of interfaces is"),
        ({"count": "2"}, "count", "is a string; a number of interfaces is a whole number from 1 to 1024"),
    ],
)
def test_value_is_refused_by_field_and_reason(keys: dict[str, object], field: str, why: str) -> None:
    assert refusal(keys) == f"{FIRST}.{field}: {why}"
    assert refusal({}, keys, strict=field == "pf.names") == f"{ANNOTATION}[1].{field}: {why}"


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


@pytest.mark.parametrize("key", ["vlan", "pf"])
def test_key_given_twice_is_refused(key: str) -> None:
    with pytest.raises(MalformedError, match=f"{key}: given twice"):
        parse_request(f'[{{"{key}": "a", "{key}": "b"}}]')


def unlike(drawn: list[InterfaceOptions]) -> list[InterfaceOptions]:
    """Without what two of them share and must not."""
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
