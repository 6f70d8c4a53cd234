"""The demo's scenes, after the evaluation of the paper behind it: each creates pods and checks them.

Every scene starts on empty nodes and leaves its pods to `finish`, which deletes them. Traffic between pods
is measured: reachability of each interface, and TCP throughput at the receiver by iperf3.
"""

from __future__ import annotations

import json
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import yaml

from k8s_rdma.config.devices import SLOT_RESOURCE
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.wire.annotation import ANNOTATION, parse_request, request_text
from k8s_rdma.wire.claim_template import TemplateNames, claim_templates, with_claims
from k8s_rdma_demo.kubectl import POLL_S, unschedulable
from k8s_rdma_demo.network import LINK_MBPS, DemoNode
from k8s_rdma_demo.outcome import CONTENTION, TCP_SHARE, TOLERANCE, FlowShown, Outcome, PodShown, flow_check
from k8s_rdma_demo.over_time import FLOODING_STREAMS, OverTime, Recording
from k8s_rdma_demo.traffic import BASE_PORT, Endpoint, Flow, Stream, measure, unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from k8s_rdma.wire.report import Allocation
    from k8s_rdma_demo.world import World

MEASURE_S = 1
_TRIES = 5
POD_TIMEOUT_S = 60
LEGACY_REFUSAL = "RDMA Scheduler Extension: Node did not have enough free RDMA resources."
SIXTY = 60
CAPPED = "reservations-and-caps"
PEER = "needs-both-pfs"
"""A pod of `examples` on the other node."""


CLAIMED = ({"min_tx_rate": 300, "max_tx_rate": 500}, {"min_tx_rate": 200, "max_tx_rate": 300})
WAITING_MBPS = 600
"""More than a link has left beside `CLAIMED`."""

COMPETING = {"gold": 500, "silver": 200, "bronze": 110}
"""Reservations, Mb/s; 190 Mb/s of the link are left."""

RAISED_MBPS, CUT_MBPS = 700, 100
"""Reservations of gold and silver while they run, Mb/s: gold's fits only beside silver's."""

SHOWN_OVER_TIME = {"gold": 500, "silver": 200, "neighbour": 100}
"""Reservations, Mb/s, in the recording over time: two pods, and the neighbour that floods their link."""

GROWN_MBPS, SHRUNK_MBPS = 600, 150
"""The reservations of gold and silver there in the end, Mb/s; silver's shrinks first."""

SETTLING_S = 1.5
"""The time that TCP may need to follow a change."""


class Scenes:
    """Plays scenes in a world and records the results."""

    def __init__(self, world: World, outcome: Outcome, examples: Path, obstacle: str = "") -> None:
        """examples: the folder with the pods' manifests. obstacle: why throughput is not measured."""
        self._world = world
        self._outcome = outcome
        self._examples = examples
        self._created: list[str] = []
        self._claims: dict[str, str] = {}
        self._obstacle = obstacle

    # Scenes

    def examples(self) -> None:
        """Pods of `examples/`: some fit, one only over both PFs, one nowhere."""
        check = self._outcome.check_equal
        self._run("without-rdma")
        self._run(CAPPED)
        self._show_manifest(CAPPED)
        self._run("needs-both-pfs")
        plain = sorted(self._world.sandbox("without-rdma").macs)
        check("without-rdma has its ordinary interface only", ["eth0"], plain)
        pfs = {interface.pf for interface in self._allocation_of("needs-both-pfs").interfaces}
        check("needs-both-pfs has VFs of both PFs", 2, len(pfs))
        refusal = self._refused("fits-nowhere")
        numbers = LEGACY_REFUSAL in refusal and "600 Mb/s" in refusal
        check("fits-nowhere stays Pending, with the reason and numbers", True, numbers)

    def streams(self) -> tuple[Stream, ...]:
        """Return traffic between pods of `examples`, for those who look around; empty without iperf3."""
        if self._obstacle:
            return ()
        rates = (("rdma0", 0, 0, 240), ("rdma2", 2, 1, 60))
        flows = (
            (Flow(name=name, source=self._endpoint(CAPPED, i), destination=self._endpoint(PEER, j)), mbps)
            for name, i, j, mbps in rates
        )
        return tuple(
            Stream(flow, port=BASE_PORT + index, mbps=mbps) for index, (flow, mbps) in enumerate(flows)
        )

    def await_published(self) -> None:
        """Wait until `kubectl get rdmanodes` counts the pods of `examples`, for those who look around."""
        self._world.await_published(CAPPED, PEER)

    def caps(self) -> None:
        """Caps hold without other traffic, towards the other node and between VFs of one PF."""
        self._measure(
            "caps",
            Flow(
                name="rdma0, to the other node",
                source=self._endpoint(CAPPED, 0),
                destination=self._endpoint(PEER, 0),
            ),
            Flow(
                name="rdma2, to the other node",
                source=self._endpoint(CAPPED, 2),
                destination=self._endpoint(PEER, 1),
            ),
        )
        # 450 of the 500 Mb/s left on that PF: the tightest fit there is.
        self._apply("neighbour", {"min_tx_rate": 450}, has_slot=True)
        self._await("neighbour")
        devices = [device.partition("=")[0] for device in self._world.devices("neighbour")]
        self._outcome.check_equal(
            "neighbour's container has its VF's devices, by a slot", [SLOT_RESOURCE], devices
        )
        is_same_pf = self._pf_of(CAPPED, 2) == self._pf_of("neighbour", 0)
        self._outcome.check_equal(f"neighbour is on the same PF as {CAPPED}", True, is_same_pf)
        self._measure(
            "caps",
            Flow(
                name="rdma2, to a VF of the same PF",
                source=self._endpoint(CAPPED, 2),
                destination=self._endpoint("neighbour", 0),
            ),
        )

    def contention(self) -> None:
        """Three pods fill one link: each has its reservation, and they share the rest."""
        self._apply("receiver", {"min_tx_rate": 900}, {"min_tx_rate": 900})
        self._await("receiver")
        for name, rate in COMPETING.items():
            self._apply(name, {"min_tx_rate": rate})
            self._await(name)
        pfs = {self._pf_of(name, 0) for name in COMPETING}
        self._outcome.check_equal("gold, silver and bronze compete on one PF", 1, len(pfs))
        minimum, spread = (1 - TOLERANCE) * TCP_SHARE * LINK_MBPS, TOLERANCE * LINK_MBPS
        measured = self._measure(
            CONTENTION,
            *(
                Flow(name=name, source=self._endpoint(name, 0), destination=self._endpoint("receiver", 0))
                for name in COMPETING
            ),
            enough=lambda rates: sum(rates.values()) >= minimum and _spread(_excess(rates)) <= spread,
        )
        filling, sharing = "together they fill the link", "each has its part of what is left"
        if not measured:
            for name in (filling, sharing):
                self._outcome.omit(name, self._obstacle)
            return
        filled = sum(measured.values())
        self._outcome.check(
            filling,
            filled >= minimum,
            f"at least {minimum:.0f} Mb/s",
            f"{filled:.0f} Mb/s",
        )
        excess = _excess(measured)
        self._outcome.check(
            sharing,
            _spread(excess) <= spread,
            f"parts within {spread:.0f} Mb/s of each other",
            ", ".join(f"{part:.0f}" for part in excess) + " Mb/s",
        )

    def live_rates(self) -> None:
        """Gold's reservation grows while it runs: refused at first, admitted when silver gives some back."""
        check, kubectl = self._outcome.check_equal, self._world.kubectl
        self._request("gold", RAISED_MBPS)
        refused = kubectl.rates_status("gold", "refused", timeout_s=POD_TIMEOUT_S)
        self._outcome.refused_rates[f"default/gold --min {RAISED_MBPS}"] = refused.message
        left_mbps = LINK_MBPS - sum(COMPETING.values()) + COMPETING["gold"]
        check("gold's raise is refused, with what is left", True, f"leave {left_mbps} of" in refused.message)
        check(
            "gold keeps its reservation while others hold the rest", COMPETING["gold"], self._reserved("gold")
        )
        self._request("silver", CUT_MBPS)
        kubectl.rates_status("silver", "programmed", timeout_s=POD_TIMEOUT_S)
        kubectl.rates_status("gold", "programmed", timeout_s=POD_TIMEOUT_S)
        check("gold's raise is admitted when silver's cut is programmed", RAISED_MBPS, self._reserved("gold"))
        self._measure(
            "live rates",
            *(
                Flow(name=name, source=self._endpoint(name, 0), destination=self._endpoint("receiver", 0))
                for name in COMPETING
            ),
        )

    def over_time(self, phase_s: float) -> None:
        """Two pods share a link; a neighbour floods it, then gold's reservation grows while all send.

        phase_s: the seconds between two changes.
        """
        self._apply("receiver", {"min_tx_rate": 950}, {"min_tx_rate": 950}, {})
        self._await("receiver")
        for name, rate in SHOWN_OVER_TIME.items():
            self._apply(name, {"min_tx_rate": rate})
            self._await(name)
        pfs = {self._pf_of(name, 0) for name in SHOWN_OVER_TIME}
        self._outcome.check_equal("gold, silver and their neighbour compete on one PF", 1, len(pfs))
        gold, silver, neighbour = (
            Flow(name=name, source=self._endpoint(name, 0), destination=self._endpoint("receiver", index))
            for index, name in enumerate(SHOWN_OVER_TIME)
        )
        with Recording((gold, silver, neighbour), LINK_MBPS) as recording:
            for name, rate in SHOWN_OVER_TIME.items():
                recording.reserve(name, rate)
            recording.send(gold)
            recording.send(silver)
            time.sleep(phase_s)
            recording.happened(f"a neighbour floods: {FLOODING_STREAMS} connections")
            recording.send(neighbour, streams=FLOODING_STREAMS)
            time.sleep(phase_s)
            recording.happened("gold's reservation grows")
            for name, rate in (("silver", SHRUNK_MBPS), ("gold", GROWN_MBPS)):
                self._request(name, rate)
                self._world.kubectl.rates_status(name, "programmed", timeout_s=POD_TIMEOUT_S)
                recording.reserve(name, self._reserved(name))
            time.sleep(phase_s)
            recording.happened("end")
        self._outcome.over_time = recorded = recording.finished()
        self._check_phases(recorded)

    def _check_phases(self, recorded: OverTime) -> None:
        """Check that in every phase every pod that sends has its reservation."""
        moments = [SETTLING_S, *(at_s for at_s, _ in recorded.events)]
        for number, (begin_s, end_s) in enumerate(pairwise(moments), 1):
            for pod in recorded.pods[: 2 if number == 1 else None]:
                floor = (1 - TOLERANCE) * TCP_SHARE * pod.reserved_at(end_s)
                measured = pod.steady(begin_s + SETTLING_S, end_s)
                self._outcome.check(
                    f"{pod.name} gets its reservation, phase {number}",
                    measured >= floor,
                    f"at least {floor:.0f} Mb/s",
                    f"{measured:.0f} Mb/s",
                )

    def _request(self, name: str, mbps: int) -> None:
        """Edit the reservation in a running pod's annotation, as its owner does."""
        self._world.kubectl.annotate(name, ANNOTATION, json.dumps([{"min_tx_rate": mbps}]))

    def _reserved(self, name: str) -> int:
        """The reservation of a pod's only interface, as programmed."""
        [interface] = self._allocation_of(name).interfaces
        return interface.min_tx_rate

    def claims(self) -> None:
        """A pod by ResourceClaim has its rates; another one starts when they are free again."""
        check = self._outcome.check_equal
        self._apply("peer", {}, {}, node="w2")
        self._await("peer")
        self._apply_claim("by-claim", *CLAIMED)
        self._await("by-claim")
        interfaces = self._allocation_of("by-claim").interfaces
        rates = [rates_text(interface.min_tx_rate, interface.max_tx_rate) for interface in interfaces]
        requested = [rates_text(entry["min_tx_rate"], entry["max_tx_rate"]) for entry in CLAIMED]
        check("by-claim has the reservations and caps of its claim", requested, rates)
        devices = self._world.devices("by-claim")
        check("CDI devices of its container, one an interface", len(CLAIMED), len(devices))
        self._apply_claim("waits", {"min_tx_rate": WAITING_MBPS})
        refusal = self._world.kubectl.refused("waits", timeout_s=POD_TIMEOUT_S)
        self._outcome.refusals["waits"] = refusal
        check("waits stays Pending", True, "cannot allocate all claims" in refusal)
        self._measure(
            "claims",
            *(
                Flow(
                    name=f"rdma{index}, to the other node",
                    source=self._endpoint("by-claim", index),
                    destination=self._endpoint("peer", index),
                )
                for index in range(len(CLAIMED))
            ),
        )
        self.finish("by-claim")
        self._await("waits")

    def sixty(self) -> None:
        """Two pods of 60 interfaces each: every one named, addressed and reaching its peer."""
        check = self._outcome.check_equal
        names = ("sixty-a", "sixty-b")
        for name in names:
            self._apply_manifest("sixty-interfaces", name)
        for name in names:
            self._await(name)
            self._check_names(name)
        check("they are on two nodes", 2, len({self._node("sixty-a"), self._node("sixty-b")}))
        pairs = [(self._endpoint("sixty-a", i), self._endpoint("sixty-b", i)) for i in range(SIXTY)]
        addresses = {endpoint.address for pair in pairs for endpoint in pair}
        check("addresses of their 120 interfaces", 2 * SIXTY, len(addresses))
        check("interfaces that do not reach their peer", [], unreachable(pairs))

    def race(self) -> None:
        """Two pods at the same moment that fit alone and not together: one node is taken already."""
        self.finish("sixty-b")
        for name in ("racer-1", "racer-2"):
            self._apply(name, {"min_tx_rate": 600}, {"min_tx_rate": 600})
        placed, pending = self._settle(("racer-1", "racer-2"))
        self._outcome.check_equal("of two pods that fit only alone, placed", 1, len(placed))
        self._outcome.check_equal("and refused", 1, len(pending))
        for name in placed:
            self._await(name)
        for name in pending:
            self._outcome.refusals[name] = self._world.kubectl.refused(name, timeout_s=POD_TIMEOUT_S)

    def crash(self) -> None:
        """`kill -9` of the agent in the middle of an ADD; the pod runs after all, without leftovers."""
        check = self._outcome.check_equal
        self._apply_manifest("sixty-interfaces", "survivor")
        node = self._wait_for_half_an_add("survivor")
        self._world.processes.kill(f"{node.name}-agent")
        phases, moved = self._world.receipts(node), self._world.attached_vfs(node)
        self._outcome.check(
            "the agent dies in the middle of an ADD",
            phases == ["prepared"] and moved > 0,
            "receipt prepared, VFs moved",
            f"receipt {', '.join(phases) or 'none'}, {moved} of {SIXTY} VFs moved",
        )
        self._apply_manifest("without-rdma", "bystander", node=node.name)
        self._await("bystander")
        self.finish("bystander")
        check("a pod without RDMA starts and stops meanwhile", None, self._world.kubectl.pod("bystander"))
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
        requested = describe(self._manifest(example))
        self._outcome.pods.append(PodShown(name=name, requested=requested, node="-", allocated="Pending"))
        return refusal

    def _manifest(self, example: str) -> dict[str, Any]:
        return dict(yaml.safe_load((self._examples / f"{example}.yaml").read_text(encoding="utf-8")))

    def _apply_manifest(self, example: str, name: str | None = None, *, node: str | None = None) -> str:
        self._created.append(name or example)  # first: a pod under way is deleted as well
        return self._world.kubectl.apply(self._manifest(example), name=name, node=node)

    def _apply(
        self, name: str, *interfaces: Mapping[str, int], node: str | None = None, has_slot: bool = False
    ) -> None:
        manifest = self._annotated(*interfaces)
        if has_slot:
            manifest["spec"]["containers"][0]["resources"] = {"limits": {SLOT_RESOURCE: 1}}
        if node is not None:
            manifest["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
        self._created.append(name)
        self._world.kubectl.apply(manifest, name=name)

    def _apply_claim(self, name: str, *interfaces: Mapping[str, int]) -> None:
        """Ask by a ResourceClaimTemplate, as `k8s-rdma claim` makes it of an annotation."""
        manifest = self._annotated(*interfaces)
        self._claims[name] = f"claim: {describe(manifest)}"
        request = parse_request(request_text(manifest["metadata"]["annotations"]))
        templates = claim_templates(request, TemplateNames(name=name)).templates
        for template in templates:
            self._world.kubectl.create(template.document)
        self._created.append(name)
        self._world.kubectl.apply(with_claims(manifest, templates, SLOT_RESOURCE), name=name)

    def _annotated(self, *interfaces: Mapping[str, int]) -> dict[str, Any]:
        manifest = self._manifest("without-rdma")
        manifest["metadata"]["annotations"] = {ANNOTATION: json.dumps(interfaces)}
        return manifest

    def _await(self, name: str) -> None:
        """Wait until a pod runs, and record its node and interfaces."""
        pod = self._world.kubectl.running(name, timeout_s=POD_TIMEOUT_S)
        node = self._world.node(pod["spec"]["nodeName"])
        requested = self._claims.get(name) or describe(pod)
        allocated = "eth0" if requested == "-" else f"eth0, {self._allocation_text(name, node)}"
        shown = PodShown(name=name, requested=requested, node=node.name, allocated=allocated)
        self._outcome.pods.append(shown)

    def _show_manifest(self, example: str) -> None:
        manifest = self._manifest(example)
        (container,) = manifest["spec"]["containers"]
        keys = [*manifest["metadata"]["annotations"]]
        keys += [key for key in ("resources", "securityContext", "env") if key in container]
        keys += [key for key in manifest["spec"] if key != "containers"]
        self._outcome.check_equal(f"{example} asks by its annotation alone", [ANNOTATION], keys)
        text = (self._examples / f"{example}.yaml").read_text(encoding="utf-8")
        self._outcome.manifest = "".join(
            line for line in text.splitlines(keepends=True) if not line.startswith("#")
        )

    def _allocation_text(self, name: str, node: DemoNode) -> str:
        allocation = self._allocation_of(name)
        report = self._world.report(node)
        names = {pf.pci: pf.name for pf in (report.pfs if report else ())}
        counts: dict[str, int] = {}
        for interface in allocation.interfaces:
            counts[names[interface.pf]] = counts.get(names[interface.pf], 0) + 1
        return ", ".join(f"{pf} x {count}" for pf, count in sorted(counts.items()))

    def _settle(self, names: Sequence[str]) -> tuple[list[str], list[str]]:
        """Wait until each pod is either bound or refused; return the bound and the refused ones."""
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
        """Return the first node that has begun to move functions into the pod."""
        end = time.monotonic() + POD_TIMEOUT_S
        while time.monotonic() < end:
            for node in self._world.nodes:
                if self._world.attached_vfs(node):
                    return node
        msg = f"pod {name}: no agent began to attach it within {POD_TIMEOUT_S:g} s"
        raise K8sRdmaError(msg)

    # A pod's node and interfaces

    def _node(self, name: str) -> str:
        pod = self._world.kubectl.pod(name) or {}
        return str(pod["spec"]["nodeName"])

    def _allocation(self, name: str) -> Allocation | None:
        report = self._world.report(self._world.node(self._node(name)))
        found = (
            allocation for allocation in (report.allocations if report else ()) if allocation.pod.name == name
        )
        return next(found, None)

    def _allocation_of(self, name: str) -> Allocation:
        """Return a running pod's allocation; its node's server shows it a moment after the pod runs."""
        end = time.monotonic() + POD_TIMEOUT_S
        while (allocation := self._allocation(name)) is None:
            if time.monotonic() > end:
                msg = f"pod {name}: node {self._node(name)} reports no interfaces for it"
                raise K8sRdmaError(msg)
            time.sleep(POLL_S)
        return allocation

    def _pf_of(self, name: str, index: int) -> tuple[str, str]:
        """Node and PF of a pod's interface."""
        return self._node(name), self._allocation_of(name).interfaces[index].pf

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
        allocated = {interface.ifname: interface.mac for interface in self._allocation_of(name).interfaces}
        found = {ifname: mac for ifname, mac in sandbox.macs.items() if ifname.startswith("rdma")}
        expected = [f"rdma{index}" for index in range(SIXTY)]
        named = sorted(found, key=expected.index) == expected
        self._outcome.check_equal(
            f"{name} has rdma0 to rdma{SIXTY - 1}, the VFs it was given", True, named and allocated == found
        )

    def _measure(
        self, scene: str, *flows: Flow, enough: Callable[[Mapping[str, float]], bool] = lambda _: True
    ) -> dict[str, float]:
        """Measure, and again while a rate is too low or `enough` is false: a busy machine carries less.

        enough: decides on the rates of all flows together. If throughput cannot be measured, the checks are
        omitted, and the rates are empty.
        """
        rates = {flow.name: self._rates(flow) for flow in flows}
        if self._obstacle:
            for name, (_, cap) in rates.items():
                self._outcome.omit(flow_check(scene, name, cap), self._obstacle)
            return {}
        for _ in range(_TRIES):
            measured = measure(flows, seconds=MEASURE_S)
            shown = [
                FlowShown(scene=scene, name=name, reserved=reserved, cap=cap, measured=measured[name])
                for name, (reserved, cap) in rates.items()
            ]
            if all(flow.measured >= flow.floor for flow in shown) and enough(measured):
                break
        for flow in shown:
            self._outcome.check_flow(flow)
        return measured

    def _rates(self, flow: Flow) -> tuple[int, int]:
        """Reservation and cap of the sending interface, as programmed."""
        interfaces = self._allocation_of(flow.source.pod).interfaces
        interface = next(candidate for candidate in interfaces if candidate.ifname == flow.source.ifname)
        return interface.min_tx_rate, interface.max_tx_rate


def _excess(measured: Mapping[str, float]) -> list[float]:
    """Return each competing pod's rate beyond its reservation, in Mb/s."""
    return [measured[name] - TCP_SHARE * rate for name, rate in COMPETING.items()]


def _spread(values: Sequence[float]) -> float:
    return max(values) - min(values)


def describe(pod: Mapping[str, Any]) -> str:
    """Describe a pod's request in a few words."""
    request = parse_request(request_text(pod["metadata"].get("annotations", {})))
    groups: dict[str, int] = {}
    for interface in request.interfaces:
        rates = rates_text(interface.min_tx_rate_mbps, interface.max_tx_rate_mbps)
        groups[rates] = groups.get(rates, 0) + 1
    return ", ".join(f"{count} x {text}" if count > 1 else text for text, count in groups.items()) or "-"


def rates_text(min_tx_rate_mbps: int, max_tx_rate_mbps: int) -> str:
    """Describe an interface's reservation and cap; 0 if unset."""
    texts = (
        f"{name} {mbps}" for name, mbps in (("min", min_tx_rate_mbps), ("max", max_tx_rate_mbps)) if mbps
    )
    return " ".join(texts) or "any"
