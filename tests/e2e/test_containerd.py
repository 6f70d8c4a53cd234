"""Pods of a real container runtime: Debian's containerd and runc, our plugin chained behind `bridge`."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from e2e.containerd import Containerd
from e2e.cri import CriError
from e2e.processes import pod
from e2e.real_pods import beside_agent, end, interfaces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from e2e.node import Node


@pytest.fixture
def node(make_node: Callable[[int], Node]) -> Node:
    return make_node(4)


@pytest.fixture
def containerd(node: Node) -> Iterator[Containerd]:
    for program in ("containerd", "runc", "ctr", "containerd-shim-runc-v2"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program} (Debian packages containerd, runc)")
    runtime = Containerd(node.directory / "containerd", plugins=node.cni_path, deadline_s=node.deadline_s)
    with beside_agent(node, runtime):
        yield runtime


def test_pods_get_their_interfaces_and_give_them_back(node: Node, containerd: Containerd) -> None:
    sandbox = containerd.cri.run_sandbox(pod("rdma", {"min_tx_rate": 100, "max_tx_rate": 200}, {}))
    found = interfaces(node, containerd, sandbox)
    assert found.pop("eth0") == ["10.244.0.3"]  # .2 was the probe's
    assert sorted(found.values()) == [["10.56.0.2"], ["10.56.0.3"]]
    told = containerd.cri.sandbox_info(sandbox)["cniResult"]["Interfaces"]
    assert found == {name: [told[name]["IPConfigs"][0]["IP"]] for name in ("rdma0", "rdma1")}
    assert ("100Mbit", "200Mbit") in node.rates().values()
    assert node.markers() == [sandbox]
    containerd.cri.stop_sandbox(sandbox)
    assert node.leftovers() == {}
    containerd.cri.remove_sandbox(sandbox)


def test_pods_end_while_the_agent_is_dead(node: Node, containerd: Containerd) -> None:
    asked = {"min_tx_rate": 100, "max_tx_rate": 200}
    ends, stays = (containerd.cri.run_sandbox(pod(name, asked, {})) for name in ("ends", "stays"))
    node.kill_agent()
    end(containerd, ends)
    assert containerd.cri.list_sandboxes() == [stays]
    assert node.deferred_deletions() == [f"{ends}:eth0:net"]
    assert len(node.leases("pods")) == 1
    assert len(node.leases("rdma")) == 4
    node.start_agent()
    assert node.markers() == [stays]
    assert node.deferred_deletions() == []
    assert len(node.leases("rdma")) == 2
    assert sorted(interfaces(node, containerd, stays)) == ["eth0", "rdma0", "rdma1"]
    end(containerd, stays)
    assert node.leftovers() == {}


def test_ordinary_pods_start_and_stop_while_the_agent_is_dead(node: Node, containerd: Containerd) -> None:
    node.kill_agent()
    plain = containerd.cri.run_sandbox(pod("plain"))
    assert list(interfaces(node, containerd, plain)) == ["eth0"]
    with pytest.raises(CriError, match="the k8s-rdma agent of this node cannot be reached"):
        containerd.cri.run_sandbox(pod("asks", {}))
    end(containerd, plain)
    node.start_agent()
    assert containerd.cri.list_sandboxes() == []
    assert node.leftovers() == {}


def test_pod_with_a_request_leaves_no_trace_if_the_agent_never_ran(
    node: Node, containerd: Containerd
) -> None:
    """Each sandbox that could not be ended would keep an address of the ordinary network."""
    node.kill_agent()
    shutil.rmtree(node.run_dir)
    for _ in range(2):
        with pytest.raises(CriError, match="the k8s-rdma agent of this node cannot be reached"):
            containerd.cri.run_sandbox(pod("asks", {}))
    assert containerd.cri.list_sandboxes() == []
    assert node.leases() == []
    plain = containerd.cri.run_sandbox(pod("plain"))
    end(containerd, plain)
    assert node.leases() == []
