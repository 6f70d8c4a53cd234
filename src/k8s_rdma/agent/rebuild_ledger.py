"""`k8s-rdma agent --rebuild-ledger`: makes a new ledger from kernel and runtime, keeps the old file.

The runtime caches the call of each attachment's ADD (`wire.conflist`). The rebuild computes the outcome of
that call again, and searches the VFs in the pod's namespace or, when that is gone, in the host's with the MAC
that the result reported.

An interface of a lost receipt is made from the kernel's state and the pod's request. Prepared
ResourceClaims are in the markers of their pods until a reboot, after which kubelet has claims prepared anew.

The home of a VF before its pod is unknown. It becomes that of a free VF of the same PF: named after the PF,
with the MAC that the PF has for it.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k8s_rdma.agent.cni.add_call import AddCall, pod_of
from k8s_rdma.agent.cni.grant import Policy, read_grant, resolve, slots_of_pod
from k8s_rdma.agent.cni.kubelet_devices import HeldDevices, PodDeviceLookup
from k8s_rdma.agent.cni.networks import interfaces_of_network
from k8s_rdma.agent.ledger_store import CLAIMS_DIRECTORY, ClaimMarkers, DeferredDeletes
from k8s_rdma.agent.main import BOOT_ID, open_deferred_deletes, open_kernel, open_pod_devices
from k8s_rdma.agent.plugins.called_plugins import called_plugins
from k8s_rdma.config.agent import AgentConfig, load_device_plugin
from k8s_rdma.config.bounded_files import read_found_file
from k8s_rdma.config.namespace_policies import policies_of
from k8s_rdma.config.placement_keys import agent_keys
from k8s_rdma.core.allocation import is_free
from k8s_rdma.core.claims import with_uses
from k8s_rdma.core.devices.pools import Pool, in_pools
from k8s_rdma.core.kernel import Hardware, Kernel, PfState, Vf, present_config
from k8s_rdma.core.ledger import AllocatedInterface, Ledger, LedgerClaim, Phase, Receipt
from k8s_rdma.core.macs import NO_MAC
from k8s_rdma.core.node_paths import CNI_SOCKET
from k8s_rdma.core.options import NO_OPTIONS
from k8s_rdma.core.pf_selection import PfRule
from k8s_rdma.core.programming import programmed
from k8s_rdma.core.request import InterfaceRequest, Request
from k8s_rdma.core.step import NetnsRef, VfConfig, VfHome, VfRef, Vlan
from k8s_rdma.core.types import Enforce, NodeName, PciAddress, PodUid, VfDriver, pci_address
from k8s_rdma.errors import K8sRdmaError, LedgerError, MalformedError, printable
from k8s_rdma.linux.netns import Namespaces
from k8s_rdma.linux.rdma.character_devices import PodNodes
from k8s_rdma.linux.receipts import CorruptLedgerError, Receipts
from k8s_rdma.wire.cached_attachment import CachedAttachment, decode_cached
from k8s_rdma.wire.cni_request import decode_netconf, parse_environment
from k8s_rdma.wire.previous_result import interfaces_in_pod

if TYPE_CHECKING:
    from k8s_rdma.core.devices.pod_devices import SlotInUse


MAX_NAME = 15
"""The limit of an interface's name: `IFNAMSIZ` without its end."""
_DEFAULTS: dict[str, Any] = {
    "vlan": 0,
    "qos": 0,
    "vlan_proto": "N/A",
    "trust": "OFF",
    "spoof_check": "ON",
    "link_state": "Follow",
}

OUR_TYPES = ("k8s-rdma-cni", "rit-k8s-rdma-cni-linux-amd64")
"""The names of our executable in network configurations."""


def rebuild_ledger(config: AgentConfig) -> tuple[RebuiltAttachment, ...]:
    """Make a new ledger of the state in kernel and runtime. Returns the outcome for each attachment.

    LedgerError when the ledger is in order, or an agent runs; then the ledger is as before.
    """
    _require_no_agent(Path(config.run_dir) / CNI_SOCKET)
    ledger = Path(config.state_dir) / "ledger.db"
    _require_spoilt(ledger)
    namespaces = Namespaces(Path(config.host_root))
    caches = _caches(config, namespaces)
    keys, plugin = agent_keys(config.placement_key_file), load_device_plugin(config)
    unreadable: list[RebuiltAttachment] = []
    devices = asyncio.run(_devices(open_pod_devices(config, plugin), unreadable))
    with closing(open_kernel(config, namespaces, Ledger())) as kernel:
        rebuild = Rebuild(
            node=NodeName(config.node),
            kernel=kernel,
            namespaces=namespaces,
            policy=Policy(
                keys=keys,
                strict=config.strict,
                allow_unplaced=True,
                policies=policies_of(config.policy_file),
                memlock=config.memlock_bytes(),
            ),
            boot_id=BOOT_ID.read_text().strip(),
            cni_path=config.cni_path,
            pools=plugin.pools() if plugin else (),
            rules=config.hardware.to_core().rules,
            devices=devices,
            rdma_device=PodNodes().rdma_device,
        )
        outcomes = (
            *rebuild.claims(ClaimMarkers(Path(config.run_dir) / CLAIMS_DIRECTORY)),
            *rebuild.attachments(_cached(caches, unreadable)),
            *rebuild.strays(),
        )
    _replace(ledger, rebuild.ledger)
    return (*outcomes, *_ended(open_deferred_deletes(config), rebuild.ledger), *unreadable)


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltAttachment:
    """The outcome for one attachment, or for one VF without an attachment."""

    subject: str
    message: str
    receipt: Receipt | None = None
    complete: bool = True


@dataclass(kw_only=True)
class Rebuild:
    """Rebuilds the ledger of one node; used from one thread.

    cni_path: where its plugins are, `:` between. pools: VFs of exclusive resources. rules: which PFs are for
        ResourceClaims.
    devices: the current devices of pods by kubelet, by namespace and name.
    rdma_device: of the function at an address, by name, wherever it is; empty if it has no such device.
    """

    node: NodeName
    kernel: Kernel
    namespaces: Namespaces
    policy: Policy
    boot_id: str
    cni_path: str
    pools: Sequence[Pool] = ()
    rules: Sequence[PfRule] = ()
    devices: Mapping[tuple[str, str], HeldDevices] = field(default_factory=dict)
    rdma_device: Callable[[PciAddress], str] = lambda _: ""
    ledger: Ledger = field(default_factory=Ledger)

    def claims(self, markers: ClaimMarkers) -> Iterator[RebuiltAttachment]:
        """Restore the prepared ResourceClaims, before the attachments of their pods."""
        for pod in markers.pods():
            try:
                mark = markers.read(pod)
                for claim in mark.claims if mark else ():
                    self.ledger = self.ledger.with_claim(claim)
                    yield RebuiltAttachment(
                        subject=f"ResourceClaim {claim.namespace}/{claim.name}",
                        message=_prepared_for(claim),
                    )
                why = "" if mark is None or mark.claims or mark.shared else "its marker does not name them"
            except LedgerError as error:
                why = error.message
            if why:
                message = f"its prepared claims are lost, so it starts no more; delete it: {why}"
                yield RebuiltAttachment(subject=f"pod {pod}", message=message, complete=False)

    def attachments(self, cached: Iterable[CachedAttachment]) -> Iterator[RebuiltAttachment]:
        """Rebuild attachments one by one, the oldest first: each takes entries that earlier ones left."""
        hardware = with_uses(in_pools(self.kernel.observe(), self.pools), self.rules, self.ledger)
        for add in cached:
            subject = f"{add.network_name} {add.container_id[:13]} {add.if_name}"
            try:
                outcome = self._attachment(add, subject, hardware)
                if outcome is not None and outcome.receipt is not None:
                    self._store(outcome.receipt)
            except K8sRdmaError as error:
                outcome = RebuiltAttachment(subject=subject, message=f"not rebuilt: {error}", complete=False)
            if outcome is not None:
                yield outcome

    def _store(self, receipt: Receipt) -> None:
        """Add a receipt; older sandboxes lose its slots, since kubelet knows pods by name alone."""
        ledger = self.ledger
        for changed in (*ledger.losing_slots(receipt), receipt):
            ledger = ledger.with_receipt(changed)
        self.ledger = ledger

    def strays(self) -> Iterator[RebuiltAttachment]:
        """Find VFs that are away from home and belong to no known attachment."""
        holders = self.ledger.holders()
        for pf in self.kernel.observe().pfs:
            for vf in pf.vfs:
                if vf.netdev is None and VfRef(pf.pci, vf.index) not in holders:
                    outcome = (
                        f"away from home, of no attachment that is known: foreign. {vf.unusable}".rstrip()
                    )
                    yield RebuiltAttachment(
                        subject=f"VF {vf.index} of PF {pf.name}", message=outcome, complete=False
                    )

    def _attachment(
        self, cached: CachedAttachment, subject: str, hardware: Hardware
    ) -> RebuiltAttachment | None:
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
            plugins=called_plugins(stdin, conf, env, chained=conf.chained),
            pod=pod_of(env),
            annotations=conf.pod_annotations or {},
            still_waiting=lambda: True,
        )
        devices = self.devices.get((call.pod.namespace, call.pod.name)) if netns else None
        pod_request, generation, doubt = self._requested(call, devices)
        sandbox = call.sandbox(Request(tuple(pod_request.values())), tuple(pod_request))
        names = dict(zip(sandbox.ifnames, pod_request, strict=True))
        free = self._free_vfs(call.pod.uid, hardware)
        found = self._observed_interfaces(cached, netns, names, free)
        interfaces = tuple(_interfaces(found, names, pod_request, self._attached_entries(call)))
        if not interfaces and sandbox.delegate is None:
            return (
                None
                if not pod_request
                else RebuiltAttachment(
                    subject=subject, message=f"none of its VFs found{doubt}", complete=False
                )
            )
        receipt = sandbox.receipt(interfaces, phase=Phase.ATTACHED, boot_id=self.boot_id)
        if interfaces:
            interfaces = tuple(map(self._with_its_name, interfaces))
            receipt = replace(
                receipt,
                interfaces=interfaces,
                slots=self._slots_of(call, devices),
                generation=generation,
            )
        missing = sorted(names.keys() - {interface.ifname for interface in interfaces})
        return RebuiltAttachment(
            subject=subject,
            message=_describe(receipt, missing, alive=netns is not None) + doubt,
            receipt=receipt,
            complete=not missing and not doubt,
        )

    def _slots_of(self, call: AddCall, devices: HeldDevices | None) -> tuple[SlotInUse, ...]:
        slots = devices.slots if devices else ()
        policy = self.policy.policies().policy_for(call.pod.namespace)
        try:
            return slots_of_pod(slots, call.annotations, policy, self.policy.memlock)
        except MalformedError:
            return slots  # edited since: the former text is unknown

    def _with_its_name(self, interface: AllocatedInterface) -> AllocatedInterface:
        name = interface.rdma_device or self.rdma_device(pci_address(interface.pci))
        return replace(interface, rdma_device=name)

    def _requested(
        self, call: AddCall, devices: HeldDevices | None
    ) -> tuple[dict[int, InterfaceRequest], int, str]:
        """Read the attachment's part of the pod's request, by entry, and its placement's generation then.

        Besides, return a clause why it is unknown. The part is empty if the network configuration named a
        device: only kubelet knew its entry. The agent follows changes of rates since then anew.
        """
        if call.conf.device_id:
            return {}, 0, ""
        try:
            requested = read_grant(call.annotations, uid=call.pod.uid, node=self.node, policy=self.policy)
            grant = resolve(
                requested.with_gpus_of_then(devices, call.pod),
                devices=None,
                claims=self.ledger.prepared_for(call.pod.uid),
                hardware=Hardware(()),
            )
            entries = interfaces_of_network(
                grant.request,
                own=call.conf.own_networks,
                attached=self._attached_entries(call),
                annotations=call.annotations,
            )
            part = grant.part(entries).with_defaults(call.conf.vlan, call.conf.driver)
        except K8sRdmaError as error:
            return {}, 0, f"; its request is unknown: {error}"
        generation = part.promised.generation if part.promised else 0
        return dict(zip(entries, part.request.interfaces, strict=True)), generation, ""

    def _attached_entries(self, call: AddCall) -> set[int]:
        """Collect the entries of the pod's request that other attachments of its sandbox have."""
        receipts = self.ledger.of_container(call.env.container_id)
        return {interface.entry for receipt in receipts for interface in receipt.interfaces}

    def _free_vfs(self, pod: PodUid, hardware: Hardware) -> dict[PciAddress, tuple[PfState, Vf]]:
        """The VFs that a pod may have: a runtime's cache also has attachments whose VFs went to others."""
        in_use = {vf for vf, claim in self.ledger.prepared_vfs().items() if claim.pod.uid != pod}
        in_use |= self.ledger.holders().keys()
        return {
            vf.pci: (pf, vf) for pf in hardware.pfs for vf in pf.vfs if VfRef(pf.pci, vf.index) not in in_use
        }

    def _observed_interfaces(
        self,
        cached: CachedAttachment,
        netns: NetnsRef | None,
        names: Collection[str],
        free: dict[PciAddress, tuple[PfState, Vf]],
    ) -> dict[str, ObservedInterface]:
        """Find the attachment's VFs by the interface names of its ADD, which its leases have as well.

        free: the VFs that it may have; loses those that are found.
        """
        macs = {name: reported.mac for name, reported in interfaces_in_pod(cached.result).items()}
        found: dict[str, ObservedInterface] = {}

        inside = {} if netns is None else self.kernel.located(netns)

        def add_interface(ifname: str, pci: PciAddress, mac: str) -> None:
            if pci in free and ifname not in found and (ifname in names or not names):
                pf, vf = free.pop(pci)
                cap = inside[pci].max_tx_rate_mbps if pci in inside else 0
                found[ifname] = ObservedInterface(pf=pf, vf=vf, ifname=ifname, mac=mac, max_tx_rate_mbps=cap)

        for ifname, pci in cached.functions().items():
            add_interface(ifname, PciAddress(pci), macs.get(ifname, ""))
        by_mac = {mac: name for name, mac in macs.items()}
        for pci, now in inside.items():
            add_interface(
                now.ifname if now.ifname in names else by_mac.get(now.mac, now.ifname), pci, now.mac
            )
        for ifname, mac in macs.items():
            match = _by_mac(mac, free.values())
            if match is not None:
                add_interface(ifname, match, mac)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedInterface:
    """A VF that a pod has.

    mac: its netdev's there; empty when it is not known. max_tx_rate_mbps: what `core.step.CapInterface` set
        there; 0 for nothing.
    """

    pf: PfState
    vf: Vf
    ifname: str
    mac: str = ""
    max_tx_rate_mbps: int = 0


def rebuilt_interface(
    observed: ObservedInterface, entry: int, request: InterfaceRequest | None
) -> AllocatedInterface:
    """The interface of a receipt whose end leaves the VF as it should be.

    entry: its place in the pod's request. request: that; None when it is not known, and then what is
        programmed counts as asked for.
    """
    pf, vf = observed.pf, observed.vf
    like = next(filter(is_free, pf.vfs), replace(vf, **_DEFAULTS))
    config, previous = _differences(vf, replace(like, index=vf.index))
    options = request.options if request else NO_OPTIONS
    by_program = vf.driver == VfDriver.VFIO_PCI
    by_software = 0 if by_program else _software_cap(observed, request)
    return AllocatedInterface(
        vf=VfRef(pf.pci, vf.index),
        pci=vf.pci,
        ifname=observed.ifname,
        min_tx_rate_mbps=request.min_tx_rate_mbps if request else vf.min_tx_rate_mbps,
        max_tx_rate_mbps=request.max_tx_rate_mbps if request else vf.max_tx_rate_mbps or by_software,
        home=VfHome(name=_name(pf, vf), mac=_mac(observed, request), mtu=like.mtu),
        set_min_tx_rate_mbps=vf.min_tx_rate_mbps,
        set_max_tx_rate_mbps=vf.max_tx_rate_mbps,
        software_max_tx_rate_mbps=by_software,
        entry=entry,
        enforce=request.enforce if request else Enforce.AUTO,
        options=replace(options, driver=VfDriver.VFIO_PCI if by_program else VfDriver.KERNEL),
        config=config,
        previous=previous,
        kernel_driver=like.driver if by_program else vf.driver,
        rdma_device=vf.rdma_device or "",
        pool=vf.pool,
    )


def _software_cap(observed: ObservedInterface, request: InterfaceRequest | None) -> int:
    """Return the requested cap of software, even if the pod removed it; 0 if the hardware has one."""
    if observed.vf.max_tx_rate_mbps:
        return 0
    pf = Hardware((observed.pf,)).inventory(NodeName("")).pf(observed.pf.pci)
    if request is None or pf is None:
        return observed.max_tx_rate_mbps
    is_capped = observed.max_tx_rate_mbps > 0
    return request.max_tx_rate_mbps if is_capped else programmed(pf, request).software_max_tx_rate_mbps


def _name(pf: PfState, vf: Vf) -> str:
    """Name a VF as systemd 239 does, and `k8s-rdma init` by default; or after its PCI address."""
    name = vf.netdev or f"{pf.name}v{vf.index}"
    return name if len(name) <= MAX_NAME else "vf" + vf.pci.replace(":", "").replace(".", "")


def _mac(observed: ObservedInterface, request: InterfaceRequest | None) -> str:
    """The PF's, unless that is the pod's own choice or none; then the one that it has."""
    own_choice = request is not None and request.options.mac is not None
    is_assigned = observed.vf.admin_mac not in ("", NO_MAC) and not own_choice
    return (observed.vf.admin_mac if is_assigned else observed.mac) or observed.vf.mac


def _differences(vf: Vf, like: Vf) -> tuple[VfConfig | None, VfConfig | None]:
    """Compare a VF's PF settings with those of a free VF: the settings that differ, and the free VF's."""
    every = VfConfig(index=vf.index, vlan=Vlan(0), trust=False, spoof_check=False)
    present, expected = present_config(vf, every), present_config(like, every)
    differ = {
        name: (getattr(present, name), getattr(expected, name))
        for name in ("vlan", "trust", "spoof_check")
        if getattr(present, name) != getattr(expected, name)
    }
    if not differ:
        return None, None
    nothing = VfConfig(index=vf.index)
    return (
        replace(nothing, **{name: old for name, (old, _) in differ.items()}),
        replace(nothing, **{name: new for name, (_, new) in differ.items()}),
    )


def _interfaces(
    found: Mapping[str, ObservedInterface],
    names: Mapping[str, int],
    requested: Mapping[int, InterfaceRequest],
    attached: Set[int],
) -> Iterator[AllocatedInterface]:
    """Turn VFs into interfaces in the order of the request; unrequested ones come last."""
    unnumbered = count(max({*requested, *attached}, default=-1) + 1)
    for ifname, interface in sorted(
        found.items(), key=lambda item: names.get(item[0], len(found) + len(names))
    ):
        entry = names.get(ifname)
        pod_request = None if entry is None else requested[entry]
        yield rebuilt_interface(interface, next(unnumbered) if entry is None else entry, pod_request)


def _by_mac(mac: str, free: Iterable[tuple[PfState, Vf]]) -> PciAddress | None:
    return next((vf.pci for _, vf in free if mac and mac in (vf.mac, vf.admin_mac)), None)


def _prepared_for(claim: LedgerClaim) -> str:
    vfs = (
        f"request {interface.request}: VF {interface.vf.index} of {interface.vf.pf}"
        for interface in claim.interfaces
    )
    return f"prepared for pod {claim.pod.full_name}: {', '.join(vfs)}"


def _describe(receipt: Receipt, missing: Collection[str], *, alive: bool) -> str:
    pod = f"pod {receipt.pod.full_name}"
    vfs = ", ".join(
        f"{interface.ifname}: VF {interface.vf.index} of {interface.vf.pf}"
        for interface in receipt.interfaces
    )
    parts = [f"rebuilt for {pod}: {vfs or 'the interface of its delegate'}"]
    if not alive:
        parts.append("its sandbox is gone; the agent ends it when it starts")
    if missing:
        parts.append(f"VFs of {', '.join(missing)} not found, so their addresses stay leased")
    return "; ".join(parts)


def _ended(deferred_deletes: DeferredDeletes, rebuilt: Ledger) -> Iterator[RebuiltAttachment]:
    """List attachments with a deferred DEL whose cache the runtime has removed."""
    for name in sorted(deferred_deletes.files_of_others(rebuilt.receipts)):
        outcome = "ended while no agent answered; its interfaces are unknown, so its addresses stay leased"
        yield RebuiltAttachment(subject=printable(name), message=outcome, complete=False)


async def _devices(
    pod_devices: PodDeviceLookup, unreadable: list[RebuiltAttachment]
) -> Mapping[tuple[str, str], HeldDevices]:
    """Look up the devices of pods; empty if kubelet does not answer, which is reported."""
    try:
        return await pod_devices.all_devices()
    except K8sRdmaError as error:
        note = f"unknown, so that running containers' slots are not restored: {error}"
        unreadable.append(RebuiltAttachment(subject="slots", message=note, complete=False))
        return {}
    finally:
        await pod_devices.close()


def _require_no_agent(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as agent:
        agent.settimeout(1)
        with suppress(FileNotFoundError, ConnectionRefusedError):
            agent.connect(str(path))
            msg = f"an agent is running: it listens at {path}; stop it first"
            raise LedgerError(msg)


def _require_spoilt(ledger: Path) -> None:
    """Raise LedgerError unless the file is lost, empty or corrupt; a newer program's is in order."""
    if not ledger.exists() or not ledger.stat().st_size:
        return
    with suppress(CorruptLedgerError), closing(Receipts(ledger)) as receipts:
        count = len(receipts.load().receipts)
        msg = f"ledger {ledger}: in order, with {count} attachments; start the agent"
        raise LedgerError(msg)


def _caches(config: AgentConfig, namespaces: Namespaces) -> tuple[Path, ...]:
    """Find the cache directories. LedgerError without any: an empty ledger would count as in order."""
    named = [namespaces.on_host(cache) for cache in config.cni_cache_dirs]
    if directories := tuple(cache for cache in named if cache.is_dir()):
        return directories
    msg = (
        f"cniCacheDirs: none is there ({', '.join(map(str, named))}), so no attachment would be found; "
        "name the container runtime's (is the node's root file system at hostRoot?), or create an empty one "
        "if no pod runs here"
    )
    raise LedgerError(msg)


def _cached(directories: Iterable[Path], unreadable: list[RebuiltAttachment]) -> Iterator[CachedAttachment]:
    """Read the runtime's attachments, the oldest first; unreadable files are reported and skipped."""
    files = [path for directory in directories for path in directory.iterdir()]
    for path in sorted(files, key=lambda path: path.stat().st_mtime_ns):
        try:
            yield decode_cached(read_found_file(path))
        except (MalformedError, OSError) as error:
            unreadable.append(
                RebuiltAttachment(subject=path.name, message=f"cannot be read: {error}", complete=False)
            )


def _replace(ledger: Path, rebuilt: Ledger) -> None:
    """Replace the ledger's file: the new one is complete before the old one moves."""
    draft = ledger.with_name("ledger.db.rebuilt")
    for suffix in ("", "-wal", "-shm"):
        draft.with_name(draft.name + suffix).unlink(missing_ok=True)
    with closing(Receipts(draft)) as receipts:
        for receipt in rebuilt.receipts.values():
            receipts.put(receipt)
        for claim in rebuilt.claims.values():
            receipts.put_claim(claim)
    aside = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    for suffix in ("-wal", "-shm", ""):
        old = ledger.with_name(ledger.name + suffix)
        if old.exists():
            old.rename(ledger.with_name(f"ledger.db.spoilt-{aside}{suffix}"))
    draft.rename(ledger)
