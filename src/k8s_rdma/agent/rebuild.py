"""A ledger made anew of what kernel and container runtime know, where the old one is lost or corrupt.

Of each attachment the runtime keeps what its ADD was called with (`wire.cni_cache`). What that made of it is
computed again, and the VFs are looked for where they must be: in the pod's namespace, or, when that is gone,
at home with the MAC that the result told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING

from k8s_rdma.agent.calls.add_call import AddCall, pod_of
from k8s_rdma.agent.calls.share import share
from k8s_rdma.agent.calls.wanted import Policy, wanted
from k8s_rdma.agent.plugins.called import called_plugins
from k8s_rdma.core.devices.pod_devices import SlotHeld
from k8s_rdma.core.devices.pools import Pool, in_pools
from k8s_rdma.core.ids import NodeName, PciAddress, pci_address
from k8s_rdma.core.kernel import Kernel
from k8s_rdma.core.ledger import AllocatedInterface, Ledger, Phase, Receipt
from k8s_rdma.core.rebuild import Found, rebuilt_interface
from k8s_rdma.core.request import InterfaceRequest, Request
from k8s_rdma.core.step import NetnsRef, VfRef
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.linux.netns import Namespaces
from k8s_rdma.wire.cni_environment import parse_environment
from k8s_rdma.wire.cni_result import interfaces_in_pod
from k8s_rdma.wire.netconf import decode_netconf

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Set

    from k8s_rdma.core.kernel import Hardware, PfState, Vf
    from k8s_rdma.wire.cni_cache import CachedAttachment

OUR_TYPES = ("k8s-rdma-cni", "rit-k8s-rdma-cni-linux-amd64")
"""What network configurations call our executable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one attachment, or of one VF that is none's. receipt: None when there is none."""

    what: str
    said: str
    receipt: Receipt | None = None
    complete: bool = True


@dataclass(kw_only=True)
class Rebuild:
    """The work for one node; used from one thread.

    cni_path: where its plugins are, `:` between. pools: VFs of exclusive resources.
    slots: what pods hold by kubelet's word of now, by namespace and name.
    rdma_device: of the function at an address, by name, wherever it is; empty for none.
    """

    node: NodeName
    kernel: Kernel
    namespaces: Namespaces
    policy: Policy
    boot_id: str
    cni_path: str
    pools: Sequence[Pool] = ()
    slots: Mapping[tuple[str, str], tuple[SlotHeld, ...]] = field(default_factory=dict)
    rdma_device: Callable[[PciAddress], str] = lambda _: ""
    ledger: Ledger = field(default_factory=Ledger)

    def attachments(self, cached: Iterable[CachedAttachment]) -> Iterator[Outcome]:
        """One after the other, the oldest first, as each gives what those before it left."""
        hardware = in_pools(self.kernel.observe(), self.pools)
        for each in cached:
            what = f"{each.network_name} {each.container_id[:13]} {each.if_name}"
            try:
                outcome = self._attachment(each, what, hardware)
            except K8sRdmaError as error:
                outcome = Outcome(what=what, said=f"not rebuilt: {error}", complete=False)
            if outcome is None:
                continue
            if outcome.receipt is not None:
                self._take(outcome.receipt)
            yield outcome

    def _take(self, receipt: Receipt) -> None:
        """Into the ledger; slots are the newest sandbox's, as kubelet knows pods by name alone."""
        for each in (*self.ledger.losing_slots(receipt), receipt):
            self.ledger = self.ledger.with_receipt(each)

    def strays(self) -> Iterator[Outcome]:
        """VFs that are away from home, and that nothing told of."""
        held = self.ledger.holders()
        for pf in self.kernel.observe().pfs:
            for vf in pf.vfs:
                if vf.netdev is None and VfRef(pf.pci, vf.index) not in held:
                    said = f"away from home, of no attachment that is known: foreign. {vf.unusable}".rstrip()
                    yield Outcome(what=f"VF {vf.index} of PF {pf.name}", said=said, complete=False)

    def _attachment(self, cached: CachedAttachment, what: str, hardware: Hardware) -> Outcome | None:
        stdin = cached.stdin(OUR_TYPES)
        if stdin is None:
            return None
        env = parse_environment(cached.environment(self.cni_path))
        conf = decode_netconf(stdin, strict=False)
        netns = self.namespaces.find(cached.netns)
        call = AddCall(
            env=env,
            netns=netns or NetnsRef(cached.netns, 0),
            conf=conf,
            plugins=called_plugins(stdin, conf, env, beside_others=conf.chained),
            pod=pod_of(env),
            annotations=conf.pod_annotations or {},
            still_waiting=lambda: True,
        )
        asked, doubt = self._asked(call)
        slots = self.slots.get((call.pod.namespace, call.pod.name), ()) if netns else ()
        sandbox = call.sandbox(Request(tuple(asked.values())), tuple(asked))
        names = dict(zip(sandbox.ifnames, asked, strict=True))
        found = self._found(cached, netns, names, hardware)
        interfaces = tuple(_interfaces(found, names, asked, self._taken(call)))
        if not interfaces and sandbox.delegate is None:
            return (
                None
                if not asked
                else Outcome(what=what, said=f"none of its VFs found{doubt}", complete=False)
            )
        receipt = sandbox.receipt(interfaces, phase=Phase.ATTACHED, boot_id=self.boot_id)
        if interfaces:
            interfaces = tuple(map(self._with_its_name, interfaces))
            receipt = replace(receipt, interfaces=interfaces, slots=slots)
        missing = sorted(names.keys() - {each.ifname for each in interfaces})
        return Outcome(
            what=what,
            said=_said(receipt, missing, alive=netns is not None) + doubt,
            receipt=receipt,
            complete=not missing and not doubt,
        )

    def _with_its_name(self, interface: AllocatedInterface) -> AllocatedInterface:
        name = interface.rdma_device or self.rdma_device(pci_address(interface.pci))
        return replace(interface, rdma_device=name)

    def _asked(self, call: AddCall) -> tuple[dict[int, InterfaceRequest], str]:
        """The attachment's part of the pod's request, by its places; and why it is not known.

        Of a device that was named to the attachment nothing is: which of the pod's it was, kubelet knew.
        """
        if call.conf.device_id:
            return {}, ""
        try:
            wants = wanted(call.annotations, uid=call.pod.uid, node=self.node, policy=self.policy)
            entries = share(
                wants.request,
                own=call.conf.own_networks,
                taken=self._taken(call),
                annotations=call.annotations,
            )
            part = wants.part(entries).with_defaults(call.conf.vlan, call.conf.driver)
        except K8sRdmaError as error:
            return {}, f"; what it asked for is not known: {error}"
        return dict(zip(entries, part.request.interfaces, strict=True)), ""

    def _taken(self, call: AddCall) -> set[int]:
        """Places in the pod's request that are taken by other attachments of its sandbox."""
        others = self.ledger.of_container(call.env.container_id)
        return {each.entry for other in others for each in other.interfaces}

    def _found(
        self, cached: CachedAttachment, netns: NetnsRef | None, names: Collection[str], hardware: Hardware
    ) -> dict[str, Found]:
        """The attachment's VFs by the names that its ADD gave them: what a lease is called as well."""
        held = self.ledger.holders()
        free = {
            vf.pci: (pf, vf) for pf in hardware.pfs for vf in pf.vfs if VfRef(pf.pci, vf.index) not in held
        }
        told = {name: each.mac for name, each in interfaces_in_pod(cached.result).items()}
        found: dict[str, Found] = {}

        inside = {} if netns is None else self.kernel.located(netns)

        def take(ifname: str, pci: PciAddress, mac: str) -> None:
            if pci in free and ifname not in found and (ifname in names or not names):
                pf, vf = free.pop(pci)
                cap = inside[pci].max_tx_rate_mbps if pci in inside else 0
                found[ifname] = Found(pf=pf, vf=vf, ifname=ifname, mac=mac, max_tx_rate_mbps=cap)

        for ifname, pci in cached.functions().items():
            take(ifname, PciAddress(pci), told.get(ifname, ""))
        by_mac = {mac: name for name, mac in told.items()}
        for pci, now in inside.items():
            take(now.ifname if now.ifname in names else by_mac.get(now.mac, now.ifname), pci, now.mac)
        for ifname, mac in told.items():
            match = _by_mac(mac, free.values())
            if match is not None:
                take(ifname, match, mac)
        return found


def _interfaces(
    found: Mapping[str, Found],
    names: Mapping[str, int],
    asked: Mapping[int, InterfaceRequest],
    taken: Set[int],
) -> Iterator[AllocatedInterface]:
    """In the order of the request; what was not asked for comes after it."""
    unnumbered = count(max({*asked, *taken}, default=-1) + 1)
    for ifname, each in sorted(found.items(), key=lambda item: names.get(item[0], len(found) + len(names))):
        entry = names.get(ifname)
        wants = None if entry is None else asked[entry]
        yield rebuilt_interface(each, next(unnumbered) if entry is None else entry, wants)


def _by_mac(mac: str, free: Iterable[tuple[PfState, Vf]]) -> PciAddress | None:
    return next((vf.pci for _, vf in free if mac and mac in (vf.mac, vf.admin_mac)), None)


def _said(receipt: Receipt, missing: Collection[str], *, alive: bool) -> str:
    pod = f"pod {receipt.pod.namespace}/{receipt.pod.name}"
    vfs = ", ".join(f"{each.ifname}: VF {each.vf.index} of {each.vf.pf}" for each in receipt.interfaces)
    parts = [f"rebuilt for {pod}: {vfs or 'what its delegate gave'}"]
    if not alive:
        parts.append("its sandbox is gone; the agent ends it when it starts")
    if missing:
        parts.append(f"VFs of {', '.join(missing)} not found, so their addresses stay leased")
    return "; ".join(parts)
