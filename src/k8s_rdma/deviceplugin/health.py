"""Health of each device: the host's scan and the agent's report, judged together, and damped.

Pure but for what it remembers: time is an argument, in seconds of a monotonic clock. Each relapse of a
device has it wait longer before it counts as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from k8s_rdma.core.devices.rdma_devices import AllocatedDevice, DeviceInventory, RdmaDevice
from k8s_rdma.deviceplugin.agent_link import AgentTold

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.linux.rdma.observation import AwayDevice, PresentDevice, RdmaSnapshot

CALM_S = 60.0
"""After so long without a fault, the next one is no relapse."""

FREE = 3
"""Relapses that mean nothing yet: a driver that resets its link, or a switch that starts, makes some."""

FIRST_HOLD_S = 1.0
LAST_HOLD_S = 8.0
"""A link that comes and goes all the time is told of at most every 8 s or so; one that has come back for good
is in use again within that."""


@dataclass(slots=True)
class _Course:
    """Of one device. relapses: in a row."""

    faults: tuple[str, ...] = ()
    clear_since: float | None = None
    well_since: float | None = None
    relapses: int = 0

    @property
    def hold_s(self) -> float:
        """How long it must be without faults to count as well."""
        beyond = self.relapses - FREE
        return min(FIRST_HOLD_S * 2.0 ** (beyond - 1), LAST_HOLD_S) if beyond > 0 else 0.0


class Damping:
    """What each device's faults count as; times in seconds of a monotonic clock."""

    def __init__(self) -> None:
        """All are well."""
        self._courses: dict[str, _Course] = {}

    def faults(self, name: str, faults: tuple[str, ...], now: float) -> tuple[tuple[str, ...], float | None]:
        """Those that count, and until when they would if nothing changed; None for ever."""
        course = self._courses.get(name)
        if faults:
            course = course or self._courses.setdefault(name, _Course())
            self._fall_ill(course, faults, now)
            return faults, None
        if course is None or not course.faults:
            return (), None
        if course.clear_since is None:
            course.clear_since = now
        until = course.clear_since + course.hold_s
        if now < until:
            return course.faults, until
        course.faults, course.well_since = (), now
        return (), None

    def keep(self, names: frozenset[str]) -> None:
        """Forget all others."""
        self._courses = {name: course for name, course in self._courses.items() if name in names}

    @staticmethod
    def _fall_ill(course: _Course, faults: tuple[str, ...], now: float) -> None:
        if not course.faults:
            relapse = course.well_since is not None and now - course.well_since < CALM_S
            course.relapses = course.relapses + 1 if relapse else 0
        course.faults, course.clear_since = faults, None


SETTLE_S = 1.0
"""A device that is nowhere may be back at once (renamed, its driver reloaded by a reset); kubelet is told of
one that is not within two seconds, of which looking takes up to one."""

UNCLAIMED_S = 30.0
"""In another namespace, and no pod's by the agent's report: that follows the end of a CNI ADD, which moves
the device and then waits for address plugins, each for up to 10 s."""

STANDS_S = 600.0
"""While the agent is silent, what it gave stays given: nothing else moves devices, and it is back within
kubelet's longest pause between two starts of a container, 300 s, and the time to load an image."""

FORGOTTEN_S = 3600.0
"""After so long a device that is nowhere is not offered any more: soft ones come and go under new names."""

_GONE = "it is gone"
_UNCLAIMED = "it is in another network namespace, and no pod was given it"
_UNKNOWN = "it is not in the host's network namespace, and the agent does not tell whether a pod has it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """told: last; None for never. silent_since: None while it tells."""

    told: AgentTold | None = None
    silent_since: float | None = None


@dataclass(slots=True)
class _Known:
    """device: as it was judged last, without damping. away_since: None while it is at home."""

    device: RdmaDevice
    away_since: float | None = None


class Health:
    """Remembers each device until it is forgotten."""

    def __init__(self) -> None:
        """Nothing was seen."""
        self._known: dict[str, _Known] = {}
        self._damping = Damping()
        self._deadlines: list[float] = []

    def expected(self, agent: Agent) -> Mapping[str, str]:
        """Devices that may be away, and the addresses of their functions: a look is to look for these."""
        given = {each.name: each.pci for each in self._given(agent).values()}
        return {**dict.fromkeys(self._known, ""), **given} | {
            name: known.device.pci for name, known in self._known.items() if known.device.pci
        }

    def judged(
        self, look: RdmaSnapshot, agent: Agent, now: float, *, unreadable: tuple[str, ...] = ()
    ) -> DeviceInventory:
        """All devices with the faults that count now; unreadable: what else could not be looked at."""
        self._deadlines.clear()
        given = self._given(agent)
        devices = {}
        for name in sorted({*look.present, *look.away, *self._known}):
            device = self._device(name, look, agent, now, given=name in given)
            if device is not None:
                faults, until = self._damping.faults(name, device.faults, now)
                self._wait(until)
                devices[name] = device if faults == device.faults else replace(device, faults=faults)
        self._damping.keep(frozenset(devices))
        return DeviceInventory(
            devices=devices,
            allocated=given if agent.told else None,
            netns_mode=look.netns_mode,
            rdma_cm=look.rdma_cm,
            directory=look.directory,
            held_slots=agent.told.held_slots if agent.told else None,
            unreadable=(*unreadable, *look.unreadable.values()),
        )

    def due_at(self) -> float | None:
        """When to judge again though nothing may have changed; None for never."""
        return min(self._deadlines, default=None)

    def _given(self, agent: Agent) -> dict[str, AllocatedDevice]:
        """What pods have by the last report; a device without a name there by where it was seen."""
        if agent.told is None:
            return {}
        names = {known.device.pci: name for name, known in self._known.items() if known.device.pci}
        named = ((each.name or names.get(each.pci, ""), each) for each in agent.told.given)
        return {name: replace(each, name=name) for name, each in named if name}

    def _device(
        self, name: str, look: RdmaSnapshot, agent: Agent, now: float, *, given: bool
    ) -> RdmaDevice | None:
        if name in look.present:
            here = look.present[name]
            device = here.device if given else self._free_at_home(here, agent)
            self._known[name] = _Known(device)
            return device
        known = self._known.get(name)
        if name in look.unreadable or name not in look.away:
            return known.device if known else None
        return self._away(name, look.away[name], agent, now, given=given)

    @staticmethod
    def _free_at_home(here: PresentDevice, agent: Agent) -> RdmaDevice:
        """Its ports count, as no pod has it: one could do with them what it likes.

        Those of a VF that nobody has set up are down: the agent sets it up when it gives it to a pod, and
        the PF's link tells whether it can be of use.
        """
        device = here.device
        waits = here.vf_set_down and agent.told is not None and device.pf in agent.told.pfs
        return replace(device, faults=(*device.faults, *(here.uplink_faults if waits else here.port_faults)))

    def _away(
        self, name: str, away: AwayDevice, agent: Agent, now: float, *, given: bool
    ) -> RdmaDevice | None:
        known = self._known.get(name)
        device = _as_last_seen(away, known.device if known else None)
        if known is None and not given and not away.elsewhere:
            return None
        since = now if known is None or known.away_since is None else known.away_since
        if not given and not away.elsewhere and now - since >= FORGOTTEN_S:
            del self._known[name]
            return None
        why, stands_until = self._absence(away, agent, since, given=given)
        faults = away.device.faults if away.is_listed or (known and known.device.pci) else ()
        if now < stands_until:
            self._wait(stands_until)
            if why is _GONE and known is not None:
                faults = known.device.faults
        elif why:
            faults = (*faults, why)
        device = replace(device, faults=faults)
        self._known[name] = _Known(device, since)
        return device

    @staticmethod
    def _absence(away: AwayDevice, agent: Agent, since: float, *, given: bool) -> tuple[str, float]:
        """Why a device is not healthy though nothing is known to be wrong with it, and from when."""
        if given and agent.silent_since is None:
            return "", since
        if given or (away.elsewhere and agent.silent_since is not None):
            return _UNKNOWN, max(since, agent.silent_since or since) + STANDS_S
        return (_UNCLAIMED, since + UNCLAIMED_S) if away.elsewhere else (_GONE, since + SETTLE_S)

    def _wait(self, until: float | None) -> None:
        if until is not None:
            self._deadlines.append(until)


def _as_last_seen(away: AwayDevice, last: RdmaDevice | None) -> RdmaDevice:
    """What its function and its character devices tell, else what was seen last."""
    if last is None or away.is_listed:
        return away.device
    return replace(last, nodes=away.device.nodes, at_home=False, netdev="")
