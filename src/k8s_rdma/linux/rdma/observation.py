"""Observation of a machine's RDMA devices: those present, the function and PF of each, their faults.

RDMA netlink lists the devices of this namespace, sysfs shows their functions; each function is read once an
observation.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from k8s_rdma.core.devices.rdma_devices import CharacterDevice, NetnsMode, NodeKind, RdmaDevice
from k8s_rdma.core.types import LinkType, PciAddress, pci_address
from k8s_rdma.errors import printable
from k8s_rdma.linux.discovery.netdevs import own_link, vf_link
from k8s_rdma.linux.netlink.queries import USABLE_PORT_STATES, RdmaPort
from k8s_rdma.linux.netlink.queries import RdmaNetlinkDevice as ListedDevice
from k8s_rdma.linux.netlink.rtnl import INFINIBAND, Link
from k8s_rdma.linux.rdma.character_devices import DeviceNodes, character_devices
from k8s_rdma.linux.sysfs import USERSPACE_DRIVERS, PciFunction, Sysfs, is_absent

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")

_CLASS = "class/infiniband"
_VERBS = "class/infiniband_verbs"


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionFacts:
    """Properties of a PCI function. pf: a VF's PF, None for others. vf: a VF's index, None for others.

    driver: empty for none.
    link: its netdev, if that is in this namespace.
    """

    pci: PciAddress
    vendor: str
    driver: str
    numa_node: int | None
    pcie_path: tuple[PciAddress, ...]
    link: Link | None
    pf: FunctionFacts | None = None
    vf: int | None = None

    @property
    def physical(self) -> FunctionFacts:
        """Return the function's PF, or itself."""
        return self.pf or self

    @property
    def link_type(self) -> LinkType:
        """Return the link layer of the PF's port, by its netdev."""
        link = self.physical.link
        return LinkType.INFINIBAND if link and link.type == INFINIBAND else LinkType.ETHERNET


@dataclass(slots=True)
class Functions:
    """PCI functions read in one observation. links: by name. Every failure to read one is an OSError."""

    sysfs: Sysfs
    links: Mapping[str, Link]
    _read: dict[PciAddress, FunctionFacts | None] = field(default_factory=dict)
    _vfs: dict[PciAddress, dict[PciAddress, int]] = field(default_factory=dict)

    def facts_of(self, pci: PciAddress) -> FunctionFacts | None:
        """Return the function at this address, if there is one."""
        if pci not in self._read:
            self._read[pci] = self._facts(pci)
        return self._read[pci]

    def of_device(self, path: str) -> FunctionFacts | None:
        """Return the function of a device in a class (`class/infiniband/mlx5_0`), if there is one."""
        target = self.sysfs.target_if_any(f"{path}/device") or ""
        return self.facts_of(pci_address(target)) if _ADDRESS.fullmatch(target) else None

    def of_netdev(self, link: Link) -> FunctionFacts | None:
        """Return the function of a netdev, if it has one."""
        if _ADDRESS.fullmatch(link.device):
            return self.facts_of(pci_address(link.device))
        return self.of_device(f"class/net/{link.name}")

    def _facts(self, pci: PciAddress) -> FunctionFacts | None:
        function = PciFunction(self.sysfs, pci)
        if not function.exists():
            return None
        pf, netdevs = function.pf(), function.netdevs() or ()
        return FunctionFacts(
            pci=pci,
            vendor=function.vendor(),
            driver=function.driver() or "",
            numa_node=function.numa_node(),
            pcie_path=function.pcie_path(),
            link=(vf_link if pf else own_link)(function, netdevs, self.links),
            pf=self.facts_of(pf) if pf else None,
            vf=self._index(pf, pci) if pf else None,
        )

    def _index(self, pf: PciAddress, vf: PciAddress) -> int | None:
        if pf not in self._vfs:
            vfs = PciFunction(self.sysfs, pf).vfs()
            self._vfs[pf] = {pci: index for index, pci in vfs.items()}
        return self._vfs[pf].get(vf)


def function_faults(function: FunctionFacts | None, pci: str = "") -> tuple[str, ...]:
    """Return the faults of a device's function; `pci` is the former one's address if it no longer exists."""
    if function is None:
        return (f"its PCI function {pci} no longer exists",) if pci else ()
    return () if function.driver else (f"no driver is bound to {function.pci}",)


def node_faults(
    devices: Sequence[CharacterDevice], nodes: DeviceNodes
) -> Mapping[CharacterDevice | None, str]:
    """Return the faults of character devices, one sentence each; the key None is for a missing `uverbs`."""
    faults: dict[CharacterDevice | None, str] = {
        device: fault for device in devices if (fault := nodes.fault(device))
    }
    if not any(device.kind is NodeKind.UVERBS for device in devices):
        faults[None] = "it has no uverbs device (is the kernel module ib_uverbs loaded?)"
    return faults


def port_faults(
    ports: Sequence[RdmaPort], links: Mapping[int, Link], own: Link | None, link_type: LinkType
) -> tuple[str, ...]:
    """Return the reasons why all of a device's ports are unusable; empty if one is usable.

    links: by index.
    own: its function's netdev, used where netlink reports none for a port. The netdev of an InfiniBand port
        (IPoIB) does not count.
    """
    faults: list[str] = []
    for port in ports:
        link = own if port.netdev_index is None else links.get(port.netdev_index)
        found = tuple(_port_faults(port, link if link_type is LinkType.ETHERNET else None))
        if not found:
            return ()
        faults += found
    return tuple(faults or ["it has no port"])


def _port_faults(port: RdmaPort, link: Link | None) -> Iterator[str]:
    if port.state not in USABLE_PORT_STATES:
        yield f"port {port.number} is {port.state}, not ACTIVE"
    yield from link_faults(link)


def link_faults(link: Link | None) -> tuple[str, ...]:
    """Return the faults of a netdev."""
    if link is None or (link.is_up and link.carrier):
        return ()
    return (f"netdev {link.name} {'has no carrier' if link.is_up else 'is set down'}",)


class RdmaQueries(Protocol):
    """The queries of `linux.netlink.queries.Queries` used here, and the mode; KernelError on failure."""

    def links(self) -> Sequence[Link]:
        """Return all netdevs of the host's namespace."""
        ...

    def rdma_devices(self) -> Sequence[ListedDevice]:
        """Return all RDMA devices of the host's namespace; empty if the kernel has no RDMA."""
        ...

    def netns_mode(self) -> NetnsMode | None:
        """Return the mode of RDMA devices in namespaces, if the kernel has RDMA."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PresentDevice:
    """An RDMA device in this namespace. device: its faults are those of its function and its nodes.

    characters: all its character devices, with or without nodes in `/dev`.
    ports: by number.
    port_faults: reasons why its ports are unusable at present.
    uplink_faults: those of its PF's netdev.
    vf_set_down: whether its netdev is that of an idle VF that is set down, which is not a fault.
    """

    device: RdmaDevice
    characters: tuple[CharacterDevice, ...] = ()
    ports: tuple[int, ...] = ()
    port_faults: tuple[str, ...] = ()
    uplink_faults: tuple[str, ...] = ()
    vf_set_down: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AwayDevice:
    """An RDMA device outside this namespace. device: properties and faults of its function.

    elsewhere: whether it exists: it is in another namespace, as its character devices show, or its function
        is bound to a driver that passes it to a program.
    is_listed: whether its function exists.
    """

    device: RdmaDevice
    elsewhere: bool
    is_listed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaSnapshot:
    """Result of an observation. unreadable: errors by device name; "" for a device without a valid name."""

    present: Mapping[str, PresentDevice] = field(default_factory=dict)
    away: Mapping[str, AwayDevice] = field(default_factory=dict)
    netns_mode: NetnsMode | None = None
    rdma_cm: bool = False
    directory: bool = False
    unreadable: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Query:
    """Answers of netlink in one observation."""

    mode: NetnsMode | None
    devices: tuple[ListedDevice, ...]
    links: tuple[Link, ...]

    def of_interest(self) -> object:
        """Return the answers without links of other devices; before Linux 5.14 no link reports its device."""
        ports = {port.netdev_index for device in self.devices for port in device.ports}
        devices_known = any(link.device for link in self.links)
        links = [link for link in self.links if not devices_known or link.device or link.index in ports]
        return self.mode, self.devices, links


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    """State read once per observation. links: by index. characters: by the RDMA device's name."""

    links: Mapping[int, Link]
    functions: Functions
    characters: Mapping[str, tuple[CharacterDevice, ...]]


class RdmaObserver:
    """Observes the RDMA devices of one machine without privileges."""

    def __init__(self, sysfs: Sysfs, questions: RdmaQueries, nodes: DeviceNodes) -> None:
        self._sysfs = sysfs
        self._questions = questions
        self._nodes = nodes
        self._last_query: _Query | None = None
        self._snapshot = RdmaSnapshot()

    def scan(
        self, expected: Mapping[str, str] | None = None, *, changed: Collection[int] | None = None
    ) -> RdmaSnapshot:
        """Return the present state; the same object as before when only irrelevant links changed.

        expected: devices that may be in other namespaces, with their functions' addresses, empty for none.
        changed: indexes of links, the only changes that the kernel reported since the last call; None when
            anything may have changed. Pods have many links that are no RDMA device's.
        KernelError or OSError when the machine cannot be observed at all.
        """
        previous, self._last_query = self._last_query, None
        query = self._query()
        if changed is None or previous is None or query.of_interest() != previous.of_interest():
            self._snapshot = self._scan(query, expected or {})
        self._last_query = None if self._snapshot.unreadable else query
        return self._snapshot

    def _query(self) -> _Query:
        return _Query(
            mode=self._questions.netns_mode(),
            devices=tuple(self._questions.rdma_devices()),
            links=tuple(self._questions.links()),
        )

    def _scan(self, query: _Query, expected: Mapping[str, str]) -> RdmaSnapshot:
        links, devices = query.links, query.devices
        context = _Context(
            links={link.index: link for link in links},
            functions=Functions(self._sysfs, {link.name: link for link in links}),
            characters=character_devices(self._sysfs),
        )
        present, unreadable = self._present(context, devices)
        away = {**dict.fromkeys(context.characters, ""), **expected}
        return RdmaSnapshot(
            present=present,
            away={
                name: self._away(context, name, pci)
                for name, pci in sorted(away.items())
                if name not in present and name not in unreadable
            },
            netns_mode=query.mode,
            rdma_cm=self._nodes.has_rdma_cm(self._sysfs),
            directory=self._nodes.has_directory(),
            unreadable=unreadable,
        )

    def _present(
        self, context: _Context, reported: Sequence[ListedDevice]
    ) -> tuple[dict[str, PresentDevice], dict[str, str]]:
        found, unreadable = {}, {}
        for device in sorted(reported, key=lambda device: device.name):
            try:
                if printable(device.name) != device.name:
                    unreadable[""] = f"the name of RDMA device {printable(device.name)} is not valid text"
                else:
                    found[device.name] = self._device(context, device)
            except OSError as error:
                if not is_absent(error):  # otherwise it disappeared just now, and an event follows
                    unreadable[device.name] = f"RDMA device {device.name}: {error}"
        return found, unreadable

    def _device(self, context: _Context, reported: ListedDevice) -> PresentDevice:
        netdev = self._netdev(context, reported)
        function = self._function(context, reported.name, netdev)
        own = (function and function.link) or netdev
        link_type = self._link_type(reported, function)
        characters = context.characters.get(reported.name, ())
        bad_nodes = node_faults(characters, self._nodes)
        ethernet = link_type is LinkType.ETHERNET
        is_vf = function is not None and function.vf is not None
        device = RdmaDevice(
            name=reported.name,
            netdev=printable(own.name) if own else "",
            link_type=link_type,
            nodes=tuple(character for character in characters if character not in bad_nodes),
            faults=(*function_faults(function), *bad_nodes.values()),
        )
        return PresentDevice(
            device=_of_function(device, function),
            characters=characters,
            ports=tuple(port.number for port in reported.ports),
            port_faults=port_faults(reported.ports, context.links, own, link_type),
            uplink_faults=link_faults(function.physical.link) if function and ethernet else (),
            vf_set_down=ethernet and is_vf and netdev is not None and not netdev.is_up,
        )

    def _netdev(self, context: _Context, reported: ListedDevice) -> Link | None:
        """Return the netdev of its first port with one here; otherwise a soft device's parent in sysfs."""
        for port in reported.ports:
            if port.netdev_index is not None and port.netdev_index in context.links:
                return context.links[port.netdev_index]
        parent = self._sysfs.value_if_any(f"{_CLASS}/{reported.name}/parent")
        return context.functions.links.get(parent) if parent else None

    def _function(self, context: _Context, name: str, netdev: Link | None) -> FunctionFacts | None:
        found = context.functions.of_device(f"{_CLASS}/{name}")
        return context.functions.of_netdev(netdev) if found is None and netdev is not None else found

    def _link_type(self, reported: ListedDevice, function: FunctionFacts | None) -> LinkType:
        for port in reported.ports:
            layer = self._sysfs.value_if_any(f"{_CLASS}/{reported.name}/ports/{port.number}/link_layer")
            if layer:
                return LinkType.INFINIBAND if layer == "InfiniBand" else LinkType.ETHERNET
        return function.link_type if function else LinkType.ETHERNET

    def _away(self, context: _Context, name: str, pci: str) -> AwayDevice:
        """Describe a device that netlink does not list, by its character devices or else by function."""
        characters = context.characters.get(name, ())
        verbs = [
            character.path.rpartition("/")[2] for character in characters if character.kind is NodeKind.UVERBS
        ]
        functions = (context.functions.of_device(f"{_VERBS}/{character}") for character in verbs)
        function = next((character for character in functions if character is not None), None)
        if function is None and pci:
            function = context.functions.facts_of(pci_address(pci))
        device = RdmaDevice(
            name=name,
            link_type=function.link_type if function else LinkType.ETHERNET,
            nodes=tuple(character for character in characters if not self._nodes.fault(character)),
            faults=function_faults(function, pci),
            at_home=False,
        )
        handed_over = function is not None and function.driver in USERSPACE_DRIVERS
        return AwayDevice(
            device=_of_function(device, function),
            elsewhere=bool(characters) or handed_over,
            is_listed=function is not None,
        )


def port_state_files(scan: RdmaSnapshot) -> frozenset[str]:
    """Return files, by path below sysfs, whose changes no event reports: states of InfiniBand ports."""
    return frozenset(
        f"{_CLASS}/{name}/ports/{port}/state"
        for name, device in scan.present.items()
        if device.device.link_type is LinkType.INFINIBAND
        for port in device.ports
    )


def _of_function(device: RdmaDevice, function: FunctionFacts | None) -> RdmaDevice:
    if function is None:
        return device
    pf = function.physical
    return replace(
        device,
        pci=function.pci,
        pf=pf.pci,
        pf_name=printable(pf.link.name) if pf.link else "",
        vf=function.vf,
        vendor=function.vendor,
        pf_vendor=pf.vendor,
        driver=function.driver,
        pf_driver=pf.driver,
        numa_node=function.numa_node,
        pcie_path=function.pcie_path,
    )
