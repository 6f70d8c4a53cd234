"""Moves of VFs and of their RDMA devices into pods' namespaces and back to the host's.

A VF's netdev is located by its PCI address, never by its name, which the pod may change.

RDMA devices move only in exclusive mode, where each namespace has its own; in shared mode every namespace
sees all. Source: Linux `drivers/infiniband/core/device.c` (6.1), `rdma_dev_change_netns`; rdma-system(8).
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from k8s_rdma.core.devices.rdma_devices import NetnsMode
from k8s_rdma.core.kernel import NoSuchVfError
from k8s_rdma.core.step import BringHome, GiveVf, NetnsRef, VfRef
from k8s_rdma.core.types import PciAddress, pci_address
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.discovery.netdevs import own_link, vf_link
from k8s_rdma.linux.netlink.ethtool import Ethtool
from k8s_rdma.linux.netlink.rdma import RdmaNetlink
from k8s_rdma.linux.netlink.rtnl import Link, Rtnl, in_namespace, named
from k8s_rdma.linux.netlink.socket import NetlinkError
from k8s_rdma.linux.netlink.sriov import mac as vf_mac
from k8s_rdma.linux.netlink.sriov import set_vfs
from k8s_rdma.linux.sysfs import USERSPACE_DRIVERS, PciFunction, Sysfs, is_absent
from k8s_rdma.linux.vf.netdev import (
    apply_link_settings,
    describe,
    require_link_settings,
    require_mtu_of_pf,
    restore_netdev,
    with_mac_of_home,
)

if TYPE_CHECKING:
    from k8s_rdma.linux.discovery.netlink_queries import NetlinkQueries
    from k8s_rdma.linux.netns import Namespaces


RETURN_TIMEOUT_S = 10.0
"""Time for the kernel to end an unused namespace: it returns netdevs from a work queue, after grace periods,
one namespace after the other (`cleanup_net`, net/core/net_namespace.c)."""
_POLL_S = 0.02

_ATTEMPTS = 3
"""Attempts for a netdev that is renamed, or appears, while it is read."""


class VfMoves:
    """Applies GiveVf and BringHome steps. It remembers moves, which saves scans and shows a VF's owner."""

    def __init__(
        self,
        *,
        host: HostNamespace,
        namespaces: Namespaces,
        places: VfLocator,
        rdma: VfRdma,
        return_timeout_s: float = RETURN_TIMEOUT_S,
    ) -> None:
        """Work with these; `return_timeout_s` is explained at `RETURN_TIMEOUT_S`."""
        self._rtnl, self._host = host
        self._namespaces = namespaces
        self._places = places
        self._rdma = rdma
        self._return_timeout_s = return_timeout_s
        self._moved: dict[VfRef, _Moved] = {}
        self._awaited: tuple[tuple[NetnsRef, bool] | None, float] = None, 0.0

    def move_to_pod(self, step: GiveVf) -> None:
        """Move a VF into a namespace under a name; one that is there already gets name, MAC and MTU again."""
        pci = self._places.function(step.vf).pci
        with self._namespaces.existing(step.netns) as namespace, Rtnl(namespace) as pod_rtnl:
            link = self._places.at_home(step.vf)
            if link is None:
                link = netdev_of(pci, pod_rtnl, namespace, index=self._index(step.vf, step.netns))
                self._rename(self._present(link, step), step, pod_rtnl)
                self._rdma.move_to_pod(pci, None, namespace, describe(step.vf))
            else:
                step = with_mac_of_home(step, link)
                self._send(link, pci, step, pod_rtnl, namespace)
            found = pod_rtnl.link(step.ifname)
            if found is None or netdev_of(pci, pod_rtnl, namespace, index=found.index) != found:
                msg = f"{describe(step.vf)}: moved to {step.netns.path}, but it is not there as {step.ifname}"
                raise KernelError(msg)
            require_link_settings(found, step)
            self._moved[step.vf] = _Moved(step.netns, found.index)

    def _send(self, link: Link, pci: PciAddress, step: GiveVf, namespace_rtnl: Rtnl, namespace: int) -> None:
        operation = f"{describe(step.vf)}: move to {step.netns.path} as {step.ifname}"
        namespace_rtnl.require_free(step.ifname, operation)
        self._rtnl.change(link.index, f"{operation}: down", up=False)
        if step.mtu is not None:
            require_mtu_of_pf(step, self._places.pf_link(step.vf))
        apply_link_settings(link, step, self._rtnl)
        # An alternative name would keep it from its name in the pod, and from a namespace that has that name.
        self._rtnl.delete_altnames(link, operation)
        self._rdma.move_to_pod(pci, link.index, namespace, operation)
        self._rtnl.change(link.index, operation, in_namespace(namespace), named(step.ifname))

    def bring_home(self, step: BringHome) -> bool:
        """Move a VF back to the host's namespace and restore it, unless it serves another namespace.

        A VF without a netdev, as while it is bound to another driver, needs no move. Returns whether its
        netdev is home now.
        """
        function = self._places.function(step.vf)
        if function.netdevs() is None:
            return False
        pci = function.pci
        away = self._places.at_home(step.vf) is None
        moved = self._moved.get(step.vf)
        if away and moved is not None and moved.netns != step.netns:
            return False
        with self._namespaces.opened(step.netns) as namespace:
            if namespace is not None and not self._fetch(pci, step, namespace, away=away) and moved is None:
                return False
        link = self._await(pci, step, alive=namespace is not None)
        let = None if step.mac is None else partial(self._places.let_have_mac, step.vf)
        restore_netdev(link.index, step.vf, step.home, self._rtnl, let)
        self._moved.pop(step.vf, None)
        return True

    def links_above(self, step: BringHome) -> list[str]:
        """Return the links of the step's namespace that are made on a VF's netdev, which is at home.

        They stay when it moves, and would receive frames of its next holder: VLAN, macvlan and ipvlan delete
        theirs only when it ends (NETDEV_UNREGISTER in `net/8021q/vlan.c`, `drivers/net/macvlan.c`, 6.18).
        """
        link = self._places.at_home(step.vf)
        with self._namespaces.opened(step.netns) as namespace:
            if namespace is None or link is None:
                return []
            with Rtnl(namespace) as pod_rtnl:
                return [above.name for above in pod_rtnl.above(link.index, self._host)]

    def _present(self, link: Link | None, step: GiveVf) -> Link:
        """Require that a VF outside the host's namespace is in the step's; KernelError otherwise."""
        if link is None:
            driver = self._places.function(step.vf).driver()
            place = "it is in another namespace"
            if driver is None or driver in USERSPACE_DRIVERS:
                place = f"{driver or 'no driver'} is bound to it, so it has no netdev"
            msg = f"{describe(step.vf)}: expected in {step.netns.path}, but {place}"
            raise KernelError(msg)
        return link

    def _rename(self, link: Link, step: GiveVf, namespace_rtnl: Rtnl) -> None:
        """Set name, MAC and MTU of a VF that is in the pod's namespace already."""
        if link.name != step.ifname:
            operation = f"{describe(step.vf)}: rename to {step.ifname} in {step.netns.path}"
            namespace_rtnl.delete_altnames(link, operation)
            namespace_rtnl.require_free(step.ifname, operation)
            namespace_rtnl.change(link.index, f"{operation}: down", up=False)
            namespace_rtnl.change(link.index, operation, named(step.ifname))
        apply_link_settings(link, step, namespace_rtnl)

    def _fetch(self, pci: PciAddress, step: BringHome, namespace: int, *, away: bool) -> bool:
        """Move netdev and RDMA device back from a namespace; False when the netdev is in yet another one."""
        operation = f"{describe(step.vf)}: move home from {step.netns.path} as {step.home.name}"
        if not away:
            self._rdma.bring_home(pci, None, namespace, operation)
            return True
        with Rtnl(namespace) as pod_rtnl:
            link = netdev_of(pci, pod_rtnl, namespace, index=self._index(step.vf, step.netns))
            if link is None:
                return False
            self._rtnl.require_free(step.home.name, operation)
            # Its addresses stay behind: the kernel drops them by the move, all at once.
            pod_rtnl.quiesce(link.index, f"{operation}: down")
            # They would move along, and one that is another VF's original name would block its return.
            pod_rtnl.delete_altnames(link, operation)
            self._rdma.bring_home(pci, link.index, namespace, operation)
            pod_rtnl.change(link.index, operation, in_namespace(self._host), named(step.home.name))
        return True

    def _await(self, pci: PciAddress, step: BringHome, *, alive: bool) -> Link:
        """Wait for the VF's netdev and RDMA device to return; KernelError when they do not.

        All VFs of a namespace share one deadline, so that a stuck kernel does not delay the node for each of
        60.
        """
        while True:
            link, elsewhere = self._places.at_home(step.vf), self._rdma.elsewhere(pci)
            if link is not None and not elsewhere:
                return link
            if self._awaited[0] != (step.netns, alive):
                self._awaited = (step.netns, alive), time.monotonic() + self._return_timeout_s
            if time.monotonic() > self._awaited[1]:
                awaited = f"its RDMA device {elsewhere}" if link else "its netdev"
                place = "where it is not" if alive else "which no longer exists"
                msg = (
                    f"{describe(step.vf)}: {awaited} was moved to {step.netns.path}, {place} now, "
                    f"and did not return within {self._return_timeout_s:g} s"
                )
                raise KernelError(msg)
            time.sleep(_POLL_S)

    def _index(self, vf: VfRef, netns: NetnsRef) -> int | None:
        moved = self._moved.get(vf)
        return moved.index if moved is not None and moved.netns == netns else None


@dataclass(frozen=True, slots=True)
class _Moved:
    """Namespace that a VF was moved to, and the index of its netdev there."""

    netns: NetnsRef
    index: int


class HostNamespace(NamedTuple):
    """The host's network namespace: its links, and a descriptor of it."""

    rtnl: Rtnl
    namespace: int


class VfLocator:
    """Finds VFs, and their netdevs in the host's namespace."""

    def __init__(self, host: HostNamespace, sysfs: Sysfs) -> None:
        """Read this sysfs, mounted in the host's namespace."""
        self._rtnl = host.rtnl
        self._sysfs = sysfs

    def function(self, vf: VfRef) -> PciFunction:
        """Return the VF's PCI function. NoSuchVfError, or KernelError when its PF does not exist either."""
        try:
            return PciFunction(
                self._sysfs, pci_address(self._sysfs.target(f"bus/pci/devices/{vf.pf}/virtfn{vf.index}"))
            )
        except FileNotFoundError as error:
            raise self._unknown(vf) from error
        except OSError as error:
            msg = f"{describe(vf)}: cannot be accessed: {error.strerror}"
            raise KernelError(msg) from error

    def at_home(self, vf: VfRef) -> Link | None:
        """Return its netdev in the host's namespace, if it is there.

        KernelError for an unknown VF.
        """
        function = self.function(vf)
        for _ in range(_ATTEMPTS):
            names = function.netdevs()
            if not names:
                return None
            links = {name: link for name in names if (link := self._rtnl.link(name))}
            found = vf_link(function, names, links)
            if found is not None:
                return found
        msg = f"{describe(vf)}: sysfs gives it {', '.join(sorted(names or ()))}, which netlink does not list"
        raise KernelError(msg)

    def pf_link(self, vf: VfRef) -> Link:
        """Return the netdev of its PF. KernelError if that has no netdev here."""
        function = PciFunction(self._sysfs, vf.pf)
        names = function.netdevs() or ()
        links = {name: link for name in names if (link := self._rtnl.link(name))}
        found = own_link(function, names, links)
        if found is None:
            msg = f"{describe(vf)}: that PF has no netdev here"
            raise KernelError(msg)
        return found

    def let_have_mac(self, vf: VfRef, mac: str) -> None:
        """Set this administrative MAC on the PF, so that the VF may use it."""
        operation = f"PF {vf.pf}: MAC for its return"
        set_vfs(self._rtnl, self.pf_link(vf).index, operation, [vf_mac(vf.index, mac)])

    def _unknown(self, vf: VfRef) -> KernelError:
        operation, function = f"{describe(vf)}: unknown", PciFunction(self._sysfs, vf.pf)
        try:
            names, count = function.netdevs(), len(function.vfs())
        except OSError:
            return KernelError(f"{operation}: there is no such PF")
        return NoSuchVfError(f"{operation}: {min(names or ('that PF',))} has {count} VFs")


def netdev_of(
    pci: PciAddress, namespace_rtnl: Rtnl, namespace: int, *, index: int | None = None
) -> Link | None:
    """Return a function's netdev in a namespace (a socket there, and its descriptor), if any.

    index: the last known one; reading all of 60 links for each of 60 VFs would take long.
    """
    if index is not None:
        link = namespace_rtnl.link_at(index)
        if link is not None and _device(link, namespace) == pci:
            return link
    return netdevs_by_device(namespace_rtnl, namespace).get(pci)


def netdevs_by_device(namespace_rtnl: Rtnl, namespace: int) -> dict[str, Link]:
    """Return the functions' netdevs in a namespace (a socket there, and its descriptor).

    IPoIB interfaces of other partitions, whose peer a function's own netdev is, are left out.
    """
    links = sorted(namespace_rtnl.links(), key=lambda link: link.index, reverse=True)
    return {device: link for link in links if not link.peer and (device := _device(link, namespace))}


def _device(link: Link, namespace: int) -> str:
    """Return the device of a link; virtual links have a kind, those of hardware none."""
    if link.device or link.kind:
        return link.device
    with Ethtool(namespace) as ethtool:  # Linux before 5.14 has no IFLA_PARENT_DEV_NAME
        found = ethtool.driver_info(link.name)
    return found.bus_info if found else ""


class VfRdma:
    """Finds and moves the RDMA devices of VFs.

    A namespace that ends returns its RDMA devices before its netdevs: `rdma_dev_net_ops` are registered after
    `default_device_ops`, and exit in reverse order.
    """

    def __init__(self, *, queries: NetlinkQueries, sysfs: Sysfs, host: int) -> None:
        """Work with these, all of the host's namespace; `host` is its descriptor."""
        self._queries = queries
        self._sysfs = sysfs
        self._host = host

    def move_to_pod(self, pci: PciAddress, netdev: int | None, namespace: int, operation: str) -> None:
        """Move a VF's RDMA device from the host's namespace into another (a descriptor).

        netdev: the index of the VF's netdev if that is in the host's namespace as well.
        """
        host_rdma = self._exclusive()
        if host_rdma is not None:
            _move(self._devices_of(pci, netdev, host_rdma), host_rdma, namespace, operation)

    def bring_home(self, pci: PciAddress, netdev: int | None, namespace: int, operation: str) -> None:
        """Move a VF's RDMA device from that namespace to the host's; `netdev` is an index there."""
        if self._exclusive() is not None:
            with RdmaNetlink(namespace) as pod_rdma:
                _move(self._devices_of(pci, netdev, pod_rdma), pod_rdma, self._host, operation)

    def restore_name(self, pci: PciAddress, name: str, operation: str) -> None:
        """Give a VF's RDMA device in the host's namespace a name, unless it has it; a refusal leaves its own.

        A process with CAP_NET_ADMIN may have renamed it (`rdma dev set`).
        """
        host_rdma, names = self._queries.rdma(), self.names(pci)
        if host_rdma is None or not name or len(names) != 1 or names == {name}:
            return
        [present] = names
        index = host_rdma.indexes().get(present)
        if index is not None:
            with suppress(NetlinkError):
                host_rdma.rename(index, name, operation)

    def counters(self, pci: PciAddress, netdev: int | None, namespace: int) -> dict[str, int]:
        """Return the `hw_counters` of a VF's RDMA device in that namespace; `netdev` is an index there."""
        if self._queries.rdma() is None:
            return {}
        with RdmaNetlink(namespace) as pod_rdma:
            for index in self._devices_of(pci, netdev, pod_rdma).values():
                return pod_rdma.hw_counters(index)
        return {}

    def elsewhere(self, pci: PciAddress) -> str:
        """Return the name of the VF's RDMA device if it is in another namespace; empty otherwise."""
        if self._exclusive() is None:
            return ""
        names = self.names(pci)
        return next((name for name in sorted(names) if not self._is_present(name)), "")

    def _exclusive(self) -> RdmaNetlink | None:
        host_rdma = self._queries.rdma()
        return host_rdma if host_rdma is not None and host_rdma.netns_mode() is NetnsMode.EXCLUSIVE else None

    def _devices_of(self, pci: PciAddress, netdev: int | None, rdma: RdmaNetlink) -> dict[str, int]:
        """Return name and index of the VF's devices among those that a namespace sees."""
        names = self.names(pci)
        if names:
            return {name: index for name, index in rdma.indexes().items() if name in names}
        if netdev is None:
            return {}
        # Soft devices have no PCI function, and without ib_uverbs sysfs shows none of them.
        return {
            device.name: device.index
            for device in rdma.devices()
            if any(port.netdev_index == netdev for port in device.ports)
        }

    def names(self, pci: PciAddress) -> set[str]:
        """Return the names of a function's RDMA devices, in other namespaces by their character devices."""
        function = f"bus/pci/devices/{pci}"
        names = set(self._sysfs.names_if_any(f"{function}/infiniband") or ())
        for verbs in self._sysfs.names_if_any(f"{function}/infiniband_verbs") or ():
            name = self._sysfs.value_if_any(f"{function}/infiniband_verbs/{verbs}/ibdev")
            if name:
                names.add(name)
        return names

    def _is_present(self, name: str) -> bool:
        try:
            self._sysfs.names(f"class/infiniband/{name}")
        except OSError as error:
            if is_absent(error):
                return False
            raise
        return True


def _move(devices: dict[str, int], rdma: RdmaNetlink, namespace: int, operation: str) -> None:
    for name, index in devices.items():
        rdma.move(index, namespace, f"{operation}: RDMA device {name}")
