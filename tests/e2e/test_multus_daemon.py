"""Pods of real container runtimes in a cluster with Multus' daemon, ours as one of several networks."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from cluster.control_plane import write_kubeconfig
from cluster.real import obstacle
from cluster.world import Cluster, cluster
from e2e.multus import CRD, NETWORKS, STATUS, definition
from e2e.neighbours import folder, missing_plugins
from e2e.real_pods import end, interfaces, without_us
from e2e.runtimes import RUNTIMES, runtime_obstacle
from e2e.test_multus import DEFINITIONS, EXAMPLES, TWO, ours
from k8s_rdma_demo.cluster.sandboxes import PodRef

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from e2e.container_runtime import ContainerRuntime
    from e2e.node import Node

WHY_NOT = missing_plugins("multus-daemon", "multus-shim") or obstacle()

pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))

ACCOUNT = "/run/secrets/kubernetes.io/serviceaccount"
"""A pod finds its account here, as the daemon does in its own."""


@pytest.fixture
def node(make_node: Callable[[int], Node]) -> Node:
    return make_node(4)


@contextmanager
def running_daemon(node: Node, runtime: ContainerRuntime, made: Cluster) -> Iterator[None]:
    """The daemon of the example, which makes the runtime's network of the one that is there."""
    confs, token = runtime.directory / "net.d", node.directory / "token"
    example = json.loads((EXAMPLES / "daemon-config.json").read_text())
    del example["chrootDir"]  # it is no container
    places = {"cniConfigDir": confs, "multusAutoconfigDir": confs, "socketDir": "/run/multus"}
    places |= {"binDir": runtime.directory / "bin", "cniDir": node.directory / "multus"}
    config = node.config("multus", example | {key: str(path) for key, path in places.items()})
    token.write_text(made.plane.admin_token)
    copies = f"cp {token} {ACCOUNT}/token && cp {made.plane.ca_file} {ACCOUNT}/ca.crt"
    runtime.run("sh", "-c", f"mkdir -p {ACCOUNT} && {copies}")
    url = urlsplit(made.plane.url)
    where = {"KUBERNETES_SERVICE_HOST": url.hostname, "KUBERNETES_SERVICE_PORT": str(url.port)}
    with (
        (node.directory / "multus.log").open("ab") as log,
        subprocess.Popen(
            [*runtime.entering, folder() / "multus-daemon", "-config", config],
            env=os.environ | where | {"MULTUS_NODE_NAME": "w1"},
            stdout=log,
            stderr=log,
        ) as daemon,
    ):
        try:
            node.wait("Multus' network", (confs / "00-multus.conf").exists)
            yield
        finally:
            daemon.kill()


@pytest.mark.parametrize("kind", RUNTIMES)
def test_network_gives_the_interfaces_and_multus_reports_them(node: Node, tmp_path: Path, kind: str) -> None:
    if why := runtime_obstacle(kind):
        pytest.skip(why)
    programs = [*node.cni_path, folder()]
    runtime = RUNTIMES[kind](node.directory / "c", plugins=programs, deadline_s=node.deadline_s)

    async def scenario() -> None:
        async with cluster("real", tmp_path) as made, AsyncExitStack() as stack:
            await made.plane.add_crd(CRD)
            await made.http.post(DEFINITIONS, json=definition("rdma", ours(node)))
            kubeconfig = write_kubeconfig(tmp_path / "admin", made.plane, made.plane.admin_token)
            node.settings = {"kubeconfig": str(kubeconfig)}
            node.start_agent()
            runtime.use(without_us(node.runtime(chained=True).conflist))
            stack.enter_context(running_daemon(node, runtime, made))
            runtime.kill()  # so that it knows of that network
            runtime.start()
            runtime.wait(lambda: not runtime.cri.network_problem(), "no network")
            annotations = {NETWORKS: "rdma", "rdma_interfaces_required": json.dumps(TWO)}
            uid = (await made.create_pod("p", annotations=annotations, nodeName="w1"))["metadata"]["uid"]
            pod = PodRef(namespace="default", name="p", uid=uid, annotations=annotations)
            sandbox = await asyncio.to_thread(runtime.cri.run_sandbox, pod)
            found = interfaces(node, runtime, sandbox)
            assert sorted(found) == ["eth0", "net1", "net1-1"]
            told = json.loads((await made.pod("p"))["metadata"]["annotations"][STATUS])
            assert found["net1"][0] in next(each["ips"] for each in told if each["interface"] == "net1")
            await asyncio.to_thread(end, runtime, sandbox)

    with runtime:
        node.enter = runtime.entering
        asyncio.run(scenario())
    # Its daemon (4.3.0) ends the main network by a configuration that has lost the ranges of `ipam`.
    assert node.leases("rdma") == []
    assert node.leftovers().keys() <= {"leases"}
