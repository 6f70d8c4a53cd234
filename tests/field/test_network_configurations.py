"""Network configurations and results of other people's nodes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from k8s_rdma.wire.cni_request import decode_netconf, meaningless_keys
from k8s_rdma.wire.cni_result import ResultInterface, encode_result

IPAM = {"type": "host-local", "subnet": "10.56.206.0/26", "gateway": "10.56.206.1"}

CONFIGURATIONS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "https://github.com/hustcat/sriov-cni/blob/master/README.md": (
        {"name": "mynet", "type": "sriov", "master": "eth1", "ipam": IPAM},
        ("master",),
    ),
    "https://github.com/containernetworking/cni/blob/6f4f95b65b6a/plugins/main/sriov/README.md": (
        {"name": "mynet", "type": "sriov", "master": "eth1", "vf": 1, "ipam": IPAM},
        ("master", "vf"),
    ),
    "https://github.com/rit-k8s-rdma/rit-k8s-rdma-sriov-cni/blob/06a88a8efe85/sriov/sriov.go": (
        {"name": "mynet", "type": "sriov", "if0": "eth1", "if0name": "net0", "vlan": 5, "ipam": IPAM},
        ("if0",),
    ),
}


@pytest.mark.parametrize("source", CONFIGURATIONS)
def test_configuration_of_an_earlier_plugin_serves_with_its_meaningless_keys_named(source: str) -> None:
    document, meaningless = CONFIGURATIONS[source]
    stdin = json.dumps(document).encode()
    assert decode_netconf(stdin).name == "mynet"
    assert meaningless_keys(stdin) == meaningless


@pytest.mark.parametrize(("before", "version"), [("0.3.1", "0.3.0"), ("0.3.0", "0.3.1"), ("1.0.0", "1.1.0")])
def test_chain_of_plugins_of_different_minor_versions_gives_one_result(before: str, version: str) -> None:
    """https://github.com/containernetworking/cni/issues/862, .../832: not all are upgraded at one moment."""
    previous = {"cniVersion": before, "interfaces": [{"name": "eth0", "sandbox": "/run/netns/x"}]}
    interface = ResultInterface(
        name="rdma0", mac="02:00:00:00:00:01", sandbox="/run/netns/x", pci="0000:03:01.0"
    )
    result = json.loads(encode_result([interface], version, json.dumps(previous).encode()))
    assert result["cniVersion"] == version
    assert [each["name"] for each in result["interfaces"]] == ["eth0", "rdma0"]
