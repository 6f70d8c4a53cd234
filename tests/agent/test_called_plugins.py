"""Which other plugins a configuration has called, and their input."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from agent.machine import PLUGINS, call
from k8s_rdma.agent.plugins.called_plugins import CalledPlugins, called_plugins
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.cni_request import decode_netconf

if TYPE_CHECKING:
    from k8s_rdma.core.ledger import DelegatedPlugin

IPAM = {"type": "host-local", "ranges": [[{"subnet": "10.0.0.0/8"}]]}
BRIDGE = {"type": "bridge", "bridge": "cni0", "ipam": IPAM, "capabilities": {"bandwidth": True}}


def read(*, beside_others: bool = False, **keys: object) -> CalledPlugins:
    document = {"cniVersion": "1.0.0", "name": "net", "type": "k8s-rdma-cni", **keys}
    stdin = json.dumps(document).encode()
    return called_plugins(stdin, decode_netconf(stdin), call("ADD"), chained=beside_others)


def stdin_of(plugin: DelegatedPlugin | None) -> dict[str, object]:
    assert plugin is not None
    assert (plugin.cni_path, plugin.cni_args) == (PLUGINS, call("ADD").raw_args)
    return json.loads(plugin.netconf)


@pytest.mark.parametrize("keys", [{}, {"ipam": None}, {"ipam": {}}, {"ipam": IPAM, "l2enable": True}])
def test_no_plugin_is_called_when_interfaces_get_no_addresses(keys: dict[str, object]) -> None:
    assert read(**keys) == CalledPlugins()
    assert read(**keys).all_ipams == ()


def test_ipam_plugin_reads_only_its_part_of_a_configuration() -> None:
    ipam = read(
        ipam=IPAM,
        dns={"nameservers": ["10.0.0.10"]},
        args={"cni": {}},
        runDir="/run/x",
        interfaceNames="x{i}",
        prevResult={"ips": []},
        runtimeConfig={"ips": ["10.1.1.1/8"], "io.kubernetes.cri.pod-annotations": {"a": "b"}},
        **{"cni.dev/attachments": []},
    ).ipam
    found = stdin_of(ipam)
    assert ipam.plugin == "host-local"
    assert (found["name"], found["ipam"]) == ("net", IPAM)
    assert found["runtimeConfig"] == {"ips": ["10.1.1.1/8"]}
    assert not found.keys() & {"runDir", "interfaceNames", "prevResult", "cni.dev/attachments"}


@pytest.mark.parametrize(
    ("keys", "beside_others", "network"),
    [
        ({}, False, "net"),
        ({}, True, "net-rdma"),
        ({"delegate": BRIDGE}, False, "net-rdma"),
    ],
)
def test_leases_are_separate_if_another_plugin_may_keep_its_own(
    keys: dict[str, object], beside_others: bool, network: str
) -> None:
    plugins = read(ipam=IPAM, beside_others=beside_others, **keys)
    assert stdin_of(plugins.ipam)["name"] == network


def test_each_network_has_its_plugin_and_leases() -> None:
    networks = {"a": {"ipam": {"type": "static"}}, "b": {"l2enable": True, "ipam": IPAM}, "c": {}}
    plugins = read(ipam=IPAM, networks=networks)
    a, b, c = (dict(plugins.ipams)[name] for name in "abc")
    assert (b, c) == (None, None)
    assert (stdin_of(a)["name"], stdin_of(a)["ipam"]) == ("net-a", {"type": "static"})
    assert [each.plugin for each in plugins.all_ipams] == ["host-local", "static"]


def test_delegate_reads_its_own_object_in_our_networks_name() -> None:
    runtime_config = {"bandwidth": {"rate": 1}, "io.kubernetes.cri.pod-annotations": {"a": "b"}}
    plugins = read(delegate=BRIDGE, runtimeConfig=runtime_config)
    found = stdin_of(plugins.delegate)
    assert plugins.delegate.plugin == "bridge"
    assert {key: found[key] for key in BRIDGE} == BRIDGE
    assert (found["name"], found["cniVersion"]) == ("net", "1.0.0")
    assert found["runtimeConfig"]["bandwidth"] == {"rate": 1}
    assert "io.kubernetes.cri.pod-annotations" not in found["runtimeConfig"]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"ipam": {"subnet": "x"}}, "ipam.type: not set"),
        ({"ipam": {"type": "../sh"}}, "ipam.type: ../sh is no plugin's name"),
        ({"networks": {"a": {"ipam": {"type": "a/b"}}}}, "networks.a.ipam.type: a/b is no plugin's name"),
        ({"delegate": {"bridge": "x"}}, "delegate.type: not set"),
        ({"delegate": {"type": "k8s-rdma-cni"}}, "delegate.type: k8s-rdma-cni is this very plugin"),
        ({"delegate": "bridge"}, 'delegate: "bridge"; wanted an object'),
    ],
)
def test_plugin_is_refused_naming_the_key_when_malformed(keys: dict[str, object], message: str) -> None:
    with pytest.raises(MalformedError) as refused:
        read(**keys)
    assert refused.value.reason is Reason.INVALID_NETCONF
    assert refused.value.message.removeprefix("network configuration: ").startswith(message)
