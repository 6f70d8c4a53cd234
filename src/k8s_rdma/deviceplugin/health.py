"""Health of each device: the host's scan and the agent's report, judged together, and damped.

Pure but for what it remembers: time is an argument, in seconds of a monotonic clock. Each relapse of a
device has it wait longer before it counts as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from k8s_rdma.core.devices.rdma_devices import AllocatedDevice, DeviceInventory, RdmaDevice

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.linux.rdma.observation import AwayDevice, PresentDevice, RdmaSnapshot
    from k8s_rdma.wire.rest import NodeReport

RELAPSE_WINDOW_S = 60.0
"""After so long without a fault, the next one is no relapse."""

FREE_RELAPSES = 3
"""Relapses that mean nothing yet: a driver that resets its link, or a switch that starts, makes some."""

FIRST_HOLD_S = 1.0
LAST_HOLD_S = 8.0
"""A link that comes and goes all the time is told of at most every 8 s or so; one that has come back for good
is in use again within that."""

ABSENCE_GRACE_S = 1.0
"""A device that is nowhere may be back at once (renamed, its driver reloaded by a reset); kubelet is told of
one that is not within two seconds, of which looking takes up to one."""

UNCLAIMED_GRACE_S = 30.0
"""In another namespace, and no pod's by the agent's report: that follows the end of a CNI ADD, which moves
the device and then waits for address plugins, each for up to 10 s."""

SILENT_AGENT_GRACE_S = 600.0
"""While the agent is silent, what it gave stays given: nothing else moves devices, and it is back within
kubelet's longest pause between two starts of a container, 300 s, and the time to load an image."""

FORGET_AFTER_S = 3600.0
"""After so long a device that is nowhere is not offered any more: soft ones come and go under new names."""

_ABSENT = "it is gone"
_UNCLAIMED = "it is in another network namespace, and no pod was given it"
_UNKNOWN = "it is not in the host's network namespace, and the agent does not tell whether a pod has it"


class Health:
    """Remembers each device until it is forgotten."""

    def __init__(self) -> None:
        """Nothing was seen."""
        self._history: dict[str, _DeviceHistory] = {}
        self._damping = Damping()
        self._deadlines: list[float] = []

    def expected(self, agent: Agent) -> Mapping[str, str]:
        """Devices that may be away, and the addresses of their functions: a look is to look for these."""
        allocated = {device.name: device.pci for device in self._allocated(agent).values()}
        return {**dict.fromkeys(self._history, ""), **allocated} | {
            name: record.device.pci for name, record in self._history.items() if record.device.pci
        }

    def inventory(
        self, snapshot: RdmaSnapshot, agent: Agent, now_s: float, *, unreadable: tuple[str, ...] = ()
    ) -> DeviceInventory:
        """All devices with the faults that count now; unreadable: what else could not be looked at."""
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
        """When to judge again though nothing may have changed; None for never."""
        return min(self._deadlines, default=None)

    def _allocated(self, agent: Agent) -> dict[str, AllocatedDevice]:
        """What pods have by the last report; a device without a name there by where it was seen."""
        if agent.report is None:
            return {}
        names = {record.device.pci: name for name, record in self._history.items() if record.device.pci}
        named = ((device.name or names.get(device.pci, ""), device) for device in agent.report.allocated)
        return {name: replace(device, name=name) for name, device in named if name}

    def _device(
        self, name: str, snapshot: RdmaSnapshot, agent: Agent, now_s: float, *, allocated: bool
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
    def _free_at_home(present: PresentDevice, agent: Agent) -> RdmaDevice:
        """Its ports count, as no pod has it: one could do with them what it likes.

        Those of a VF that nobody has set up are down: the agent sets it up when it gives it to a pod, and
        the PF's link tells whether it can be of use.
        """
        device = present.device
        waits = present.vf_set_down and agent.report is not None and device.pf in agent.report.pfs
        return replace(
            device, faults=(*device.faults, *(present.uplink_faults if waits else present.port_faults))
        )

    def _away(
        self, name: str, away: AwayDevice, agent: Agent, now_s: float, *, allocated: bool
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
        away: AwayDevice, agent: Agent, missing_since: float, *, allocated: bool
    ) -> tuple[str, float]:
        """Why a device is not healthy though nothing is known to be wrong with it, and from when."""
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
    """device: as it was judged last, without damping. away_since: None while it is at home."""

    device: RdmaDevice
    away_since: float | None = None


def _as_last_seen(away: AwayDevice, last: RdmaDevice | None) -> RdmaDevice:
    """What its function and its character devices tell, else what was seen last."""
    if last is None or away.is_listed:
        return away.device
    return replace(last, nodes=away.device.nodes, at_home=False, netdev="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """report: last; None for never. silent_since: None while it tells."""

    report: AgentReport | None = None
    silent_since: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReport:
    """Of one report.

    allocated: in no order; the name is empty where the agent does not know it. pfs: addresses of those whose
    VFs it gives, and sets up as it does. held_slots: CDI devices of slots that attachments hold.
    """

    allocated: tuple[AllocatedDevice, ...] = ()
    pfs: frozenset[str] = frozenset()
    held_slots: frozenset[str] = frozenset()


def read_report(report: NodeReport) -> AgentReport:
    """Devices in a report."""
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
    """What each device's faults count as; times in seconds of a monotonic clock."""

    def __init__(self) -> None:
        """All are well."""
        self._histories: dict[str, _FaultHistory] = {}

    def faults(
        self, name: str, faults: tuple[str, ...], now_s: float
    ) -> tuple[tuple[str, ...], float | None]:
        """Those that count, and until when they would if nothing changed; None for ever."""
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
        """Forget all others."""
        self._histories = {name: course for name, course in self._histories.items() if name in names}

    @staticmethod
    def _record_faults(history: _FaultHistory, faults: tuple[str, ...], now_s: float) -> None:
        if not history.faults:
            relapse = history.healthy_since is not None and now_s - history.healthy_since < RELAPSE_WINDOW_S
            history.relapses = history.relapses + 1 if relapse else 0
        history.faults, history.clear_since = faults, None


@dataclass(slots=True)
class _FaultHistory:
    """Of one device. relapses: in a row."""

    faults: tuple[str, ...] = ()
    clear_since: float | None = None
    healthy_since: float | None = None
    relapses: int = 0

    @property
    def hold_s(self) -> float:
        """Time that it must be without faults to count as healthy."""
        beyond = self.relapses - FREE_RELAPSES
        return min(FIRST_HOLD_S * 2.0 ** (beyond - 1), LAST_HOLD_S) if beyond > 0 else 0.0
