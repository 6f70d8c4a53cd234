"""Values of the annotation at the limits of their ranges, and beyond them."""

from __future__ import annotations

import pytest

from k8s_rdma.core.types import LinkState, LinkType, PfSelector, VlanProto, pci_address
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.annotation import ANNOTATION, parse_request
from wire.option_values import FIRST, options_of, refusal


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


@pytest.mark.parametrize("key", ["vlan", "pf"])
def test_key_given_twice_is_refused(key: str) -> None:
    with pytest.raises(MalformedError, match=f"{key}: given twice"):
        parse_request(f'[{{"{key}": "a", "{key}": "b"}}]')
