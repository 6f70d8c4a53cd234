"""Two nodes and the programs that place pods on them.

These are the product's extender, beside this project's stand-ins for the API server, kube-scheduler and
kubelet, which calls the CNI executable as containerd does.
"""

from __future__ import annotations

import json
import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from lab.places import ANNOTATIONS, CNI_PATH, ETC
from lab.report.node import Attached, LabNode
from lab.say import step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lab.machine import Machine
    from lab.report.pods import Wanted

API_PORT, EXTENDER_PORT = 6443, 8888
CONFLIST = f"{ETC}/pods.conflist"
SANDBOXES = "/run/sandboxes"
CONTROL_PF = "eth0"
"""The PF that carries the nodes' connections with the control plane on its own netdev."""
HARDWARE: dict[str, object] = {"pfs": [{"names": ["eth0", "eth1"], "numVfs": 7, "enforce": "software"}]}
APPLY_WITHIN_S = 900.0
_A_LINE_EACH = f"for each in {SANDBOXES}/*.json; do tr -d '\\n' <$each; echo; done"


class LabCluster:
    """One for several machines. The control plane is on the first machine."""

    def __init__(self, *machines: Machine) -> None:
        key = secrets.token_hex(32)
        self.addresses = {f"w{number}": f"10.8.0.{number}" for number in range(1, len(machines) + 1)}
        self.nodes = [self._node(machine, number, key) for number, machine in enumerate(machines, 1)]
        self._api = f"http://{self.addresses['w1']}:{API_PORT}"

    def _node(self, machine: Machine, number: int, key: str) -> LabNode:
        machine.write(f"{ETC}/placement.key", key, mode=0o600)
        subnet = {
            "subnet": "10.56.0.0/16",
            "rangeStart": f"10.56.{number}.1",
            "rangeEnd": f"10.56.{number}.99",
        }
        signed: dict[str, object] = {"placementKeyFile": f"{ETC}/placement.key"}
        return LabNode(machine, f"w{number}", HARDWARE, settings=signed, subnet=subnet)

    def start(self) -> None:
        """Start every process; return when all processes that others wait for answer."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(self._start_node, self.nodes))
        with step("API server, extender, scheduler, kubelets"):
            self._start_control_plane(self.nodes[0])
            for node in self.nodes:
                self._start_kubelet(node)

    def _start_node(self, node: LabNode) -> None:
        with step(f"{node.name}: init, agent, server"):
            node.start()
            address = f"{self.addresses[node.name]}/24"
            node.machine.run("ip", "address", "add", address, "dev", CONTROL_PF)

    def _start_control_plane(self, node: LabNode) -> None:
        here = self.addresses[node.name]
        self._stand_in(
            node, "api", "--host", here, "--port", str(API_PORT), "--kubeconfig", f"{ETC}/kubeconfig"
        )
        node.await_port(here, API_PORT)
        node.write(
            "extender",
            {
                "kubeconfig": f"{ETC}/kubeconfig",
                "listen": here,
                "source": "http",
                "placementKeyFile": f"{ETC}/placement.key",
                "strategy": "spread",
            },
        )
        node.process("extender", "k8s-rdma", "extender", "--config", f"{ETC}/extender.yaml")
        node.await_port(here, EXTENDER_PORT)
        extender = f"http://{here}:{EXTENDER_PORT}/scheduler"
        self._stand_in(node, "scheduler", "--server", self._api, "--extender", extender)

    def _start_kubelet(self, node: LabNode) -> None:
        plugin = node.network() | {"capabilities": {ANNOTATIONS: True}}
        conflist = {"cniVersion": "1.1.0", "name": plugin.pop("name"), "plugins": [plugin]}
        node.machine.write(CONFLIST, json.dumps(conflist))
        self._stand_in(
            node,
            "kubelet",
            *("--server", self._api, "--node", node.name, "--node-ip", self.addresses[node.name]),
            *("--conflist", CONFLIST, "--netns-dir", "/run/netns", "--state-dir", SANDBOXES),
            *(word for directory in CNI_PATH.split(":") for word in ("--cni-path", directory)),
        )

    def _stand_in(self, node: LabNode, part: str, *arguments: str) -> None:
        node.process(part, "python3", "-m", "k8s_rdma_demo.cluster", part, *arguments)

    def apply(self, pods: Sequence[Wanted]) -> dict[str, dict[str, str]]:
        """Create pods one after the other; return of each its node, or why it was refused."""
        program = "/src/lab/report/inside/apply_pods.py"
        wanted = [{"manifest": pod.manifest(), "fits": pod.fits} for pod in pods]
        said = self.nodes[0].machine.run(
            "python3", program, self._api, input=json.dumps(wanted), timeout_s=APPLY_WITHIN_S
        )
        return dict(json.loads(said.stdout))

    def attached(self) -> dict[str, tuple[LabNode, Attached]]:
        """Return the pods that run, with their nodes."""
        found = {}
        for node in self.nodes:
            for line in node.machine.run("bash", "-c", _A_LINE_EACH).stdout.splitlines():
                pod = _attached(json.loads(line))
                found[pod.name] = (node, pod)
        return found


def _attached(sandbox: dict[str, Any]) -> Attached:
    result = sandbox["result"]
    names = [each["name"] for each in result["interfaces"]]
    addresses = {names[each["interface"]]: each["address"].partition("/")[0] for each in result["ips"]}
    return Attached(name=sandbox["pod"]["name"], netns=sandbox["netns"], addresses=addresses)
