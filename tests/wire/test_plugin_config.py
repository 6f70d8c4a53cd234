"""Configurations for other plugins: made of ours, and for one call."""

from __future__ import annotations

import json

import msgspec
import pytest

from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.plugin_config import (
    address_spaces,
    delegate_config,
    in_blocks,
    ipam_config,
    ipam_network,
    network_of,
    spaces_of,
    stdin_of,
    version_of,
)

ANNOTATIONS = "io.kubernetes.cri.pod-annotations"
OURS = {
    "cniVersion": "1.1.0",
    "name": "net",
    "type": "k8s-rdma-cni",
    "ipam": {"type": "host-local"},
    "delegate": {"type": "bridge"},
    "interfaceNames": "rdma{i}",
    "args": {"cni": {"ips": ["10.0.0.9/24"]}},
    "dns": {"domain": "a.b"},
    "runtimeConfig": {ANNOTATIONS: {"secret": "x"}, "ips": ["10.0.0.8/24"]},
    "prevResult": {"ips": []},
    "cni.dev/valid-attachments": [],
}


def raw(value):
    return msgspec.Raw(json.dumps(value).encode())


def fields(**changes):
    return {key: raw(value) for key, value in (OURS | changes).items()}


def test_ipam_plugin_reads_only_its_part_of_the_configuration():
    assert json.loads(ipam_config(fields(), raw({"type": "static"}), "net-rdma")) == {
        "name": "net-rdma",
        "type": "k8s-rdma-cni",
        "ipam": {"type": "static"},
        "args": OURS["args"],
        "dns": OURS["dns"],
        "runtimeConfig": {"ips": ["10.0.0.8/24"]},
    }


@pytest.mark.parametrize("missing", [{}, {"runtimeConfig": None}])
def test_ipam_plugin_reads_no_runtime_configuration_if_there_is_none(missing):
    given = {"name": raw("net")} | {key: raw(value) for key, value in missing.items()}
    assert json.loads(ipam_config(given, raw({"type": "x"}), "net")) == {"name": "net", "ipam": {"type": "x"}}


@pytest.mark.parametrize(
    ("chained", "of", "network"),
    [
        (False, "", "net"),
        (True, "", "net-rdma"),
        (False, "storage", "net-storage"),
        (True, "storage", "net-rdma-storage"),
    ],
)
def test_leases_are_kept_apart_from_those_of_others(chained, of, network):
    assert ipam_network("net", chained=chained, network=of) == network


def test_delegate_reads_its_own_object_as_of_our_network():
    delegate = {"type": "bridge", "name": "mine", "cniVersion": "0.3.1", "ipam": {"type": "host-local"}}
    assert json.loads(delegate_config(fields(), raw(delegate))) == {
        "type": "bridge",
        "name": "net",
        "cniVersion": "1.1.0",
        "ipam": {"type": "host-local"},
        "runtimeConfig": {"ips": ["10.0.0.8/24"]},
    }


@pytest.mark.parametrize(
    ("capabilities", "seen"),
    [({ANNOTATIONS: True}, True), ({"ips": True}, False), ({}, False), (None, False)],
)
def test_delegate_reads_the_pods_annotations_when_it_asks_for_them(capabilities, seen):
    config = json.loads(delegate_config(fields(), raw({"type": "p", "capabilities": capabilities})))
    assert (ANNOTATIONS in config["runtimeConfig"]) is seen


@pytest.mark.parametrize(
    ("delegate", "named"),
    [
        ([], "delegate: Expected `object`"),
        ({"capabilities": {"ips": 1}}, "delegate.capabilities: Expected `bool`"),
    ],
)
def test_delegate_is_refused_naming_the_key(delegate, named):
    with pytest.raises(MalformedError) as refused:
        delegate_config(fields(), raw(delegate))
    assert refused.value.message.startswith(f"network configuration: {named}")
    assert refused.value.reason is Reason.INVALID_NETCONF


def test_call_adds_version_and_previous_result():
    recorded = b'{"cniVersion":"0.3.1","name":"net", "ipam":{"a": 1.50}}'
    assert stdin_of(recorded, "1.0.0", prev_result=b'{"ips":[]}') == (
        b'{"cniVersion":"1.0.0","name":"net","ipam":{"a": 1.50},"prevResult":{"ips":[]}}'
    )
    assert stdin_of(recorded, "1.0.0") == b'{"cniVersion":"1.0.0","name":"net","ipam":{"a": 1.50}}'


def test_gc_call_lists_the_attachments_to_keep_also_if_there_are_none():
    attachments = [{"containerID": "c1", "ifname": "rdma0"}]
    stdin = json.loads(stdin_of(b"{}", "1.1.0", valid=[("c1", "rdma0")]))
    assert stdin["cni.dev/valid-attachments"] == stdin["cni.dev/attachments"] == attachments
    assert json.loads(stdin_of(b"{}", "1.1.0", valid=[]))["cni.dev/valid-attachments"] == []


def test_recorded_configuration_has_network_and_version():
    assert network_of(b'{"name":"net"}') == "net"
    assert version_of(b'{"cniVersion":"0.4.0"}') == "0.4.0"
    assert version_of(b'{"name":"net"}') == "0.1.0"


# Subnets that nodes divide among themselves


def of_nodes(per_node, *subnets, **more):
    return {
        "type": "host-local",
        "ranges": [[{"subnet": each}] for each in subnets],
        "perNode": per_node,
    } | more


@pytest.mark.parametrize(
    ("per_node", "subnet", "blocks"),
    [
        (True, "10.56.0.0/16", (256, "10.56.0.1", "10.56.0.255", "10.56.255.0", "10.56.255.254")),
        (True, "10.56.0.0/21", (32, "10.56.0.1", "10.56.0.63", "10.56.7.192", "10.56.7.254")),
        (True, "10.0.0.0/8", (4096, "10.0.0.1", "10.0.15.255", "10.255.240.0", "10.255.255.254")),
        (1024, "10.56.0.0/16", (64, "10.56.0.1", "10.56.3.255", "10.56.252.0", "10.56.255.254")),
        (1000, "10.56.0.0/16", (64, "10.56.0.1", "10.56.3.255", "10.56.252.0", "10.56.255.254")),
        (256, "10.56.7.0/24", (1, "10.56.7.1", "10.56.7.254", "10.56.7.1", "10.56.7.254")),
        (4, "10.56.7.0/24", (64, "10.56.7.1", "10.56.7.3", "10.56.7.252", "10.56.7.254")),
        (256, "fd00::/112", (256, "fd00::1", "fd00::ff", "fd00::ff00", "fd00::ffff")),
    ],
)
def test_subnet_is_divided_into_blocks(per_node, subnet, blocks):
    [space] = address_spaces(raw(of_nodes(per_node, subnet)))
    count, *ends = blocks
    assert space.blocks == count
    assert [*space.addresses(0), *space.addresses(count - 1)] == ends


@pytest.mark.parametrize(
    "ipam",
    [
        {},
        {"type": "host-local", "ranges": [[{"subnet": "10.0.0.0/8"}]]},
        of_nodes(False, "10.0.0.0/8"),
        of_nodes(None, "10.0.0.0/8"),
        {"type": "whereabouts", "range": "10.0.0.0/8"},
    ],
)
def test_subnet_is_not_divided_unless_that_is_said(ipam):
    assert address_spaces(raw(ipam)) == ()
    assert spaces_of(json.dumps({"name": "net", "ipam": ipam}).encode()) == ()


def test_blocks_are_the_ranges_that_a_plugin_reads_and_all_else_stays():
    ipam = of_nodes(256, "10.56.0.0/16", "fd00::/64", routes=[{"dst": "10.0.0.0/8"}])
    ipam["ranges"][0][0]["gateway"] = "10.56.0.9"
    ipam |= {"subnet": "10.99.0.0/16"}
    netconf = json.dumps({"name": "net", "args": {"a": 1}, "ipam": ipam}).encode()
    first, second, third = spaces_of(netconf)
    read = json.loads(in_blocks(netconf, {first: 3, second: 0, third: 2}))
    assert (read["name"], read["args"]) == ("net", {"a": 1})
    assert read["ipam"]["routes"] == [{"dst": "10.0.0.0/8"}]
    assert (read["ipam"]["rangeStart"], read["ipam"]["rangeEnd"]) == ("10.99.3.0", "10.99.3.255")
    assert read["ipam"]["ranges"] == [
        [
            {
                "subnet": "10.56.0.0/16",
                "gateway": "10.56.0.9",
                "rangeStart": "10.56.0.1",
                "rangeEnd": "10.56.0.255",
            }
        ],
        [{"subnet": "fd00::/64", "rangeStart": "fd00::200", "rangeEnd": "fd00::2ff"}],
    ]


@pytest.mark.parametrize(
    ("ipam", "expected"),
    [
        (
            of_nodes("24", "10.0.0.0/8"),
            'ipam.perNode: "24" is neither true nor a number of addresses, from 4',
        ),
        (of_nodes(3, "10.0.0.0/8"), "ipam.perNode: 3 is neither true nor a number of addresses, from 4"),
        (of_nodes(1.5, "10.0.0.0/8"), "ipam.perNode: 1.5 is neither"),
        (of_nodes(True), "ipam.perNode: divides the subnets of `ranges`, and there is none"),
        (of_nodes(512, "10.0.0.0/24"), "ipam.perNode: 10.0.0.0/24 has no block of 512 addresses"),
        (of_nodes(True, "10.0.0.0/31"), "ipam.perNode: 10.0.0.0/31 has no block of 4 addresses"),
        (of_nodes(True, "10.0.0.1/8"), "ipam.ranges[0][0].subnet: 10.0.0.1/8 has host bits set"),
        (
            of_nodes(True, "10.0.0.0/8") | {"type": "whereabouts"},
            "ipam.perNode: is of host-local, and whereabouts is",
        ),
        (
            of_nodes(True) | {"ranges": [{"subnet": "10.0.0.0/8"}]},
            "ipam.ranges: is no array of arrays of ranges",
        ),
        (of_nodes(True) | {"ranges": [["10.0.0.0/8"]]}, "ipam.ranges[0][0]: is no object"),
        (
            of_nodes(True) | {"ranges": [[{"subnet": "10.0.0.0/8", "rangeStart": "10.0.0.9"}]]},
            "ipam.ranges[0][0].rangeStart: is the node's with perNode: leave one of them out",
        ),
        (
            of_nodes(True, subnet="10.0.0.0/8", rangeEnd="10.0.0.9"),
            "ipam.rangeEnd: is the node's with perNode",
        ),
    ],
)
def test_subnet_that_cannot_be_divided_is_refused_by_its_key(ipam, expected):
    with pytest.raises(MalformedError) as caught:
        address_spaces(raw(ipam))
    assert caught.value.message.startswith(f"network configuration: {expected}")
    assert caught.value.reason is Reason.INVALID_NETCONF
