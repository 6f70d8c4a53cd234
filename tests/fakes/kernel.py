"""A kernel in memory: applies steps to a `FakeMachine`, and fails on command.

Settings are applied one after the other, as netlink hands them to a driver. Minimum rates whose sum exceeds
the link are refused, as ice does; mlx5 takes them as weights and checks no sum, so no code may rely on
the refusal.

Source: Linux 6.1 `net/core/rtnetlink.c` (do_setvfinfo) and the checks that drivers have in common.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import TYPE_CHECKING

from fakes.machine import HOST, VF_DRIVER, Device, FakeMachine, FakePf, Function
from k8s_rdma.core.kernel import Hardware, LocatedVf, PauseFrames, PfState, PodInterface, Vf, VfCounters
from k8s_rdma.core.netdev_attributes import XDP, Attributes, faults
from k8s_rdma.core.plan import NOT_KEPT, without_software_caps
from k8s_rdma.core.step import (
    BindVf,
    BringHome,
    CapInterface,
    CleanVf,
    ClearInterface,
    ConfigureInterface,
    ConfigureVfs,
    GiveVf,
    NetnsRef,
    ProgramVfs,
    SetRates,
    Step,
    UnbindVf,
    VfConfig,
    VfHome,
    VfRate,
    VfRef,
    Vlan,
    check_rates,
)
from k8s_rdma.core.types import LinkState, LinkType, Setting, VlanProto
from k8s_rdma.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from k8s_rdma.core.types import PciAddress

_MIN_MTU = 68
"""ETH_MIN_MTU, `include/uapi/linux/if_ether.h`."""


def move(machine: FakeMachine, step: GiveVf | BringHome | BindVf | UnbindVf | CleanVf) -> Iterator[None]:
    """Make the step hold; yields before every change, and omits changes that hold already."""
    match step:
        case CleanVf():
            return _clean(machine, step)
        case GiveVf():
            return _move_to_pod(machine, step)
        case BringHome():
            return _bring_home(machine, step)
        case BindVf():
            return _bind(machine, step)
        case UnbindVf():
            return _unbind(machine, step)


def _move_to_pod(machine: FakeMachine, step: GiveVf) -> Iterator[None]:
    """Make a VF's netdev be in a namespace under a name, with its MAC and MTU there."""
    function, target = machine.function(step.vf), machine.inode(step.netns)
    device = _netdev(function, step.vf)
    if device.place not in (HOST, target):
        place = machine.describe_place(device.place)
        msg = f"{_describe(step.vf)}: expected in {step.netns.path}, but it is in {place}"
        raise KernelError(msg)
    _check_mtu(machine, step)
    mac = step.mac or (step.home.mac if device.place == HOST else device.mac)
    if function.rdma_device and function.rdma_place != target:
        yield
        machine.move_rdma(function, target)
    if device.altnames and (device.place, device.name) != (target, step.ifname):
        yield
        device.altnames = ()
    if (device.place, device.name) != (target, step.ifname):
        yield
        machine.move(device, target, step.ifname)
    if step.mtu not in (None, device.mtu):
        yield
        device.mtu = step.mtu or device.mtu
    if mac != device.mac:
        yield
        device.mac = mac


def _clean(machine: FakeMachine, step: CleanVf) -> Iterator[None]:
    """Make a VF's netdev at home be without programs, and with its attributes."""
    function = machine.function(step.vf)
    if function.is_netdev and function.device.place == HOST:
        now = tuple(function.device.attributes.items())
        if faults(now, step.home.attributes):
            yield from _renew(machine, function, step.home)


def _renew(machine: FakeMachine, function: Function, home: VfHome) -> Iterator[None]:
    """Bind a VF to its driver again; the override is the driver's name meanwhile. Its netdev changes."""
    yield
    machine.take_netdev(function)
    function.driver, function.override = "", VF_DRIVER
    yield from _drive(machine, function, VF_DRIVER)
    function.override = ""
    yield from _as_at_home(machine, function.device, home)


def _with_attributes(machine: FakeMachine, function: Function, home: VfHome) -> Iterator[None]:
    """Make a VF that came home have its attributes: the driver's, and held programs, by another netdev."""
    device = function.device
    if home.attributes is not None and not device.links_above:
        restorable = device.attributes.keys() - {"ring sizes"} - ({XDP} if device.held_program else set())
        for name, value in home.attributes:
            if name in restorable and device.attributes[name] != value:
                yield
                device.attributes[name] = value
    known = home.attributes is not None
    if not known or device.links_above or faults(tuple(device.attributes.items()), home.attributes):
        yield from _renew(machine, function, home)


def _bring_home(machine: FakeMachine, step: BringHome) -> Iterator[None]:
    """Make a VF's netdev be at home as it was, unless it serves another namespace or driver."""
    function = machine.function(step.vf)
    if not function.driver and function.override == VF_DRIVER:
        yield from _drive(machine, function, VF_DRIVER)
        function.override = ""
    device = function.device
    if not function.is_netdev or device.place not in (HOST, step.netns.inode):
        return
    if function.rdma_place != HOST:
        yield
        machine.move_rdma(function, HOST)
    yield from _as_at_home(machine, device, step.home)
    yield from _with_attributes(machine, function, step.home)


def _bind(machine: FakeMachine, step: BindVf) -> Iterator[None]:
    """Make a VF that is at home another driver's."""
    function = _function(machine, step)
    if Setting.VFIO_PCI not in machine.pfs[step.vf.pf].supported_settings():
        msg = f"{_describe(step.vf)}: {step.driver}: this machine cannot give it as a PCI function"
        raise KernelError(msg)
    if function.driver not in ("", VF_DRIVER, step.driver):
        msg = f"{_describe(step.vf)}: wanted by {step.driver}, but {function.driver} has it"
        raise KernelError(msg)
    if function.is_netdev and function.device.place != HOST:
        place = machine.describe_place(function.device.place)
        msg = f"{_describe(step.vf)}: wanted by {step.driver}, but its netdev is in {place}"
        raise KernelError(msg)
    if function.override != step.driver:
        yield
        function.override = step.driver
    yield from _drive(machine, function, step.driver)


def _unbind(machine: FakeMachine, step: UnbindVf) -> Iterator[None]:
    """Make a VF the kernel driver's, at home as it was, unless it serves a namespace or a third driver."""
    function = _function(machine, step)
    if function.driver not in ("", VF_DRIVER, step.driver):
        return
    if function.is_netdev and function.device.place != HOST:
        return
    if function.override:
        yield
        function.override = ""
    yield from _drive(machine, function, VF_DRIVER)
    yield from _as_at_home(machine, function.device, step.home)


def _drive(machine: FakeMachine, function: Function, driver: str) -> Iterator[None]:
    """Take the VF from whatever drives it, then let `driver` have it."""
    if function.driver not in ("", driver):
        yield
        if function.is_netdev:
            machine.take_netdev(function)
        function.driver = ""
    if not function.driver:
        yield
        function.driver = driver
        if function.is_netdev:
            machine.make_netdev(function)


def _as_at_home(machine: FakeMachine, device: Device, home: VfHome) -> Iterator[None]:
    if device.altnames:
        yield
        device.altnames = ()
    if (device.place, device.name) != (HOST, home.name):
        yield
        machine.move(device, HOST, home.name)
    if (device.mac, device.mtu, device.is_up, device.addresses) != (home.mac, home.mtu, False, ()):
        yield
        device.mac, device.mtu = home.mac, home.mtu
        device.is_up, device.addresses, device.routes = False, (), ()


def _function(machine: FakeMachine, step: BindVf | UnbindVf) -> Function:
    function = machine.function(step.vf)
    if function.pci != step.pci:
        msg = f"{_describe(step.vf)}: at {function.pci}, not at {step.pci}"
        raise KernelError(msg)
    if step.kernel_driver != VF_DRIVER:
        msg = f"{_describe(step.vf)}: driven by {VF_DRIVER} at home, not by {step.kernel_driver!r}"
        raise KernelError(msg)
    return function


def _netdev(function: Function, vf: VfRef) -> Device:
    if not function.is_netdev:
        msg = f"{_describe(vf)}: it has no netdev: {function.driver or 'no driver'} has it"
        raise KernelError(msg)
    return function.device


def _check_mtu(machine: FakeMachine, step: GiveVf) -> None:
    limit = machine.pfs[step.vf.pf].mtu
    if step.mtu is not None and not _MIN_MTU <= step.mtu <= limit:
        msg = f"{_describe(step.vf)}: MTU {step.mtu}: it takes {_MIN_MTU} to {limit}, its PF's"
        raise KernelError(msg)


def _describe(vf: VfRef) -> str:
    return f"VF {vf.index} of PF {vf.pf}"


_MAX_VLAN, _MAX_QOS = 4094, 7


def configure(machine: FakeMachine, step: ConfigureVfs) -> Iterator[None]:
    """Make these settings hold; yields before every change, and omits changes that hold already.

    KernelError, without any change, if a VF is unknown or the driver has no means for a setting.
    """
    functions = [machine.function(VfRef(step.pf, config.index)) for config in step.configs]
    for config in step.configs:
        _check(machine.pfs[step.pf], config)
    for function, config in zip(functions, step.configs, strict=True):
        yield from _set(function, _with_node_guid(config))
        if config.guid and function.is_netdev and function.device.place == HOST:
            function.device.mac = function.own_mac()  # bound again


def _set(function: Function, config: VfConfig) -> Iterator[None]:
    settings = function.settings
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name == "index" or value is None or getattr(settings, field.name) == value:
            continue
        yield
        setattr(settings, field.name, value)


def _with_node_guid(config: VfConfig) -> VfConfig:
    return replace(config, node_guid=config.node_guid or config.guid)


def _check(pf: FakePf, config: VfConfig) -> None:
    for setting, description in _required_settings(config):
        if setting not in pf.supported_settings():
            msg = f"VF {config.index} of PF {pf.pci}: {description}: {pf.driver} does not support it"
            raise KernelError(msg)
    fault = _fault(pf, config)
    if fault:
        msg = f"VF {config.index} of PF {pf.pci}: {fault}"
        raise KernelError(msg)


def _required_settings(config: VfConfig) -> Iterator[tuple[Setting, str]]:
    """Yield the settings that a driver must support, with their descriptions."""
    if config.vlan is not None:
        yield from _required_for_vlan(config.vlan)
    for setting, value in {
        Setting.MAC: config.mac,
        Setting.TRUST: config.trust,
        Setting.SPOOF_CHECK: config.spoof_check,
        Setting.LINK_STATE: config.link_state,
        Setting.GUID: config.guid,
    }.items():
        if value is not None:
            yield setting, f"{setting} {value}"


def _required_for_vlan(vlan: Vlan) -> Iterator[tuple[Setting, str]]:
    yield Setting.VLAN, f"VLAN {vlan.id}"
    if vlan.qos:
        yield Setting.QOS, f"QoS {vlan.qos}"
    if vlan.proto is not VlanProto.DOT1Q:
        yield Setting.VLAN_PROTO, f"VLAN protocol {vlan.proto}"


def _fault(pf: FakePf, config: VfConfig) -> str:
    """Describe a value that no driver accepts; empty when it is valid."""
    vlan = config.vlan
    if vlan is not None and not (0 <= vlan.id <= _MAX_VLAN and 0 <= vlan.qos <= _MAX_QOS):
        return f"VLAN {vlan.id} with QoS {vlan.qos}: a VLAN is 0 to {_MAX_VLAN}, QoS 0 to {_MAX_QOS}"
    if config.mac is not None and int(config.mac[:2], 16) & 1:
        return f"MAC {config.mac}: a multicast address"
    if config.guid is not None and pf.link_type is not LinkType.INFINIBAND:
        return f"GUID {config.guid}: its link is {pf.link_type}"
    return ""


def change(machine: FakeMachine, step: ConfigureInterface | ClearInterface | CapInterface) -> Iterator[None]:
    """Make the step hold; yields before every change, and omits changes that hold already."""
    match step:
        case ConfigureInterface():
            return _configure(machine, step)
        case ClearInterface():
            return _clear(machine, step)
        case CapInterface():
            return _cap(machine, step)


def _configure(machine: FakeMachine, step: ConfigureInterface) -> Iterator[None]:
    device = machine.device(step.netns, step.ifname)
    for address in step.addresses:
        if address not in device.addresses:
            yield
            device.addresses += (address,)
            device.duplicates = machine.duplicates(device)
    if not device.is_up:
        yield
        device.is_up = True
    for route in step.routes:
        if route not in device.routes:
            yield
            device.routes += (route,)


def _clear(machine: FakeMachine, step: ClearInterface) -> Iterator[None]:
    device = _find_device(machine, step)
    if device is None:
        return
    if device.is_up:
        yield
        device.is_up, device.routes = False, ()
    if device.addresses:
        yield
        device.addresses = ()


def _cap(machine: FakeMachine, step: CapInterface) -> Iterator[None]:
    without_limit = not step.max_tx_rate_mbps
    if not (without_limit or machine.token_bucket):
        raise KernelError(NOT_KEPT)
    device = _find_device(machine, step) if without_limit else machine.device(step.netns, step.ifname)
    if device is not None and device.max_tx_rate_mbps != step.max_tx_rate_mbps:
        yield
        device.max_tx_rate_mbps = step.max_tx_rate_mbps


def _find_device(machine: FakeMachine, step: ClearInterface | CapInterface) -> Device | None:
    """Return the netdev, if it and its namespace exist."""
    return machine.find(step.ifname, step.netns.inode) if machine.alive(step.netns) else None


_LINK_STATES = {LinkState.AUTO: "Follow", LinkState.ENABLE: "Up", LinkState.DISABLE: "Down"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fault:
    index: int
    after_changes: int
    times: int


class FakeKernel:
    """Implements `core.kernel.Kernel`. Safe to use from several threads.

    machine: it acts on this one; another FakeKernel on the same machine is the agent after a restart.
    applied: every step that was asked for, failed ones too.
    observations, samples, looks_inside, attribute_reads: how often the hardware was looked at, its traffic, a
        namespace's VFs, the attributes of one.
    """

    def __init__(self, machine: FakeMachine) -> None:
        """Act on this machine."""
        self.machine = machine
        self.applied: list[Step] = []
        self.observations = self.samples = self.looks_inside = self.attribute_reads = 0
        self._faults: list[_Fault] = []
        self._watches: list[Callable[[], None]] = []

    def fail(self, *, index: int = 0, after_changes: int = 0, times: int = 1) -> None:
        """Make a coming step fail.

        index: which, counted from 0 for the next one.
        after_changes: how many of its changes it still makes before it fails; a large number: all of them.
        times: how many steps in a row fail from there on.
        """
        self._faults.append(_Fault(index=len(self.applied) + index, after_changes=after_changes, times=times))

    def observe(self) -> Hardware:
        """Observe the hardware."""
        with self.machine.lock:
            self.observations += 1
            self._require_answers()
            self.machine.count_observation()
            found = (pf for pci, pf in self.machine.pfs.items() if pci not in self.machine.hidden)
            observed = Hardware(
                pfs=tuple(map(self._observe_pf, found)),
                unreadable=self.machine.unreadable,
            )
            return observed if self.machine.token_bucket else without_software_caps(observed)

    def apply(self, step: Step) -> Attributes | None:
        """Make the step hold, or fail as `fail` said."""
        try:
            with self.machine.lock:
                self._carry_out(step)
                return self._found_as_at_home(step) if isinstance(step, BringHome) else None
        finally:
            self.machine.changed()

    def _found_as_at_home(self, step: BringHome) -> Attributes | None:
        function = self.machine.function(step.vf)
        if not function.is_netdev or function.device.place != HOST:
            return None
        found = tuple(sorted(function.device.attributes.items()))
        return found if found == step.home.attributes else None

    def attributes(self, vf: VfRef) -> Attributes:
        """Return the attributes of a VF's netdev at home."""
        with self.machine.lock:
            self.attribute_reads += 1
            device = _netdev(self.machine.function(vf), vf)
            if device.place != HOST:
                msg = f"{_describe(vf)}: its netdev is not in the host's namespace"
                raise KernelError(msg)
            return tuple(sorted(device.attributes.items()))

    def namespace_alive(self, netns: NetnsRef) -> bool:
        """Report whether that very namespace still exists."""
        return self.machine.alive(netns)

    def interfaces(self, netns: NetnsRef) -> Mapping[str, PodInterface]:
        """Return the interfaces of a namespace."""
        place = self.machine.inode(netns)
        with self.machine.lock:
            return {
                device.name: PodInterface(
                    mac=device.mac,
                    mtu=device.mtu,
                    is_up=device.is_up,
                    addresses=frozenset(device.addresses),
                    duplicates=device.duplicates & set(device.addresses),
                    max_tx_rate_mbps=device.max_tx_rate_mbps,
                    xdp=device.attributes[XDP],
                )
                for device in self.machine.devices_in(place)
            }

    def located(self, netns: NetnsRef) -> Mapping[PciAddress, LocatedVf]:
        """The VFs in a namespace."""
        place = self.machine.inode(netns)
        with self.machine.lock:
            self.looks_inside += 1
            self._require_answers()
            return {
                function.pci: LocatedVf(
                    ifname=function.device.name,
                    mac=function.device.mac,
                    max_tx_rate_mbps=function.device.max_tx_rate_mbps,
                    qdisc="tbf" if function.device.max_tx_rate_mbps else "pfifo_fast",
                )
                for function in self.machine.functions.values()
                if function.is_netdev and function.device.place == place
            }

    def announce(self, netns: NetnsRef, addresses: Mapping[str, Collection[str]]) -> None:
        """Record the announcements of addresses that exist."""
        place = self.machine.inode(netns)
        with self.machine.lock:
            for device in self.machine.devices_in(place):
                announced = [each for each in addresses.get(device.name, ()) if each in device.addresses]
                self.machine.announced += [(device.name, address) for address in announced]

    def sample(self, holders: Mapping[VfRef, NetnsRef]) -> tuple[VfCounters, ...]:
        """Return the counters of the machine, which has them wherever a VF is."""
        with self.machine.lock:
            self.samples += 1
            self._require_answers()
            return tuple(self.machine.counters[vf] for vf in sorted(self.machine.functions))

    def pause_frames(self, pf: str) -> Mapping[int, PauseFrames]:
        """Those that the test has set for the PF."""
        return self.machine.pause_frames.get(pf, {})

    def reset(self, vf: VfRef) -> None:
        """Reset a VF, so that it has no owner."""
        try:
            with self.machine.lock:
                function = self.machine.function(vf)
                if not function.is_netdev or (function.device.place, function.rdma_place) != (HOST, HOST):
                    msg = f"VF {vf.index} of PF {vf.pf}: not in the host's namespace, so it is not reset"
                    raise KernelError(msg)
                function.min_tx_rate_mbps = function.max_tx_rate_mbps = 0
                function.settings.vlan = Vlan(0)
                function.device.is_up, function.device.addresses, function.device.routes = False, (), ()
        finally:
            self.machine.changed()

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` on the thread that makes a change."""
        end = self.machine.watch(changed)
        self._watches.append(end)
        return end

    def close(self) -> None:
        """End all watches; the machine stays as it is."""
        for end in self._watches:
            end()

    def _require_answers(self) -> None:
        if self.machine.silent:
            raise KernelError(self.machine.silent)

    def _carry_out(self, step: Step) -> None:
        stop = self._stop()
        self.applied.append(step)
        for number, _ in enumerate(self._changes(step)):
            if number == stop:
                break
            self._require_health(step)
        if stop is not None:
            msg = f"{type(step).__name__}: made to fail after {stop} changes"
            raise KernelError(msg)

    def _require_health(self, step: Step) -> None:
        for vf, (steps, why) in self.machine.sick.items():
            if isinstance(step, steps) and vf in self._concerned(step):
                msg = f"{_describe(vf)}: {type(step).__name__}: {why}"
                raise KernelError(msg)

    def _concerned(self, step: Step) -> set[VfRef]:
        match step:
            case ProgramVfs():
                return self._concerned(step.rates)
            case SetRates():
                return {VfRef(step.pf, rate.index) for rate in step.rates}
            case ConfigureInterface():
                device = self.machine.device(step.netns, step.ifname)
                return {vf for vf, each in self.machine.functions.items() if each.device is device}
            case CleanVf() | GiveVf() | BringHome() | BindVf() | UnbindVf():
                return {step.vf}
        return set()

    def _stop(self) -> int | None:
        index = len(self.applied)
        hit = (fault for fault in self._faults if fault.index <= index < fault.index + fault.times)
        return next((fault.after_changes for fault in hit), None)

    def _changes(self, step: Step) -> Iterator[None]:
        """Carry a step out; yields before every change, and omits changes that hold already."""
        match step:
            case SetRates():
                return self._set_rates(step)
            case GiveVf() | BringHome() | BindVf() | UnbindVf() | CleanVf():
                return move(self.machine, step)
            case ConfigureInterface() | ClearInterface() | CapInterface():
                return change(self.machine, step)
            case ConfigureVfs():
                return configure(self.machine, step)
            case ProgramVfs():
                return chain(self._changes(step.rates), self._changes(step.settings))

    def _set_rates(self, step: SetRates) -> Iterator[None]:
        functions = {rate.index: self.machine.function(VfRef(step.pf, rate.index)) for rate in step.rates}
        current = {
            vf.index: VfRate(vf.index, vf_function.min_tx_rate_mbps, vf_function.max_tx_rate_mbps)
            for vf, vf_function in self.machine.functions.items()
            if vf.pf == step.pf
        }
        ability, link_mbps = self.machine.pfs[step.pf].rates, self.machine.links.get(step.pf) or 0
        check_rates(step, ability=ability, link_mbps=link_mbps, current=current)
        for rate in step.rates:
            function = functions[rate.index]
            desired = (rate.min_tx_rate_mbps, rate.max_tx_rate_mbps)
            if (function.min_tx_rate_mbps, function.max_tx_rate_mbps) != desired:
                yield
                function.min_tx_rate_mbps, function.max_tx_rate_mbps = desired

    def _observe_pf(self, pf: FakePf) -> PfState:
        functions = self.machine.functions
        return PfState(
            name=pf.name,
            pci=pf.pci,
            link_mbps=self.machine.links[pf.pci],
            driver=pf.driver,
            vfs=tuple(_observe_vf(index, functions[VfRef(pf.pci, index)], pf.mtu) for index in range(pf.vfs)),
            mtu=pf.mtu,
            link_type=pf.link_type,
            rates=pf.rates,
            enforce=pf.enforce,
            supported_settings=pf.supported_settings(),
            mac=pf.mac,
            numa_node=pf.numa_node,
            pcie_path=pf.pcie_path,
        )


def _observe_vf(index: int, function: Function, pf_mtu: int) -> Vf:
    device, settings = function.device, function.settings
    at_home = function.is_netdev and device.place == HOST
    return Vf(
        index=index,
        pci=function.pci,
        netdev=device.name if at_home else None,
        mac=device.mac if at_home else settings.guid or settings.mac,
        mtu=device.mtu if at_home else pf_mtu,
        min_tx_rate_mbps=function.min_tx_rate_mbps,
        max_tx_rate_mbps=function.max_tx_rate_mbps,
        vlan=settings.vlan.id,
        qos=settings.vlan.qos,
        vlan_proto=settings.vlan.proto if settings.vlan.id or settings.vlan.qos else "N/A",
        spoof_check="ON" if settings.spoof_check else "OFF",
        trust="ON" if settings.trust else "OFF",
        link_state=_LINK_STATES[settings.link_state],
        rdma_device=function.rdma_device if function.is_netdev and function.rdma_place == HOST else None,
        admin_mac=settings.guid or settings.mac,
        node_guid=settings.node_guid,
        driver=function.driver,
        unusable=_unusable(function),
    )


def _unusable(function: Function) -> str:
    if function.is_netdev:
        return ""
    if not function.driver:
        return "no driver is bound to it"
    return f"it is bound to {function.driver}, which makes no netdev"
