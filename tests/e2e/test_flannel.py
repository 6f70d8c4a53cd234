"""Pods on a node of flannel: its own plugin and file, and our plugin behind it by `install-cni`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from e2e.neighbours import folder, missing_plugins
from e2e.processes import pod
from e2e.real_pods import end, interfaces
from e2e.runtimes import RUNTIMES, runtime_obstacle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from e2e.container_runtime import ContainerRuntime
    from e2e.node import Node


WHY_NOT = missing_plugins("flannel")

pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))

OURS = "k8s-rdma-cni"
SUBNET = """FLANNEL_NETWORK=10.244.0.0/16
FLANNEL_SUBNET=10.244.7.1/24
FLANNEL_MTU=1450
FLANNEL_IPMASQ=true
"""
"""The daemon writes this to `/run/flannel/subnet.env` on each node."""


def flannel_file(node: Node) -> str:
    """Return `cni-conf.json` of flannel's ConfigMap, with the test's own directories."""
    flannel = {
        "type": "flannel",
        "delegate": {"hairpinMode": True, "isDefaultGateway": True},
        "dataDir": str(node.directory / "flannel"),
        "ipam": {"dataDir": str(node.directory / "leases" / "pods")},
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps({"name": "cbr0", "cniVersion": "0.3.1", "plugins": [flannel, ports]})


@pytest.fixture
def node(make_node: Callable[[int], Node]) -> Node:
    return make_node(4)


@pytest.fixture(params=RUNTIMES)
def runtime(request: pytest.FixtureRequest, node: Node) -> Iterator[ContainerRuntime]:
    if why := runtime_obstacle(request.param):
        pytest.skip(why)
    subnet = node.directory / "subnet.env"
    subnet.write_text(SUBNET)
    runtime = RUNTIMES[request.param](
        node.directory / "c",
        plugins=[*node.cni_path, folder()],
        deadline_s=node.deadline_s,
        prepare=f"mkdir /run/flannel && cp {subnet} /run/flannel &&",
    )
    with runtime:
        node.enter = runtime.entering
        node.start_agent()
        yield runtime


def install(node: Node, runtime: ContainerRuntime) -> None:
    """Put ours on the node."""
    ipam = json.loads(node.runtime(chained=True).conflist.read_text())["plugins"][-1]["ipam"]
    section = json.dumps({"runDir": str(node.run_dir), "ipam": ipam})
    confs = runtime.directory / "net.d"
    command = [sys.executable, "-m", "k8s_rdma", "install-cni", str(runtime.directory / "bin")]
    options = ["--network", "chained", "--conf-dir", str(confs), "--plugin", section]
    (runtime.directory / "bin" / OURS).unlink()
    program = {"K8S_RDMA_CNI": str(node.cni_path[0] / OURS)}
    subprocess.run([*command, *options], env=os.environ | program, check=True, capture_output=True)


def test_pods_of_flannel_get_interfaces_once_ours_is_installed(node: Node, runtime: ContainerRuntime) -> None:
    file = runtime.directory / "net.d" / "10-flannel.conflist"
    file.write_text(flannel_file(node))
    before = runtime.cri.run_sandbox(pod("before", {}))
    assert list(interfaces(node, runtime, before)) == ["eth0"]
    install(node, runtime)
    assert file.read_text() == flannel_file(node)
    plain = runtime.cri.run_sandbox(pod("plain"))
    rdma = runtime.cri.run_sandbox(pod("rdma", {"min_tx_rate": 100, "max_tx_rate": 200}, {}))
    assert list(interfaces(node, runtime, plain)) == ["eth0"]
    found = interfaces(node, runtime, rdma)
    assert found.pop("eth0")[0].startswith("10.244.7.")
    assert sorted(found.values()) == [["10.56.0.2"], ["10.56.0.3"]]
    assert ("100Mbit", "200Mbit") in node.rates().values()
    for sandbox in (before, plain, rdma):
        end(runtime, sandbox)
    assert node.leftovers() == {}
