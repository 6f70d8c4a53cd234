"""The pods of a mortal world, and their invariants."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent.machine import call
from agent.mortal import DEVICE, World, disk
from fakes.machine import HOST, VF_DRIVER
from k8s_rdma.core.ledger import AllocatedInterface, Attachment, Phase
from k8s_rdma.core.step import NetnsRef, VfRef

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from pathlib import Path


ANNOTATIONS = "io.kubernetes.cri.pod-annotations"

KINDS: dict[str, tuple[list[dict[str, object]], list[tuple[str, str]]]] = {
    "rated": ([{"min_tx_rate": 60_000, "max_tx_rate": 70_000}, {"min_tx_rate": 60_000}], [("alone", "eth0")]),
    "tuned": ([{"vlan": 7, "trust": True, "mac": "02:00:00:00:00:77", "mtu": 1400}], [("alone", "eth0")]),
    "program": ([{"max_tx_rate": 9}, {"driver": "vfio-pci", "spoof_check": False}], [("alone", "eth0")]),
    "capped": (
        [
            {"max_tx_rate": 7, "enforce": "software"},
            {"min_tx_rate": 5, "max_tx_rate": 9, "enforce": "software"},
        ],
        [("alone", "eth0")],
    ),
    "plain": ([], [("alone", "eth0")]),
    "holding": ([{"min_tx_rate": 500, "max_tx_rate": 600}], [("alone", "eth0")]),
    "networks": (
        [{"network": "net-a", "min_tx_rate": 500}, {"min_tx_rate": 1000}, {"network": "net-b", "vlan": 9}],
        [("net-a", "net1"), ("net-b", "net2")],
    ),
}
"""Requests of pods, and the attachments that serve them: network and CNI_IFNAME."""

SLOTTED = frozenset({"program", "networks"})
"""Kinds whose containers ask for a slot."""


@dataclass(eq=False)
class Pod:
    """A sandbox of a pod."""

    uid: str
    container: str
    kind: str
    netns: NetnsRef

    @property
    def attachments(self) -> list[Attachment]:
        return [Attachment(network, self.container, ifname) for network, ifname in KINDS[self.kind][1]]


def stdin(network: str, pod: Pod | None = None, **more: object) -> bytes:
    conf: dict[str, object] = {"cniVersion": "1.1.0", "name": network, "type": "k8s-rdma-cni"}
    conf["ipam"] = {"type": "book"}
    if network == "alone":
        conf["delegate"] = {"type": "main"}
    if pod is not None:
        annotations = {"k8s.v1.cni.cncf.io/networks": "net-a, net-b"} if pod.kind == "networks" else {}
        if KINDS[pod.kind][0]:
            annotations["rdma_interfaces_required"] = json.dumps(KINDS[pod.kind][0])
        info = f"/var/run/k8s.cni.cncf.io/devinfo/cni/{network}-{pod.container}"
        conf["runtimeConfig"] = {ANNOTATIONS: annotations, "CNIDeviceInfoFile": info}
    return json.dumps(conf | more).encode()


class Cluster:
    """The pods of a world, and their invariants."""

    def __init__(self, directory: Path) -> None:
        self.world = World(directory)
        self.pods: list[Pod] = []
        self.attached: dict[Attachment, Pod] = {}
        self.tampered: set[VfRef] = set()

    def new_pod(self, uid: str, kind: str) -> Pod:
        container = f"c{len(self.pods)}"
        if kind in SLOTTED:
            self.world.hold_slot(uid)
        if kind == "holding":
            self.world.hold_device(uid)
        netns = self.world.hardware.create_namespace(f"/run/netns/{container}")
        self.pods.append(Pod(uid=uid, container=container, kind=kind, netns=netns))
        return self.pods[-1]

    def is_over(self, pod: Pod) -> bool:
        """Whether kubelet has given the pod's device to another one: no sandbox is made for it any more."""
        return pod.kind == "holding" and pod.uid != self.world.device_of

    def add(self, pod: Pod, attachment: Attachment) -> Coroutine[Any, Any, Any]:
        env = call("ADD", pod.container, pod.uid, attachment.ifname, name=pod.uid)
        return self.world.verbs.add(env, pod.netns, stdin(attachment.network, pod))

    def delete(self, attachment: Attachment) -> Coroutine[Any, Any, Any]:
        env = call("DEL", attachment.container, ifname=attachment.ifname)
        return self.world.verbs.delete(env, attachment.network)

    def leave(self, attachment: Attachment) -> None:
        """Play a DEL of the runtime without an answer. Its configuration has no part in it here."""
        name = f"{attachment.container}:{attachment.ifname}:{attachment.network}"
        (self.world.directory / "run" / "deletions" / name).touch()

    def collect(self, network: str, valid: set[Attachment]) -> Coroutine[Any, Any, Any]:
        listed = [{"containerID": each.container, "ifname": each.ifname} for each in valid]
        env = call("GC")
        return self.world.verbs.collect(env, stdin(network, **{"cni.dev/valid-attachments": listed}))

    def uncap(self, pod: Pod) -> None:
        """Let a pod take away the limits of its interfaces."""
        for device in self.world.hardware.devices_in(pod.netns.inode):
            device.max_tx_rate_mbps = 0

    def finish(self) -> None:
        """After DEL of all that ever was, the machine is as before."""
        for _ in range(2):
            for pod in self.pods:
                for attachment in pod.attachments:
                    [outcome] = self.world.run(self.delete(attachment))
                    assert outcome is None
            assert not self.world.node.ledger.receipts
            assert self.world.is_pristine()
            assert self.world.book.entries == {}
            assert self.world.device_files() == []
            self.world.run(self.world.verbs.reconcile())
            assert not self.world.markers()
            assert list((self.world.directory / "run" / "deletions").iterdir()) == []
        self.world.restart()
        assert not self.world.node.ledger.receipts

    def check(self, *, restored: bool = False) -> None:
        """Check the invariants between any two calls. restored: whether an agent has just been started."""
        assert self.world.markers() >= {key.container for key in self.world.node.ledger.receipts}
        self._check_free_vfs()
        self._check_attached()
        self._check_places()
        self._check_book()
        self._check_slots(restored=restored)
        self._check_devices()

    def _check_free_vfs(self) -> None:
        """A VF without a holder is as it was."""
        spared = self.tampered | self.world.node.ledger.holders().keys()
        seen = self.world.kernel.observe()
        for pf, before in zip(seen.pfs, self.world.pristine.pfs, strict=True):
            for vf, as_it_was in zip(pf.vfs, before.vfs, strict=True):
                assert vf == as_it_was or VfRef(pf.pci, vf.index) in spared

    def _check_attached(self) -> None:
        """After its ADD succeeded, a pod has the interfaces that it was given, until it is ended."""
        for attachment, pod in self.attached.items():
            receipt = self.world.node.ledger.receipts[attachment]
            assert receipt.phase is Phase.ATTACHED
            for interface in receipt.interfaces:
                if interface.vf not in self.tampered:
                    self._check_given(interface, pod)

    def check_whole(self) -> None:
        """Every receipt is of an attachment that stands: interrupted calls are undone or completed."""
        pods = {attachment: pod for pod in self.pods for attachment in pod.attachments}
        for attachment, receipt in self.world.node.ledger.receipts.items():
            assert receipt.phase is Phase.ATTACHED
            for interface in receipt.interfaces:
                self._check_given(interface, pods[attachment])

    def _check_given(self, interface: AllocatedInterface, pod: Pod) -> None:
        function, rate = self.world.hardware.functions[interface.vf], interface.rate()
        rates = function.min_tx_rate_mbps, function.max_tx_rate_mbps
        assert rates == (rate.min_tx_rate_mbps, rate.max_tx_rate_mbps)
        if interface.is_netdev:
            assert (function.device.place, function.device.name) == (pod.netns.inode, interface.ifname)
            assert function.device.max_tx_rate_mbps == interface.software_max_tx_rate_mbps
        else:
            assert function.driver == "vfio-pci"

    def _check_places(self) -> None:
        """No pod has a VF that the ledger does not give it."""
        holders = self.world.node.ledger.holders()
        containers = {pod.netns.inode: pod.container for pod in self.pods}
        for ref, function in self.world.hardware.functions.items():
            if function.is_netdev and function.device.place != HOST:
                assert holders[ref].container == containers[function.device.place]
            else:
                assert not function.device.max_tx_rate_mbps
            if function.driver != VF_DRIVER:
                assert ref in holders

    def _check_devices(self) -> None:
        """The exclusive device's holder has it and no other VF, and no other pod ever has it."""
        kinds = {pod.container: pod.kind for pod in self.pods}
        for key, receipt in self.world.node.ledger.receipts.items():
            holding = kinds[key.container] == "holding"
            assert all((each.rdma_device == DEVICE) == holding for each in receipt.interfaces)
            assert all(bool(each.pool) == holding for each in receipt.interfaces)

    def _check_slots(self, *, restored: bool) -> None:
        """A slot lists exactly the devices of its sandbox; it may be absent if a call failed."""
        ledger, told = self.world.node.ledger, self.world.slots()
        assert told.keys() <= {slot.device for slot in ledger.slots()}
        for slot, interfaces in ledger.slots().items():
            [container] = {key.container for key, each in ledger.receipts.items() if slot in each.slots}
            phases = {each.phase for each in ledger.of_container(container)}
            if phases == {Phase.ATTACHED} and self._is_whole(container):
                nodes = {path for each in interfaces for path in self.world.nodes_of(each)}
                wanted = [nodes | {"/dev/infiniband/rdma_cm"}]
                assert told.get(slot.device) in (wanted if restored else [None, *wanted])

    def _is_whole(self, container: str) -> bool:
        """Report whether a sandbox exists and its VFs are untouched."""
        receipts = self.world.node.ledger.of_container(container)
        refs = {each.vf for receipt in receipts for each in receipt.interfaces}
        return all(self.world.hardware.alive(each.netns) for each in receipts) and not refs & self.tampered

    def _check_book(self) -> None:
        """A lease that no receipt knows would be for ever."""
        recorded = set()
        for key, receipt in self.world.node.ledger.receipts.items():
            recorded |= {("book", key.container, each.ifname) for each in receipt.interfaces}
            if receipt.delegate is not None:
                recorded.add(("main", key.container, key.ifname))
        assert self.world.book.entries.keys() <= recorded


@contextmanager
def new_cluster() -> Iterator[Cluster]:
    """On a machine of its own."""
    with disk() as directory:
        made = Cluster(directory)
        try:
            yield made
        finally:
            made.world.close()
