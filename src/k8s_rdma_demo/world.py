"""The demo's cluster: nodes, wires, and every process in its place."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import yaml

from k8s_rdma.config.addresses import SERVER_PORT
from k8s_rdma.config.devices import SLOT_RESOURCE
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.linux.netlink.rtnl import Rtnl
from k8s_rdma.linux.receipts import Receipts
from k8s_rdma.wire.claim_template import DEVICE_CLASS
from k8s_rdma.wire.claims import DRIVER
from k8s_rdma.wire.report import NodeReport, decode_report
from k8s_rdma_demo.cluster.containers import ContainerDirectory
from k8s_rdma_demo.cluster.sandboxes import SandboxDirectory
from k8s_rdma_demo.kubectl import Kubectl
from k8s_rdma_demo.network import CONTROL_ADDRESS, LINK_MBPS, DemoNode, build
from k8s_rdma_demo.plain_http import NO_TLS
from k8s_rdma_demo.processes import Processes

if TYPE_CHECKING:
    from collections.abc import Callable

API_PORT = 6443
API_URL = f"http://{CONTROL_ADDRESS}:{API_PORT}"
EXTENDER_PORT = 8888
EXTENDER_URL = f"http://{CONTROL_ADDRESS}:{EXTENDER_PORT}"
RDMA_NETWORK = "10.56.0.0/16"
START_TIMEOUT_S = 30

LEASE_S, GRACE_S, TOLERATED_S, RENEW_S = 4, 10, 5, 2
"""Seconds: how long a node's Lease lasts, when a silent node is unreachable, and then until its pods end.

Those of Kubernetes are 40, 50 and 300, too long to watch. The last is between renewals of the agent's Lease.
"""


_POLICIES = 'policies: [{name: everything, namespaces: ["*"], allow: ["*"]}]\n'
"""A policy that allows everything: the pods show the annotation's features, and there are no other pods."""

_DEVICE_CLASS = {
    "kind": "DeviceClass",
    "metadata": {"name": DEVICE_CLASS},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
}
"""The class of PFs for claims, as the chart makes it."""

_NAMESPACE = "k8s-rdma"
"""The namespace of the agents' Leases, and of pods that stand for a node's processes."""

_LEAF = re.compile(r" leaf \S+")
"""The number of a class's queue, which is independent of its rates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """The paths of the demo.

    directory: everything the demo writes. plugins: CNI plugins of the machine. shim: our executable.
    """

    directory: Path
    plugins: Path
    shim: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class PodNetwork:
    """A pod's namespace: its interfaces' MACs and IPv4 addresses by name, loopback left out."""

    netns: Path
    macs: dict[str, str]
    addresses: dict[str, str]


class World:
    """Two nodes and a control plane; make one, `start` it, `stop` it."""

    def __init__(self, paths: Paths) -> None:
        """Set names and paths only."""
        self.paths = paths
        self.nodes = tuple(
            DemoNode(
                name=f"w{number}",
                number=number,
                netns=paths.directory / "nodes" / f"w{number}.netns",
                directory=paths.directory / "nodes" / f"w{number}",
                has_claims=number == 1,
            )
            for number in (1, 2)
        )
        self.processes = Processes(logs=paths.directory / "logs")
        self.kubectl = Kubectl.for_server(API_URL)
        self._http = httpx2.Client(timeout=5, trust_env=False, verify=NO_TLS)

    def node(self, name: str) -> DemoNode:
        """Return a node by name."""
        return next(node for node in self.nodes if node.name == name)

    # Making it

    def build(self) -> None:
        """Make namespaces, links and functions."""
        build(self.nodes)
        with ThreadPoolExecutor() as pool:
            pfs = [(node, index) for node in self.nodes for index in range(len(node.vfs))]
            list(pool.map(lambda pf: self._create_pf(*pf), pfs))
        for node in self.nodes:
            self._write_files(node)
        (self.paths.directory / "placement.key").write_text(secrets.token_hex(32))
        (self.paths.directory / "policies.yaml").write_text(_POLICIES)

    def start(self) -> None:
        """Start every process, and make the nodes known to the API server; return when all answer."""
        served = ("--host", CONTROL_ADDRESS, "--port", str(API_PORT), "--tolerated-s", str(TOLERATED_S))
        self._start_component("api", *served, *self._kubeconfig())
        self._wait("API server", lambda: self._http.get(f"{API_URL}/healthz").is_success)
        definition = packaged("crds", "deploy/crds") / "rdmanodes.yaml"
        namespace = {"kind": "Namespace", "metadata": {"name": _NAMESPACE}}
        for document in (namespace, _DEVICE_CLASS, yaml.safe_load(definition.read_text())):
            self.kubectl.create(document)
        for node in self.nodes:
            self._config_file("device-plugin", node).write_text(json.dumps(self._device_plugin(node)))
            self.start_agent(node)
            self._start_k8s_rdma("server", node, {"runDir": str(self.run_dir(node))})
            self.kubectl.create(_node_pod(node))
        for node in self.nodes:
            self._wait(f"{node.name}'s server", lambda node=node: self.report(node) is not None)  # type: ignore[misc]
        extender = {
            "kubeconfig": str(self.paths.directory / "kubeconfig"),
            "listen": CONTROL_ADDRESS,
            "source": "http",
            "placementKeyFile": str(self.paths.directory / "placement.key"),
            "policyFile": str(self.paths.directory / "policies.yaml"),
        }
        self._start_k8s_rdma("extender", None, extender)
        self._wait("extender", lambda: self._http.get(f"{EXTENDER_URL}/readyz").is_success)
        self._start_component("controllers", *self._api())
        self._start_component("scheduler", *self._api(), "--extender", f"{EXTENDER_URL}/scheduler")
        for node in self.nodes:
            self._start_kubelet(node)
            self._start_k8s_rdma("device-plugin", node, self._device_plugin(node))
        self._wait("device plugins", self._offer_devices)

    def start_workloads(self) -> None:
        """Have Deployments and ReplicaSets served, and nodes watched; return when that begins."""
        ready = self.paths.directory / "workloads.ready"
        options = ("--grace-s", str(GRACE_S), "--ready-file", str(ready))
        self._start_component("workloads", *self._api(), *options)
        self._wait("controllers", ready.exists)

    def await_published(self, *pods: str) -> None:
        """Wait until the RdmaNodes name these pods: a node publishes once a second at most."""
        self._wait("RdmaNodes", lambda: self.kubectl.pods_of_rdma_nodes() >= set(pods))

    def start_web(self, listener: int) -> str:
        """Serve pages on a listening socket, by its descriptor; return their address."""
        arguments = (
            *("--listener", str(listener), "--extender", EXTENDER_URL),
            *("--node-port", str(SERVER_PORT), *self._kubeconfig()),
        )
        self.processes.start("web", "k8s_rdma_demo.web", *arguments, descriptors=(listener,))
        with socket.socket(fileno=os.dup(listener)) as duplicate:
            host, port = duplicate.getsockname()
        return f"http://{host}:{port}"

    def start_agent(self, node: DemoNode) -> None:
        """Start the node's agent; return at once."""
        config: dict[str, Any] = {
            "node": node.name,
            "kernel": "virtual",
            "kubeconfig": str(self.paths.directory / "kubeconfig"),
            "runDir": str(self.run_dir(node)),
            "stateDir": str(node.directory / "lib"),
            "placementKeyFile": str(self.paths.directory / "placement.key"),
            "policyFile": str(self.paths.directory / "policies.yaml"),
            "cdiDir": str(node.directory / "cdi"),
            "devicePlugin": str(self._config_file("device-plugin", node)),
            "publish": {"rdmaNode": True, "leaseNamespace": _NAMESPACE, "renewS": RENEW_S},
        }
        if node.has_claims:
            rule = {"names": sorted(self.pfs_for_claims(node)), "use": "claims"}
            config["hardware"] = {"pfs": [rule], "all": True}
        self._start_k8s_rdma("agent", node, config)

    def restart_agents(self) -> None:
        """Start the agents that were killed."""
        for node in self.nodes:
            if f"{node.name}-agent" not in self.processes.running:
                self.start_agent(node)

    def stop(self) -> list[str]:
        """End every process; return the names of those that did not end by themselves."""
        self._http.close()
        self.kubectl.client.close()
        return self.processes.stop()

    # Looking at it

    def run_dir(self, node: DemoNode) -> Path:
        """The agent's sockets and markers."""
        return node.directory / "run"

    def report(self, node: DemoNode) -> NodeReport | None:
        """Return `/v1/node` of a node, if it has an agent."""
        try:
            reply = self._http.get(f"http://{node.address}:{SERVER_PORT}/v1/node")
        except httpx2.TransportError:
            return None
        return decode_report(reply.content) if reply.is_success else None

    def getpfs(self, node: DemoNode) -> list[dict[str, Any]]:
        """Get `/getpfs` of a node."""
        return list(self._http.get(f"http://{node.address}:{SERVER_PORT}/getpfs").raise_for_status().json())

    def pfs_for_claims(self, node: DemoNode) -> frozenset[str]:
        """The names of a node's PFs that give no interfaces by annotation."""
        return frozenset([node.pf(len(node.vfs) - 1)[0]] if node.has_claims else [])

    def sandbox(self, name: str) -> PodNetwork:
        """Return a running pod's network, seen from within; K8sRdmaError if it does not run."""
        for node in self.nodes:
            found = SandboxDirectory(node.directory / "sandboxes").of_pod("default", name)
            if found is not None:
                return _inspect(Path(found.netns))
        msg = f"pod {name}: no node runs it"
        raise K8sRdmaError(msg)

    def devices(self, name: str) -> tuple[str, ...]:
        """The CDI devices of a pod's containers."""
        records = (ContainerDirectory(node.directory / "containers") for node in self.nodes)
        pods = (record.find("default", name) for record in records)
        return tuple(
            device
            for pod in pods
            for container in (pod.containers if pod is not None else ())
            for device in container.cdi_devices
        )

    def leftover_sandboxes(self, node: DemoNode) -> list[str]:
        """Namespaces and records of pods on a node."""
        paths = [*(node.directory / "netns").glob("*"), *(node.directory / "sandboxes").glob("*.json")]
        return sorted(path.name for path in paths)

    def attached_vfs(self, node: DemoNode) -> int:
        """Count the VFs' interfaces that are in pods now."""
        with node.netns.open("rb") as netns, Rtnl(netns.fileno()) as rtnl:
            home = sum(_is_vf(link.name) for link in rtnl.links())
        return sum(node.vfs) - home

    def receipts(self, node: DemoNode) -> list[str]:
        """Return the phases of the receipts in the ledger of a node without a running agent."""
        ledger = Receipts(node.directory / "lib" / "ledger.db")
        try:
            return [receipt.phase.value for receipt in ledger.load().receipts.values()]
        finally:
            ledger.close()

    def kernel_state(self, node: DemoNode) -> frozenset[str]:
        """The VFs' names and MACs and each PF's rates, as `ip` and `tc` show them, a line each."""
        links = json.loads(self._in_node(node, "ip", "-details", "-json", "link", "show"))
        schedulers = [link["ifname"] for link in links if link.get("linkinfo", {}).get("info_kind") == "ifb"]
        return frozenset(
            [
                *(f"{link['ifname']} {link['address']}" for link in links if _is_vf(link["ifname"])),
                *(
                    f"{name}: {_LEAF.sub('', line)}"
                    for name in schedulers
                    for line in self._in_node(node, "tc", "class", "show", "dev", name).splitlines()
                ),
            ]
        )

    def leases(self, node: DemoNode, network: str = "*") -> list[str]:
        """Addresses that the IPAM plugin holds: those of `pods`, those of `rdma`, or both."""
        found = (node.directory / "ipam").glob(f"{network}/*/*")
        return sorted(path.name for path in found if path.name[0].isdigit())

    def _in_node(self, node: DemoNode, *command: str) -> str:
        return subprocess.run(
            ["nsenter", f"--net={node.netns}", *command], capture_output=True, text=True, check=True
        ).stdout

    # Parts

    def _create_pf(self, node: DemoNode, index: int) -> None:
        name, pci, uplink = node.pf(index)
        arguments = ["--name", name, "--pci", pci, "--uplink", uplink]
        sizes = ["--link-mbps", str(LINK_MBPS), "--vfs", str(node.vfs[index])]
        command = [sys.executable, "-m", "k8s_rdma.linux.virtual", "create", *arguments, *sizes]
        ended = subprocess.run(
            ["nsenter", f"--net={node.netns}", "--", *command], capture_output=True, text=True, check=False
        )
        if ended.returncode:
            msg = f"demo: PF {name} of {node.name} cannot be made"
            raise K8sRdmaError(msg, details=ended.stderr.strip())

    def _write_files(self, node: DemoNode) -> None:
        for name in ("run", "lib", "ipam", "cni"):
            (node.directory / name).mkdir(parents=True, exist_ok=True)
        for plugin in (*self.paths.plugins.iterdir(), self.paths.shim):
            link = node.directory / "cni" / plugin.name
            if not link.exists():
                link.symlink_to(plugin)
        (node.directory / "pods.conflist").write_text(json.dumps(self._conflist(node), indent=2))

    def _conflist(self, node: DemoNode) -> dict[str, Any]:
        """`examples/cni/10-pods.conflist` with this node's subnets and directories."""
        leases = node.directory / "ipam"
        pods = {
            "type": "host-local",
            "ranges": [[{"subnet": f"10.244.{node.number}.0/24"}]],
            "dataDir": str(leases / "pods"),
        }
        rdma = {
            "type": "host-local",
            "ranges": [[{"subnet": RDMA_NETWORK}]],
            "perNode": True,
            "dataDir": str(leases / "rdma"),
        }
        return {
            "cniVersion": "1.0.0",
            "name": "pods",
            "plugins": [
                {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipam": pods},
                {
                    "type": "k8s-rdma-cni",
                    "runDir": str(self.run_dir(node)),
                    "capabilities": {"io.kubernetes.cri.pod-annotations": True},
                    "ipam": rdma,
                },
            ],
        }

    def _start_kubelet(self, node: DemoNode) -> None:
        self._start_component(
            "kubelet",
            *self._api(),
            *("--node", node.name, "--conflist", str(node.directory / "pods.conflist")),
            *("--cni-path", str(node.directory / "cni"), "--netns-dir", str(node.directory / "netns")),
            *("--state-dir", str(node.directory / "sandboxes"), "--late-delete-s", "1"),
            *("--node-ip", node.address, "--lease-s", str(LEASE_S)),
            *self._device_directories(node),
            node=node,
        )

    def _device_directories(self, node: DemoNode) -> tuple[str, ...]:
        directories = {"device-plugin-dir": "device-plugins", "registry": "registry", "cdi-dir": "cdi"}
        return tuple(
            part
            for option, name in directories.items()
            for part in (f"--{option}", str(node.directory / name))
        )

    def _device_plugin(self, node: DemoNode) -> dict[str, Any]:
        """Return the configuration of the device plugin, which drives claims, too, if there are any.

        It offers slots alone, because virtual functions have no RDMA devices for other resources.
        """
        directory = node.directory
        config: dict[str, Any] = {
            "node": node.name,
            "kubeconfig": str(self.paths.directory / "kubeconfig"),
            "runDir": str(self.run_dir(node)),
            "kubeletDir": str(directory / "device-plugins"),
            "podResources": str(directory / "pod-resources" / "kubelet.sock"),
            "resources": [{"mode": "exact", "name": SLOT_RESOURCE}],
            "port": None,
        }
        if node.has_claims:
            config["claims"] = {
                "registryDir": str(directory / "registry"),
                "pluginsDir": str(directory / "plugins"),
                "uid": "1",
            }
        return config

    def _offer_devices(self) -> bool:
        """Report whether each node offers slots, and its driver PFs for claims."""
        nodes = self.kubectl.items("nodes")
        offers = [SLOT_RESOURCE in node["status"].get("allocatable", {}) for node in nodes]
        return len(offers) == len(self.nodes) and all(offers) and bool(self.kubectl.items("resourceslices"))

    def _start_component(self, part: str, *arguments: str, node: DemoNode | None = None) -> None:
        name = f"{node.name}-{part}" if node else part
        netns = node.netns if node else None
        self.processes.start(name, "k8s_rdma_demo.cluster", part, *arguments, netns=netns)

    def _start_k8s_rdma(self, command: str, node: DemoNode | None, config: dict[str, Any]) -> None:
        name, path = f"{node.name}-{command}" if node else command, self._config_file(command, node)
        path.write_text(json.dumps(config))  # JSON is YAML
        environment = {"PORT": str(EXTENDER_PORT if command == "extender" else SERVER_PORT)}
        self.processes.start(
            name,
            "k8s_rdma",
            command,
            "--config",
            str(path),
            netns=node.netns if node else None,
            environment=environment,
        )

    def _config_file(self, command: str, node: DemoNode | None) -> Path:
        return self.paths.directory / f"{f'{node.name}-' if node else ''}{command}.yaml"

    def _api(self) -> tuple[str, ...]:
        return ("--server", API_URL)

    def _kubeconfig(self) -> tuple[str, ...]:
        return ("--kubeconfig", str(self.paths.directory / "kubeconfig"))

    def _wait(self, condition: str, ready: Callable[[], bool]) -> None:
        end = time.monotonic() + START_TIMEOUT_S
        while True:
            self.processes.check()
            try:
                if ready():
                    return
            except httpx2.TransportError:
                pass  # not listening yet
            if time.monotonic() > end:
                msg = (
                    f"demo: {condition} did not answer within {START_TIMEOUT_S} s; see {self.processes.logs}"
                )
                raise K8sRdmaError(msg)
            time.sleep(0.05)


def _node_pod(node: DemoNode) -> dict[str, Any]:
    """The pod of the chart's DaemonSet, by which `k8s-rdma who` finds the node's server."""
    labels = {"app.kubernetes.io/name": "k8s-rdma", "app.kubernetes.io/component": "node"}
    server = {"name": "server", "image": "k8s-rdma", "ports": [{"containerPort": SERVER_PORT}]}
    return {
        "kind": "Pod",
        "metadata": {"name": f"k8s-rdma-node-{node.name}", "namespace": _NAMESPACE, "labels": labels},
        "spec": {"nodeName": node.name, "hostNetwork": True, "containers": [server]},
    }


def _inspect(netns: Path) -> PodNetwork:
    command = ["nsenter", f"--net={netns}", "ip", "-json", "address", "show"]
    shown = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    links = {link["ifname"]: link for link in shown if link["ifname"] != "lo"}
    return PodNetwork(
        netns=netns,
        macs={name: link["address"] for name, link in links.items()},
        addresses={
            name: address["local"]
            for name, link in links.items()
            for address in link["addr_info"]
            if address["family"] == "inet"
        },
    )


def _is_vf(name: str) -> bool:
    pf, _, index = name.rpartition("v")
    return pf.startswith("enp") and index.isdigit()


def packaged(name: str, source: str) -> Path:
    """Return a directory that the wheel carries under a name, and that a checkout has elsewhere."""
    package = Path(__file__).resolve().parent
    return next(path for path in (package / name, package.parents[1] / source) if path.is_dir())
