"""The demo's scenes, after the evaluation of the paper behind it: each creates pods and checks what holds.

Every scene starts on empty nodes and leaves its pods to `finish`, which deletes them.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import yaml

from k8s_rdma.cli.demo.kubectl import POLL_S, unschedulable
from k8s_rdma.cli.demo.outcome import FlowShown, Outcome, PodShown
from k8s_rdma.cli.demo.reach import unreachable
from k8s_rdma.cli.demo.traffic import Endpoint, Flow, measure
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.wire.annotation import ANNOTATION, parse_request

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from k8s_rdma.cli.demo.network import DemoNode
    from k8s_rdma.cli.demo.world import World
    from k8s_rdma.wire.rest import Allocation

MEASURE_S = 4
POD_TIMEOUT_S = 20.0
LEGACY_REFUSAL = "RDMA Scheduler Extension: Node did not have enough free RDMA resources."
SIXTY = 60


class Scenes:
    """Plays scenes in a world and records what it finds."""

    def __init__(self, world: World, outcome: Outcome, examples: Path) -> None:
        """examples: the folder with the pods' manifests."""
        self._world = world
        self._outcome = outcome
        self._examples = examples
        self._created: list[str] = []

    # Scenes

    def examples(self) -> None:
        """Pods of `examples/`: some fit, one only over both PFs, one nowhere."""
        self._run("without-rdma")
        self._run("reservations-and-caps")
        self._run("needs-both-pfs")
        pfs = {interface.pf for interface in self._held("needs-both-pfs").interfaces}
        self._outcome.check_equal("needs-both-pfs is spread over both PFs", 2, len(pfs))
        plain = sorted(self._world.sandbox("without-rdma").macs)
        self._outcome.check_equal("without-rdma has its ordinary interface and no other", ["eth0"], plain)
        refusal = self._refused("fits-nowhere")
        self._outcome.check(
            "fits-nowhere stays Pending, with the reason and its numbers",
            LEGACY_REFUSAL in refusal and "600" in refusal,
            LEGACY_REFUSAL,
            refusal,
        )

    def caps(self) -> None:
        """Caps hold while nothing else competes, towards the other node and between VFs of one PF."""
        sender, receiver = "reservations-and-caps", "needs-both-pfs"
        self._measure(
            "caps",
            Flow(
                name=f"{sender} rdma0 to {receiver}",
                source=self._endpoint(sender, 0),
                destination=self._endpoint(receiver, 0),
            ),
            Flow(
                name=f"{sender} rdma2 to {receiver}",
                source=self._endpoint(sender, 2),
                destination=self._endpoint(receiver, 1),
            ),
        )
        self._apply("neighbour", {})
        self._await("neighbour")
        here, there = self._held(sender).interfaces[2].pf, self._held("neighbour").interfaces[0].pf
        same = (self._node(sender), here) == (self._node("neighbour"), there)
        self._outcome.check_equal(f"neighbour is on the PF of {sender}", True, same)
        self._measure(
            "caps",
            Flow(
                name=f"{sender} rdma2 to neighbour",
                source=self._endpoint(sender, 2),
                destination=self._endpoint("neighbour", 0),
            ),
        )

    def contention(self) -> None:
        """Three pods fill one link: each has its reservation, and they share what is left."""
        self._apply("receiver", {"min_tx_rate": 900}, {"min_tx_rate": 900})
        self._await("receiver")
        rates = {"gold": 500, "silver": 200, "bronze": 110}
        for name, rate in rates.items():
            self._apply(name, {"min_tx_rate": rate})
            self._await(name)
        pfs = {(self._node(name), self._held(name).interfaces[0].pf) for name in rates}
        self._outcome.check_equal("gold, silver and bronze compete on one PF", 1, len(pfs))
        flows = [
            Flow(name=name, source=self._endpoint(name, 0), destination=self._endpoint("receiver", 0))
            for name in rates
        ]
        measured = self._measure("contention", *flows)
        self._outcome.check(
            "together they fill the link",
            sum(measured.values()) >= 0.9 * 1000 * 0.956,
            "at least 860 Mb/s",
            f"{sum(measured.values()):.0f} Mb/s",
        )

    def sixty(self) -> None:
        """Two pods of 60 interfaces each: every one named, addressed and reaching its peer."""
        for name in ("sixty-a", "sixty-b"):
            self._run("sixty-interfaces", name)
        self._check_names("sixty-a")
        self._check_names("sixty-b")
        nodes = {self._node("sixty-a"), self._node("sixty-b")}
        self._outcome.check_equal("they are on two nodes", 2, len(nodes))
        pairs = [(self._endpoint("sixty-a", i), self._endpoint("sixty-b", i)) for i in range(SIXTY)]
        addresses = {endpoint.address for pair in pairs for endpoint in pair}
        self._outcome.check_equal("120 interfaces have 120 addresses", 2 * SIXTY, len(addresses))
        self._outcome.check_equal("each reaches its peer through itself", [], unreachable(pairs))

    def race(self) -> None:
        """Two pods at the same moment that fit alone and not together: one node is taken already."""
        self.finish("sixty-b")
        for name in ("racer-1", "racer-2"):
            self._apply(name, {"min_tx_rate": 600}, {"min_tx_rate": 600})
        placed, pending = self._settle(("racer-1", "racer-2"))
        self._outcome.check_equal("of two pods that fit only alone, one is placed", 1, len(placed))
        self._outcome.check_equal("and the other is refused", 1, len(pending))
        for name in placed:
            self._await(name)
        for name in pending:
            self._outcome.refusals[name] = self._world.kubectl.refused(name, timeout_s=POD_TIMEOUT_S)

    def crash(self) -> None:
        """`kill -9` of the agent in the middle of an ADD; the pod runs after all, nothing is left over."""
        self._apply_manifest("sixty-interfaces", "survivor")
        node = self._wait_for_half_an_add("survivor")
        self._world.processes.kill(f"{node.name}-agent")
        held = self._world.leases(node)
        self._outcome.check(
            "the agent dies with the ADD half done",
            bool(held),
            "addresses leased",
            f"{len(held)} addresses leased",
        )
        self._apply_manifest("without-rdma", "bystander", node=node.name)
        started = time.monotonic()
        self._await("bystander")
        self._outcome.check(
            "a pod without RDMA starts while the agent is dead",
            True,
            "Running",
            f"Running after {time.monotonic() - started:.1f} s",
        )
        self.finish("bystander")
        self._outcome.check_equal("and stops", None, self._world.kubectl.pod("bystander"))
        self._world.start_agent(node)
        self._await("survivor")
        self._check_names("survivor")

    # Pods

    def finish(self, *names: str) -> None:
        """Delete pods (all of them without names) and wait until they are gone."""
        chosen = list(names or self._created)
        self._world.kubectl.delete(*chosen, timeout_s=2 * POD_TIMEOUT_S)
        self._created = [name for name in self._created if name not in chosen]

    def _run(self, example: str, name: str | None = None) -> None:
        self._await(self._apply_manifest(example, name))

    def _refused(self, example: str) -> str:
        name = self._apply_manifest(example)
        refusal = self._world.kubectl.refused(name, timeout_s=POD_TIMEOUT_S)
        self._outcome.refusals[name] = refusal
        asked = describe(self._manifest(example))
        self._outcome.pods.append(PodShown(name=name, asked=asked, node="-", got="Pending"))
        return refusal

    def _manifest(self, example: str) -> dict[str, Any]:
        return dict(yaml.safe_load((self._examples / f"{example}.yaml").read_text(encoding="utf-8")))

    def _apply_manifest(self, example: str, name: str | None = None, *, node: str | None = None) -> str:
        created = self._world.kubectl.apply(self._manifest(example), name=name, node=node)
        self._created.append(created)
        return created

    def _apply(self, name: str, *interfaces: Mapping[str, int]) -> None:
        manifest = self._manifest("without-rdma")
        manifest["metadata"]["annotations"] = {ANNOTATION: json.dumps(interfaces)}
        self._world.kubectl.apply(manifest, name=name)
        self._created.append(name)

    def _await(self, name: str) -> None:
        """Wait until a pod runs, and note where and with what."""
        pod = self._world.kubectl.running(name, timeout_s=POD_TIMEOUT_S)
        node = self._world.node(pod["spec"]["nodeName"])
        shown = PodShown(name=name, asked=describe(pod), node=node.name, got=self._got(name, node))
        self._outcome.pods.append(shown)

    def _got(self, name: str, node: DemoNode) -> str:
        allocation = self._allocation(name)
        if allocation is None:
            return "eth0"
        report = self._world.report(node)
        names = {pf.pci: pf.name for pf in (report.pfs if report else ())}
        counts: dict[str, int] = {}
        for interface in allocation.interfaces:
            counts[names[interface.pf]] = counts.get(names[interface.pf], 0) + 1
        return "eth0, " + ", ".join(f"{count} VFs of {pf}" for pf, count in sorted(counts.items()))

    def _settle(self, names: Sequence[str]) -> tuple[list[str], list[str]]:
        """Wait until each pod is either bound or refused; which is which."""
        end = time.monotonic() + POD_TIMEOUT_S
        while time.monotonic() < end:
            pods = {name: self._world.kubectl.pod(name) or {} for name in names}
            placed = [name for name, pod in pods.items() if pod["spec"].get("nodeName")]
            refused = [name for name, pod in pods.items() if name not in placed and unschedulable(pod)]
            if len(placed) + len(refused) == len(names):
                return placed, refused
            time.sleep(POLL_S)
        msg = f"pods {', '.join(names)}: neither placed nor refused after {POD_TIMEOUT_S:g} s"
        raise K8sRdmaError(msg)

    def _wait_for_half_an_add(self, name: str) -> DemoNode:
        """The node whose agent has claimed functions for the pod and not yet given them all."""
        end = time.monotonic() + POD_TIMEOUT_S
        while time.monotonic() < end:
            for node in self._world.nodes:
                markers = list((self._world.run_dir(node) / "attachments").iterdir())
                if markers and self._world.leases(node, "rdma"):
                    return node
        msg = f"pod {name}: no agent began to attach it within {POD_TIMEOUT_S:g} s"
        raise K8sRdmaError(msg)

    # What a pod got

    def _node(self, name: str) -> str:
        pod = self._world.kubectl.pod(name) or {}
        return str(pod["spec"]["nodeName"])

    def _allocation(self, name: str) -> Allocation | None:
        report = self._world.report(self._world.node(self._node(name)))
        found = (each for each in (report.allocations if report else ()) if each.pod.name == name)
        return next(found, None)

    def _held(self, name: str) -> Allocation:
        allocation = self._allocation(name)
        if allocation is None:
            msg = f"pod {name}: node {self._node(name)} reports no interfaces for it"
            raise K8sRdmaError(msg)
        return allocation

    def _endpoint(self, name: str, index: int) -> Endpoint:
        sandbox = self._world.sandbox(name)
        return Endpoint(
            pod=name,
            netns=sandbox.netns,
            ifname=f"rdma{index}",
            address=sandbox.addresses[f"rdma{index}"],
        )

    # Checks

    def _check_names(self, name: str) -> None:
        sandbox = self._world.sandbox(name)
        held = {each.ifname: each.mac for each in self._held(name).interfaces}
        found = {ifname: mac for ifname, mac in sandbox.macs.items() if ifname.startswith("rdma")}
        self._outcome.check_equal(
            f"{name} has rdma0 to rdma{SIXTY - 1}", {f"rdma{i}" for i in range(SIXTY)} == set(found), True
        )
        self._outcome.check_equal(f"{name}'s interfaces are the functions it was given", held == found, True)

    def _measure(self, scene: str, *flows: Flow) -> dict[str, float]:
        rates = {flow.name: self._rates(flow) for flow in flows}
        measured = measure(flows, seconds=MEASURE_S)
        for name, rate in measured.items():
            reserved, cap = rates[name]
            self._outcome.check_flow(
                FlowShown(scene=scene, name=name, reserved=reserved, cap=cap, measured=rate)
            )
        return measured

    def _rates(self, flow: Flow) -> tuple[int, int]:
        """Reservation and cap of the sending interface, as programmed."""
        held = self._held(flow.source.pod).interfaces
        interface = next(each for each in held if each.ifname == flow.source.ifname)
        return interface.min_tx_rate, interface.max_tx_rate


def describe(pod: Mapping[str, Any]) -> str:
    """What a pod asks for, in a few words."""
    request = parse_request(pod["metadata"].get("annotations", {}).get(ANNOTATION))
    groups: dict[str, int] = {}
    for interface in request.interfaces:
        low, high = interface.min_tx_rate_mbps, interface.max_tx_rate_mbps
        words = " ".join(filter(None, (f"min {low}" if low else "", f"max {high}" if high else ""))) or "any"
        groups[words] = groups.get(words, 0) + 1
    return ", ".join(f"{count} x {words}" if count > 1 else words for words, count in groups.items()) or "-"
