"""A machine as a node of the product: VFs by `init`, agent and server as processes, pods by the executable.

All paths are those of the documentation for a node that is set up by hand.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lab.errors import CommandTimedOut, LabError
from lab.places import ETC, PLUGIN, RUN, SERVER, cni_environment, cni_network
from lab.report.flows import Endpoint

if TYPE_CHECKING:
    from lab.machine import Background, Machine

READY_WITHIN_S = 600.0
"""An emulated machine among others may take minutes to import a process."""
_READ = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=30).read().decode())"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """A pod that runs: the path of its namespace, and addresses by interface name."""

    name: str
    netns: str
    addresses: dict[str, str]


class LabNode:
    """One machine. hardware: the section of that name. settings: more of the agent's configuration."""

    def __init__(
        self,
        machine: Machine,
        name: str,
        hardware: dict[str, object],
        *,
        settings: dict[str, object] | None = None,
        subnet: dict[str, str] | None = None,
    ) -> None:
        self.machine = machine
        self.name = name
        self._hardware = {"requireRdma": False} | hardware
        self._settings = settings or {}
        self._subnet = subnet or {"subnet": "10.56.0.0/24"}

    # Processes

    def start(self) -> None:
        """Make VFs, start agent and server; return when both answer."""
        self.start_without_server()
        self.write("server", {"node": self.name, "hardware": self._hardware})
        self.process("server", "k8s-rdma", "server", "--config", f"{ETC}/server.yaml")
        self.await_port("127.0.0.1", 54005)

    def start_without_server(self) -> None:
        """Start all that pods need."""
        self.write("init", {"hardware": self._hardware})
        self.machine.run("k8s-rdma", "init", "--config", f"{ETC}/init.yaml", timeout_s=READY_WITHIN_S)
        self.machine.run("modprobe", "-a", "rdma_rxe", "rdma_ucm")
        self.start_agent()

    def start_agent(self) -> Background:
        """Start the agent; its log is `agent-NODE.log` in the shared folder."""
        self.write("agent", {"node": self.name, "hardware": self._hardware} | self._settings)
        agent = self.process("agent", "k8s-rdma", "agent", "--config", f"{ETC}/agent.yaml")
        self._wait("the agent", f"test -S {RUN}/cni.sock && CNI_COMMAND=STATUS {PLUGIN} <{ETC}/network.json")
        return agent

    def write(self, name: str, document: dict[str, object]) -> None:
        """Write a configuration file: JSON is YAML."""
        self.machine.write(f"{ETC}/{name}.yaml", json.dumps(document))
        self.machine.write(f"{ETC}/network.json", json.dumps(self.network()))

    def process(self, name: str, *argv: str) -> Background:
        """Start a process that goes on until the machine ends."""
        return self.machine.start(*argv, name=f"{name}-{self.name}")

    def await_port(self, address: str, port: int) -> None:
        """Wait until a process listens there."""
        self._wait(f"port {port}", f"(: </dev/tcp/{address}/{port}) 2>/dev/null")

    def _wait(self, what: str, condition: str) -> None:
        script = f"until {condition} >/dev/null; do sleep 0.2; done"
        try:
            self.machine.run("bash", "-c", script, timeout_s=READY_WITHIN_S)
        except CommandTimedOut as error:
            logs = "\n".join(
                path.read_text()[-2000:] for path in self.machine.shared.glob(f"*-{self.name}.log")
            )
            raise LabError(f"{self.name}: {what}: not within {READY_WITHIN_S:g} s\n{logs}") from error

    # Requests to it

    def agent_log(self) -> str:
        """Return the agent's log, a JSON object a line."""
        return (self.machine.shared / f"agent-{self.name}.log").read_text()

    def report(self) -> dict[str, Any]:
        """Return `/v1/node`."""
        return dict(json.loads(self.machine.run("python3", "-c", _READ, f"{SERVER}/v1/node").stdout))

    def interfaces(self, pod: str) -> list[dict[str, Any]]:
        """Return the interfaces of a pod in `/v1/node`."""
        found = [each for each in self.report()["allocations"] if each["pod"]["name"] == pod]
        return [interface for each in found for interface in each["interfaces"]]

    def network(self, interfaces: list[dict[str, object]] | None = None) -> dict[str, object]:
        """Return the network configuration as the runtime completes it for a pod that asks for these."""
        asked = None if interfaces is None else json.dumps(interfaces)
        return cni_network(version="1.1.0", subnet=self._subnet, leases="/run/leases", asked=asked)

    # Pods, as a runtime makes them

    def add(self, pod: str, *interfaces: dict[str, object]) -> Attached:
        """Make a namespace and run ADD; raise CommandFailed with the CNI error."""
        self.machine.run("ip", "netns", "add", pod)
        result = json.loads(self.call("ADD", pod, *interfaces))
        names = [each["name"] for each in result["interfaces"] if each.get("sandbox")]
        addresses = {names[each["interface"]]: each["address"].partition("/")[0] for each in result["ips"]}
        return Attached(name=pod, netns=f"/run/netns/{pod}", addresses=addresses)

    def delete(self, pod: str, *interfaces: dict[str, object]) -> None:
        """Run DEL, and remove the namespace."""
        self.call("DEL", pod, *interfaces)
        self.machine.run("ip", "netns", "delete", pod)

    def call(self, command: str, pod: str, *interfaces: dict[str, object]) -> str:
        """Run one CNI command; return the plugin's output."""
        network = json.dumps(self.network(list(interfaces)))
        return self.machine.run(
            PLUGIN, input=network, env=cni_environment(command, pod, f"sandbox-{pod}", pod)
        ).stdout

    def endpoint(self, pod: Attached, ifname: str = "eth0") -> Endpoint:
        """Return an interface of the pod, for measurements."""
        device = f"rxe-{pod.name}-{ifname}"
        address = pod.addresses[ifname]
        return Endpoint(machine=self.machine, netns=pod.netns, ifname=ifname, address=address, rdma=device)
