"""Which changes of health are reported to people."""

from __future__ import annotations

from k8s_rdma.core.devices.rdma_devices import DeviceInventory, RdmaDevice
from k8s_rdma.deviceplugin.health_events import BURST, EVERY_S, EventLimiter


def seen(**faults: str) -> DeviceInventory:
    devices = {
        name: RdmaDevice(name=name, faults=(fault,) if fault else ()) for name, fault in faults.items()
    }
    return DeviceInventory(devices=devices)


def told(telling: EventLimiter, now: float, **faults: str) -> list[tuple[str, bool, str, int]]:
    changes = telling.changes(seen(**faults), now)
    return [(each.device.name, each.healthy, each.why, each.changes) for each in changes]


def test_healthy_devices_are_no_news() -> None:
    assert told(EventLimiter(), 0, a="", b="") == []


def test_every_change_is_reported_once() -> None:
    telling = EventLimiter()
    assert told(telling, 0, a="x", b="") == [("a", False, "x", 1)]
    assert told(telling, 1, a="x", b="") == []
    assert told(telling, 2, a="y", b="") == []
    assert told(telling, 3, a="", b="z") == [("a", True, "", 1), ("b", False, "z", 1)]


def test_flapping_device_is_reported_rarely_with_the_number_of_changes() -> None:
    telling, lines = EventLimiter(), []
    for second in range(600):
        lines += told(telling, second, a="x" if second % 2 else "")
    assert len(lines) <= BURST + 600 / EVERY_S + 1
    assert sum(changes for *_, changes in lines) >= 560


def test_final_state_of_a_device_is_always_reported() -> None:
    telling = EventLimiter()
    for second in range(9):
        told(telling, second, a="" if second % 2 else "x")
    due = telling.due_at()
    assert due is not None
    [(name, healthy, why, changes)] = told(telling, due, a="x")
    assert (name, healthy, why) == ("a", False, "x")
    assert changes > 1
    assert telling.due_at() is None


def test_device_that_is_not_there_any_more_is_forgotten() -> None:
    telling = EventLimiter()
    for second in range(9):
        told(telling, second, a="" if second % 2 else "x")
    assert told(telling, 20) == []
    assert telling.due_at() is None
