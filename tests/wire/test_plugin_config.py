"""What other plugins read: of our configuration, and for one call."""

from __future__ import annotations

import json

import msgspec
import pytest

from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.plugin_config import (
    delegate_config,
    ipam_config,
    ipam_network,
    network_of,
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


def test_ipam_plugin_reads_what_concerns_it():
    assert json.loads(ipam_config(fields(), raw({"type": "static"}), "net-rdma")) == {
        "name": "net-rdma",
        "type": "k8s-rdma-cni",
        "ipam": {"type": "static"},
        "args": OURS["args"],
        "dns": OURS["dns"],
        "runtimeConfig": {"ips": ["10.0.0.8/24"]},
    }


@pytest.mark.parametrize("missing", [{}, {"runtimeConfig": None}])
def test_ipam_plugin_reads_no_runtime_configuration_when_there_is_none(missing):
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


def test_gc_call_lists_what_is_to_stay_also_when_that_is_nothing():
    attachments = [{"containerID": "c1", "ifname": "rdma0"}]
    stdin = json.loads(stdin_of(b"{}", "1.1.0", valid=[("c1", "rdma0")]))
    assert stdin["cni.dev/valid-attachments"] == stdin["cni.dev/attachments"] == attachments
    assert json.loads(stdin_of(b"{}", "1.1.0", valid=[]))["cni.dev/valid-attachments"] == []


def test_recorded_configuration_tells_network_and_version():
    assert network_of(b'{"name":"net"}') == "net"
    assert version_of(b'{"cniVersion":"0.4.0"}') == "0.4.0"
    assert version_of(b'{"name":"net"}') == "0.1.0"
