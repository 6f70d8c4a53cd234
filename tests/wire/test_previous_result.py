"""Results of plugins of the same chain: interfaces of the pod, and addresses by interface."""

from __future__ import annotations

import json

import msgspec
import pytest

from k8s_rdma.wire.previous_result import InterfaceInPod, addresses_of, interfaces_in_pod

RESULT = {
    "cniVersion": "1.0.0",
    "interfaces": [
        {"name": "cali1", "mac": "ee:ee:ee:ee:ee:ee"},
        {"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/run/netns/n"},
        {"name": "rdma0", "sandbox": "/run/netns/n"},
    ],
    "ips": [
        {"address": "192.0.2.5/24", "gateway": "192.0.2.1", "interface": 1},
        {"address": "2001:db8::5/64", "interface": 1},
        {"address": "198.51.100.5/24", "interface": 0},
        {"address": "203.0.113.5/24"},
    ],
    "routes": [{"dst": "0.0.0.0/0"}],
}


def test_interfaces_are_those_of_the_pod_with_their_addresses():
    assert interfaces_in_pod(json.dumps(RESULT).encode()) == {
        "eth0": InterfaceInPod(
            mac="02:00:00:00:00:01", addresses=frozenset({"192.0.2.5/24", "2001:db8::5/64"})
        ),
        "rdma0": InterfaceInPod(mac="", addresses=frozenset()),
    }


def test_addresses_of_an_interface_are_a_result_without_its_index():
    found = addresses_of(json.dumps(RESULT).encode(), {"eth0", "rdma0"})
    assert {name: json.loads(result) for name, result in found.items()} == {
        "eth0": {
            "cniVersion": "1.0.0",
            "ips": [
                {"address": "192.0.2.5/24", "gateway": "192.0.2.1"},
                {"address": "2001:db8::5/64"},
            ],
        }
    }


@pytest.mark.parametrize("index", [-1, 3])
def test_address_of_an_interface_that_is_not_listed_is_left_out(index: int):
    ips = [{"address": "192.0.2.5/24", "interface": index}]
    assert addresses_of(json.dumps(RESULT | {"ips": ips}).encode(), {"eth0", "rdma0"}) == {}


@pytest.mark.parametrize("result", [msgspec.Raw(), b"{}", b"null", b'{"ips": 5}', b'{"ips": [5]}', b"?"])
def test_result_that_lists_no_interfaces_has_no_addresses(result: msgspec.Raw | bytes):
    assert interfaces_in_pod(result) == addresses_of(result, {"eth0"}) == {}
