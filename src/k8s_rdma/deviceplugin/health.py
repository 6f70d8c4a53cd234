"""Health of each device, from the host's scan and the agent's report.

Pure apart from its memory: time is an argument, in seconds of a monotonic clock. Each relapse of a device
makes it wait longer before it counts as healthy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from k8s_rdma.core.devices.rdma_devices import AllocatedDevice, DeviceInventory, RdmaDevice

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.linux.rdma.observation import AwayDevice, PresentDevice, RdmaSnapshot
    from k8s_rdma.wire.report import NodeReport


RELAPSE_WINDOW_S = 60.0
"""Time without a fault after which the next one is no relapse."""

FREE_RELAPSES = 3
"""Relapses without a penalty: a driver that resets its link, or a switch that starts, causes a few."""

FIRST_HOLD_S = 1.0
LAST_HOLD_S = 8.0
"""Time without faults after which a device counts as healthy. A link that flaps is reported every 8 s at
most; one that is back for good is in use again within that time."""

ABSENCE_GRACE_S = 1.0
"""Time for an absent device to come back (renamed, or its driver reloaded by a reset). If it does not,
kubelet learns of that within two seconds; the scan takes up to one of them."""

UNCLAIMED_GRACE_S = 30.0
"""Time in another namespace without an owner in the agent's report: a report follows the end of a CNI ADD,
which moves the device and then waits for address plugins, each for up to 10 s."""

SILENT_AGENT_GRACE_S = 600.0
"""Time for which allocations stay valid while the agent is silent: it alone moves devices, and the agent
is back within kubelet's longest pause between two starts of a container, 300 s, and the time to load an
image."""

FORGET_AFTER_S = 3600.0
"""Time after which an absent device is no longer offered: software devices come and go under new names."""

_ABSENT = "it is gone"
_UNCLAIMED = "it is in another network namespace, and no pod has it"
_UNKNOWN = "it is not in the host's network namespace, and the agent does not report whether a pod has it"


class Health:
    """Health of all devices; it remembers each one until `FORGET_AFTER_S` has passed."""

    def __init__(self) -> None:
        """Start without devices."""
        self._history: dict[str, _DeviceHistory] = {}
        self._damping = Damping()
        self._deadlines: list[float] = []

    def expected(self, agent: AgentState) -> Mapping[str, str]:
        """List devices that may be away, with their functions' addresses, for the next scan."""
        allocated = {device.name: device.pci for device in self._allocated(agent).values()}
        return {**dict.fromkeys(self._history, ""), **allocated} | {
            name: record.device.pci for name, record in self._history.items() if record.device.pci
        }

    def inventory(
        self, snapshot: RdmaSnapshot, agent: AgentState, now_s: float, *, unreadable: tuple[str, ...] = ()
    ) -> DeviceInventory:
        """Return all devices with the faults that count at this time.

        Unreadable: further reasons to report.
        """
        self._deadlines.clear()
        allocated = self._allocated(agent)
        devices = {}
        for name in sorted({*snapshot.present, *snapshot.away, *self._history}):
            device = self._device(name, snapshot, agent, now_s, allocated=name in allocated)
            if device is not None:
                faults, clear_at = self._damping.faults(name, device.faults, now_s)
                self._wait(clear_at)
                devices[name] = device if faults == device.faults else replace(device, faults=faults)
        self._damping.retain(frozenset(devices))
        return DeviceInventory(
            devices=devices,
            allocated=allocated if agent.report else None,
            netns_mode=snapshot.netns_mode,
            rdma_cm=snapshot.rdma_cm,
            directory=snapshot.directory,
            held_slots=agent.report.held_slots if agent.report else None,
            unreadable=(*unreadable, *snapshot.unreadable.values()),
        )

    def due_at(self) -> float | None:
        """Return the time at which health may change without an event, if it may."""
        return min(self._deadlines, default=None)

    def _allocated(self, agent: AgentState) -> dict[str, AllocatedDevice]:
        """Return the pods' devices of the last report.

        One without a name there gets the name of its last scan.
        """
        if agent.report is None:
            return {}
        names = {record.device.pci: name for name, record in self._history.items() if record.device.pci}
        named = ((device.name or names.get(device.pci, ""), device) for device in agent.report.allocated)
        return {name: replace(device, name=name) for name, device in named if name}

    def _device(
        self, name: str, snapshot: RdmaSnapshot, agent: AgentState, now_s: float, *, allocated: bool
    ) -> RdmaDevice | None:
        if name in snapshot.present:
            present = snapshot.present[name]
            device = present.device if allocated else self._free_at_home(present, agent)
            self._history[name] = _DeviceHistory(device)
            return device
        record = self._history.get(name)
        if name in snapshot.unreadable or name not in snapshot.away:
            return record.device if record else None
        return self._away(name, snapshot.away[name], agent, now_s, allocated=allocated)

    @staticmethod
    def _free_at_home(present: PresentDevice, agent: AgentState) -> RdmaDevice:
        """Return a device that no pod has, with the faults of its ports, which then matter.

        The ports of a VF that is not set up are down: the agent sets it up when it gives it to a pod, and
        the PF's link decides whether it is usable.
        """
        device = present.device
        waits = present.vf_set_down and agent.report is not None and device.pf in agent.report.pfs
        return replace(
            device, faults=(*device.faults, *(present.uplink_faults if waits else present.port_faults))
        )

    def _away(
        self, name: str, away: AwayDevice, agent: AgentState, now_s: float, *, allocated: bool
    ) -> RdmaDevice | None:
        record = self._history.get(name)
        device = _as_last_seen(away, record.device if record else None)
        if record is None and not allocated and not away.elsewhere:
            return None
        away_since = now_s if record is None or record.away_since is None else record.away_since
        if not allocated and not away.elsewhere and now_s - away_since >= FORGET_AFTER_S:
            del self._history[name]
            return None
        why, stands_until = self._absence(away, agent, away_since, allocated=allocated)
        faults = away.device.faults if away.is_listed or (record and record.device.pci) else ()
        if now_s < stands_until:
            self._wait(stands_until)
            if why is _ABSENT and record is not None:
                faults = record.device.faults
        elif why:
            faults = (*faults, why)
        device = replace(device, faults=faults)
        self._history[name] = _DeviceHistory(device, away_since)
        return device

    @staticmethod
    def _absence(
        away: AwayDevice, agent: AgentState, missing_since: float, *, allocated: bool
    ) -> tuple[str, float]:
        """Return the reason why an absent device is unhealthy, and the time from which it counts."""
        if allocated and agent.silent_since is None:
            return "", missing_since
        if allocated or (away.elsewhere and agent.silent_since is not None):
            return _UNKNOWN, max(missing_since, agent.silent_since or missing_since) + SILENT_AGENT_GRACE_S
        return (
            (_UNCLAIMED, missing_since + UNCLAIMED_GRACE_S)
            if away.elsewhere
            else (_ABSENT, missing_since + ABSENCE_GRACE_S)
        )

    def _wait(self, deadline: float | None) -> None:
        if deadline is not None:
            self._deadlines.append(deadline)


@dataclass(slots=True)
class _DeviceHistory:
    """The last state of a device.

    Device: before damping.
    away_since: None while it is in the host's namespace.
    """

    device: RdmaDevice
    away_since: float | None = None


def _as_last_seen(away: AwayDevice, last: RdmaDevice | None) -> RdmaDevice:
    """Return an absent device by the state of its function and its nodes, else by its last state."""
    if last is None or away.is_listed:
        return away.device
    return replace(last, nodes=away.device.nodes, at_home=False, netdev="")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentState:
    """The agent's last report, if there was one. silent_since: while it does not report."""

    report: AgentReport | None = None
    silent_since: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReport:
    """The devices of one report of the agent.

    allocated: in no order; the name is empty if the agent does not know it.
    pfs: addresses of those whose VFs it gives, and sets up as it does.
    held_slots: CDI devices of slots that attachments hold.
    """

    allocated: tuple[AllocatedDevice, ...] = ()
    pfs: frozenset[str] = frozenset()
    held_slots: frozenset[str] = frozenset()


def read_report(report: NodeReport) -> AgentReport:
    """Extract the devices of a report."""
    return AgentReport(
        allocated=tuple(
            AllocatedDevice(
                name=interface.rdma_device,
                pci=interface.pci,
                pf=interface.pf,
                vf=interface.vf,
                pod_uid=allocation.pod.uid,
                pool=interface.pool,
            )
            for allocation in report.allocations
            for interface in allocation.interfaces
        ),
        pfs=frozenset(pf.pci for pf in report.pfs),
        held_slots=frozenset(slot for allocation in report.allocations for slot in allocation.slots),
    )


class Damping:
    """Damping of faults: a device that flaps stays unhealthy for longer. Times are those of one clock."""

    def __init__(self) -> None:
        """Start with all devices healthy."""
        self._histories: dict[str, _FaultHistory] = {}

    def faults(
        self, name: str, faults: tuple[str, ...], now_s: float
    ) -> tuple[tuple[str, ...], float | None]:
        """Return the faults that count, and the time at which they end without a change, if they do."""
        history = self._histories.get(name)
        if faults:
            history = history or self._histories.setdefault(name, _FaultHistory())
            self._record_faults(history, faults, now_s)
            return faults, None
        if history is None or not history.faults:
            return (), None
        if history.clear_since is None:
            history.clear_since = now_s
        clear_at = history.clear_since + history.hold_s
        if now_s < clear_at:
            return history.faults, clear_at
        history.faults, history.healthy_since = (), now_s
        return (), None

    def retain(self, names: frozenset[str]) -> None:
        """Forget all other devices."""
        self._histories = {name: course for name, course in self._histories.items() if name in names}

    @staticmethod
    def _record_faults(history: _FaultHistory, faults: tuple[str, ...], now_s: float) -> None:
        if not history.faults:
            relapse = history.healthy_since is not None and now_s - history.healthy_since < RELAPSE_WINDOW_S
            history.relapses = history.relapses + 1 if relapse else 0
        history.faults, history.clear_since = faults, None


@dataclass(slots=True)
class _FaultHistory:
    """The faults of one device. relapses: consecutive ones."""

    faults: tuple[str, ...] = ()
    clear_since: float | None = None
    healthy_since: float | None = None
    relapses: int = 0

    @property
    def hold_s(self) -> float:
        """Time without faults after which the device counts as healthy."""
        beyond = self.relapses - FREE_RELAPSES
        return min(FIRST_HOLD_S * 2.0 ** (beyond - 1), LAST_HOLD_S) if beyond > 0 else 0.0
