"""A kernel in memory: applies steps to a `FakeMachine`, and fails on command.

Minimum rates that would add up to more than the link carries are refused, as ice does; mlx5 takes them
as weights and checks no sum, so nothing may rely on the refusal.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from k8s_rdma.core.kernel import Hardware, LocatedVf, PfState, PodInterface, Vf
from k8s_rdma.core.options import LinkState
from k8s_rdma.core.rates import check_rates
from k8s_rdma.core.software_caps import without_software_caps
from k8s_rdma.core.step import (
    BindVf,
    BringHome,
    CapInterface,
    ClearInterface,
    ConfigureInterface,
    ConfigureVfs,
    GiveVf,
    ProgramVfs,
    SetRates,
    UnbindVf,
    VfRate,
    VfRef,
    Vlan,
)
from k8s_rdma.errors import KernelError
from k8s_rdma.sim import fake_interfaces, fake_moves, fake_settings
from k8s_rdma.sim.fake_function import HOST

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from k8s_rdma.core.ids import PciAddress
    from k8s_rdma.core.kernel import VfCounters
    from k8s_rdma.core.step import NetnsRef, Step
    from k8s_rdma.sim.fake_function import FakePf, Function
    from k8s_rdma.sim.fake_machine import FakeMachine

_LINK_STATES = {LinkState.AUTO: "Follow", LinkState.ENABLE: "Up", LinkState.DISABLE: "Down"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fault:
    at: int
    after_changes: int
    times: int


class FakeKernel:
    """Implements `core.kernel.Kernel`. Safe to use from several threads.

    machine: what it acts on; another FakeKernel on the same machine is the agent after a restart.
    applied: every step that was asked for, failed ones too.
    observations, samples, looks_inside: how often the hardware was looked at, its traffic, a namespace's VFs.
    """

    def __init__(self, machine: FakeMachine) -> None:
        """Act on this machine."""
        self.machine = machine
        self.applied: list[Step] = []
        self.observations = self.samples = self.looks_inside = 0
        self._faults: list[_Fault] = []
        self._watches: list[Callable[[], None]] = []

    def fail(self, *, at: int = 0, after_changes: int = 0, times: int = 1) -> None:
        """Make a coming step fail.

        at: which, counted from 0 for the next one.
        after_changes: how many of its changes it still makes before it fails; a large number: all of them.
        times: how many steps in a row fail from there on.
        """
        self._faults.append(_Fault(at=len(self.applied) + at, after_changes=after_changes, times=times))

    def observe(self) -> Hardware:
        """Everything there is now."""
        with self.machine.lock:
            self.observations += 1
            self._require_answers()
            self.machine.count_look()
            found = (pf for pci, pf in self.machine.pfs.items() if pci not in self.machine.hidden)
            seen = Hardware(
                pfs=tuple(map(self._observe_pf, found)),
                unreadable=self.machine.unreadable,
            )
            return seen if self.machine.token_bucket else without_software_caps(seen)

    def apply(self, step: Step) -> None:
        """Make the step hold, or fail as `fail` said."""
        try:
            with self.machine.lock:
                self._carry_out(step)
        finally:
            self.machine.changed()

    def namespace_alive(self, netns: NetnsRef) -> bool:
        """Whether that very namespace still exists."""
        return self.machine.alive(netns)

    def interfaces(self, netns: NetnsRef) -> Mapping[str, PodInterface]:
        """What is in a namespace."""
        place = self.machine.inode(netns)
        with self.machine.lock:
            return {
                device.name: PodInterface(
                    mac=device.mac,
                    mtu=device.mtu,
                    up=device.up,
                    addresses=frozenset(device.addresses),
                    duplicates=device.duplicates & set(device.addresses),
                    max_tx_rate_mbps=device.max_tx_rate_mbps,
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
        """Note what is told of what is there."""
        place = self.machine.inode(netns)
        with self.machine.lock:
            for device in self.machine.devices_in(place):
                told = [each for each in addresses.get(device.name, ()) if each in device.addresses]
                self.machine.announced += [(device.name, address) for address in told]

    def sample(self, holders: Mapping[VfRef, NetnsRef]) -> tuple[VfCounters, ...]:  # noqa: ARG002  all count here
        """The counters of the machine, which tells them wherever a VF is."""
        with self.machine.lock:
            self.samples += 1
            self._require_answers()
            return tuple(self.machine.counters[vf] for vf in sorted(self.machine.functions))

    def reset(self, vf: VfRef) -> None:
        """Make a VF nobody's."""
        try:
            with self.machine.lock:
                function = self.machine.function(vf)
                if not function.is_netdev or (function.device.place, function.rdma_place) != (HOST, HOST):
                    msg = f"VF {vf.index} of PF {vf.pf}: not in the host's namespace, so it is not reset"
                    raise KernelError(msg)
                function.min_tx_rate_mbps = function.max_tx_rate_mbps = 0
                function.settings.vlan = Vlan(0)
                function.device.up, function.device.addresses, function.device.routes = False, (), ()
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
        if stop is not None:
            msg = f"{type(step).__name__}: made to fail after {stop} changes"
            raise KernelError(msg)

    def _stop(self) -> int | None:
        now = len(self.applied)
        hit = (fault for fault in self._faults if fault.at <= now < fault.at + fault.times)
        return next((fault.after_changes for fault in hit), None)

    def _changes(self, step: Step) -> Iterator[None]:
        """Carry a step out; yields before every change, and makes none that holds already."""
        match step:
            case SetRates():
                return self._set_rates(step)
            case GiveVf() | BringHome() | BindVf() | UnbindVf():
                return fake_moves.move(self.machine, step)
            case ConfigureInterface() | ClearInterface() | CapInterface():
                return fake_interfaces.change(self.machine, step)
            case ConfigureVfs():
                return fake_settings.configure(self.machine, step)
            case ProgramVfs():
                return chain(self._changes(step.rates), self._changes(step.settings))

    def _set_rates(self, step: SetRates) -> Iterator[None]:
        functions = {rate.index: self.machine.function(VfRef(step.pf, rate.index)) for rate in step.rates}
        before = {
            vf.index: VfRate(vf.index, each.min_tx_rate_mbps, each.max_tx_rate_mbps)
            for vf, each in self.machine.functions.items()
            if vf.pf == step.pf
        }
        ability, link_mbps = self.machine.pfs[step.pf].rates, self.machine.links.get(step.pf) or 0
        check_rates(step, ability=ability, link_mbps=link_mbps, before=before)
        for rate in step.rates:
            function = functions[rate.index]
            wanted = (rate.min_tx_rate_mbps, rate.max_tx_rate_mbps)
            if (function.min_tx_rate_mbps, function.max_tx_rate_mbps) != wanted:
                yield
                function.min_tx_rate_mbps, function.max_tx_rate_mbps = wanted

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
            takes=pf.taken(),
            mac=pf.mac,
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
