"""Verdicts on devices, by the host's look and the agent's report."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from k8s_rdma.core.devices.rdma_devices import AllocatedDevice, DeviceInventory, RdmaDevice
from k8s_rdma.deviceplugin.health import (
    ABSENCE_GRACE_S,
    FIRST_HOLD_S,
    FORGET_AFTER_S,
    FREE_RELAPSES,
    LAST_HOLD_S,
    RELAPSE_WINDOW_S,
    SILENT_AGENT_GRACE_S,
    UNCLAIMED_GRACE_S,
    AgentReport,
    AgentState,
    Health,
)
from k8s_rdma.linux.rdma.observation import AwayDevice, PresentDevice, RdmaSnapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

PF, VF = "0000:3b:00.0", "0000:3b:00.2"
DEVICE = RdmaDevice(name="mlx5_1", pci=VF, pf=PF, pf_name="eth0", vf=0, netdev="eth11")
NO_AGENT = AgentState(silent_since=0.0)
HERE = RdmaSnapshot(present={"mlx5_1": PresentDevice(device=DEVICE)})
DOWN = ("port 1 is DOWN, not ACTIVE",)
SICK = RdmaSnapshot(present={"mlx5_1": PresentDevice(device=DEVICE, port_faults=DOWN)})


def away(*, elsewhere: bool = False, told: bool = True, faults: tuple[str, ...] = ()) -> RdmaSnapshot:
    device = replace(DEVICE, netdev="", at_home=False, faults=faults)
    return RdmaSnapshot(away={"mlx5_1": AwayDevice(device=device, elsewhere=elsewhere, is_listed=told)})


def agent(
    *given: str, silent_since: float | None = None, pfs: frozenset[str] = frozenset({PF})
) -> AgentState:
    devices = tuple(AllocatedDevice(name=name, pci=VF, pf=PF, vf=0, pod_uid="u1") for name in given)
    return AgentState(report=AgentReport(allocated=devices, pfs=pfs), silent_since=silent_since)


def faults(seen: DeviceInventory) -> tuple[str, ...]:
    return seen.devices["mlx5_1"].faults


def test_device_at_home_is_healthy_while_its_port_is_active() -> None:
    health = Health()
    assert faults(health.inventory(HERE, NO_AGENT, 0)) == ()
    assert faults(health.inventory(SICK, NO_AGENT, 1)) == DOWN
    assert faults(health.inventory(HERE, NO_AGENT, 2)) == ()


def test_ports_of_a_device_that_a_pod_has_do_not_count() -> None:
    assert faults(Health().inventory(SICK, agent("mlx5_1"), 0)) == ()


def test_nodes_of_a_device_that_a_pod_has_count() -> None:
    broken = RdmaSnapshot(present={"mlx5_1": PresentDevice(device=replace(DEVICE, faults=("no driver",)))})
    assert faults(Health().inventory(broken, agent("mlx5_1"), 0)) == ("no driver",)


def test_vf_without_setup_is_healthy_if_the_agent_sets_it_up() -> None:
    look = RdmaSnapshot(present={"mlx5_1": PresentDevice(device=DEVICE, port_faults=DOWN, vf_set_down=True)})
    assert faults(Health().inventory(look, agent(), 0)) == ()
    assert faults(Health().inventory(look, agent(silent_since=0.0), 1)) == ()
    assert faults(Health().inventory(look, NO_AGENT, 0)) == DOWN
    assert faults(Health().inventory(look, agent(pfs=frozenset()), 0)) == DOWN


def test_vf_without_setup_is_as_healthy_as_its_uplink() -> None:
    here = PresentDevice(device=DEVICE, port_faults=DOWN, uplink_faults=("no carrier",), vf_set_down=True)
    assert faults(Health().inventory(RdmaSnapshot(present={"mlx5_1": here}), agent(), 0)) == ("no carrier",)


def test_device_that_a_pod_has_is_healthy_though_it_vanished() -> None:
    health = Health()
    health.inventory(HERE, agent(), 0)
    for now in (1, 100, 100_000):
        seen = health.inventory(away(), agent("mlx5_1"), now)
        assert (faults(seen), seen.devices["mlx5_1"].at_home) == ((), False)
        assert list(seen.allocated or ()) == ["mlx5_1"]


def test_device_that_a_pod_has_is_known_to_a_plugin_that_never_saw_it() -> None:
    health = Health()
    assert health.expected(agent("mlx5_1")) == {"mlx5_1": VF}
    seen = health.inventory(away(), agent("mlx5_1"), 0)
    assert (faults(seen), seen.devices["mlx5_1"].pf) == ((), PF)


def test_known_device_is_searched_at_its_last_place() -> None:
    health = Health()
    health.inventory(HERE, NO_AGENT, 0)
    assert health.expected(NO_AGENT) == {"mlx5_1": VF}


def test_function_that_was_never_seen_is_no_fault_of_a_given_device() -> None:
    """As with virtual functions that are unknown to sysfs."""
    lacking = RdmaDevice(name="mlx5_1", faults=("its PCI function is gone",), at_home=False)
    look = RdmaSnapshot(away={"mlx5_1": AwayDevice(device=lacking, elsewhere=False, is_listed=False)})
    health = Health()
    for now in (0, 1):
        assert faults(health.inventory(look, agent("mlx5_1"), now)) == ()


def test_device_that_a_pod_has_is_ill_when_its_driver_has_left() -> None:
    health = Health()
    health.inventory(HERE, agent(), 0)
    assert faults(health.inventory(away(faults=("no driver",)), agent("mlx5_1"), 1)) == ("no driver",)


def test_device_given_without_a_name_is_found_by_its_last_place() -> None:
    health = Health()
    health.inventory(HERE, agent(), 0)
    seen = health.inventory(away(), agent(""), 1)
    assert (faults(seen), list(seen.allocated or ())) == ((), ["mlx5_1"])


def test_device_that_is_nowhere_is_ill_within_two_seconds() -> None:
    for told in (NO_AGENT, agent(), agent(silent_since=0.5)):
        health = Health()
        health.inventory(HERE, told, 0)
        assert faults(health.inventory(away(), told, 1)) == ()
        assert health.due_at() == 1 + ABSENCE_GRACE_S
        assert faults(health.inventory(away(), told, 1 + ABSENCE_GRACE_S)) == ("it is gone",)
        assert faults(health.inventory(HERE, told, 10)) == ()


def test_ill_device_does_not_get_well_by_vanishing() -> None:
    health = Health()
    health.inventory(SICK, NO_AGENT, 0)
    assert faults(health.inventory(away(), NO_AGENT, 1)) == DOWN


def test_device_whose_driver_left_is_ill_unless_it_is_back_soon() -> None:
    health = Health()
    health.inventory(HERE, agent(), 0)
    assert faults(health.inventory(away(faults=("no driver",)), agent(), 1)) == ()  # it may be back
    gone = health.inventory(away(faults=("no driver",)), agent(), 1 + ABSENCE_GRACE_S)
    assert faults(gone) == ("no driver", "it is gone")


def test_device_in_another_namespace_waits_for_the_agent_to_claim_it() -> None:
    health = Health()
    health.inventory(HERE, agent(), 0)
    assert faults(health.inventory(away(elsewhere=True), agent(), 1)) == ()
    assert faults(health.inventory(away(elsewhere=True), agent("mlx5_1"), 5)) == ()
    assert faults(health.inventory(away(elsewhere=True), agent(), UNCLAIMED_GRACE_S)) == ()
    [fault] = faults(health.inventory(away(elsewhere=True), agent(), 1 + UNCLAIMED_GRACE_S))
    assert "another network namespace" in fault


def test_device_that_the_agent_gave_stands_while_the_agent_is_silent() -> None:
    health = Health()
    health.inventory(away(), agent("mlx5_1"), 0)
    silent = agent("mlx5_1", silent_since=10.0)
    seen = health.inventory(away(), silent, 11)
    assert (faults(seen), list(seen.allocated or ())) == ((), ["mlx5_1"])
    assert faults(health.inventory(away(), silent, 9 + SILENT_AGENT_GRACE_S)) == ()
    [fault] = faults(health.inventory(away(), silent, 10 + SILENT_AGENT_GRACE_S))
    assert "the agent does not report" in fault
    assert faults(health.inventory(away(), agent("mlx5_1"), 11 + SILENT_AGENT_GRACE_S)) == ()


def test_devices_of_pods_are_unknown_before_the_agent_reports_them() -> None:
    assert Health().inventory(HERE, NO_AGENT, 0).allocated is None
    assert Health().inventory(HERE, agent(), 0).allocated == {}


def test_device_elsewhere_stands_after_a_start_without_an_agent() -> None:
    health = Health()
    assert faults(health.inventory(away(elsewhere=True), NO_AGENT, 0)) == ()
    assert faults(health.inventory(away(elsewhere=True), NO_AGENT, SILENT_AGENT_GRACE_S)) != ()


def test_unreadable_device_keeps_its_state() -> None:
    health = Health()
    health.inventory(SICK, NO_AGENT, 0)
    seen = health.inventory(RdmaSnapshot(unreadable={"mlx5_1": "EIO"}), NO_AGENT, 5)
    assert (faults(seen), seen.unreadable) == (DOWN, ("EIO",))


def test_device_that_is_nowhere_for_long_is_forgotten() -> None:
    health = Health()
    health.inventory(HERE, agent(), 0)
    health.inventory(away(), agent(), 1)
    assert "mlx5_1" in health.inventory(away(), agent(), FORGET_AFTER_S).devices
    assert health.inventory(away(), agent(), 1 + FORGET_AFTER_S).devices == {}
    assert health.expected(agent()) == {}
    assert health.inventory(RdmaSnapshot(), agent(), 2 + FORGET_AFTER_S).devices == {}


def test_relapses_have_a_device_wait_longer_and_longer() -> None:
    health, now, holds = Health(), 0.0, []
    for _ in range(FREE_RELAPSES + 7):
        health.inventory(SICK, NO_AGENT, now)
        cleared = now = now + 0.1
        while faults(health.inventory(HERE, NO_AGENT, now)):
            now = health.due_at() or 0.0
        holds.append(round(now - cleared, 3))
        now += 0.1
    assert holds[: FREE_RELAPSES + 1] == [0] * (FREE_RELAPSES + 1)
    assert holds[FREE_RELAPSES + 1 :] == [
        FIRST_HOLD_S,
        2 * FIRST_HOLD_S,
        4 * FIRST_HOLD_S,
        *([LAST_HOLD_S] * 3),
    ]


def test_fault_during_the_wait_begins_it_anew() -> None:
    health = Health()
    for now in range(FREE_RELAPSES + 1):
        health.inventory(SICK, NO_AGENT, now)
        assert faults(health.inventory(HERE, NO_AGENT, now + 0.5)) == ()
    for now in (10, 10.6):
        health.inventory(SICK, NO_AGENT, now)
        assert faults(health.inventory(HERE, NO_AGENT, now + 0.5)) == DOWN
    assert faults(health.inventory(HERE, NO_AGENT, 12)) == DOWN
    assert faults(health.inventory(HERE, NO_AGENT, 12.1)) == ()


def test_fault_after_a_calm_time_is_no_relapse() -> None:
    health = Health()
    for now in (0.0, 3 + RELAPSE_WINDOW_S):
        health.inventory(SICK, NO_AGENT, now)
        assert faults(health.inventory(HERE, NO_AGENT, now + 1)) == ()


def test_slots_are_those_that_the_agent_reported_last() -> None:
    told = AgentState(report=AgentReport(held_slots=frozenset({"a"})), silent_since=3.0)
    assert Health().inventory(RdmaSnapshot(), told, 5).held_slots == {"a"}
    assert Health().inventory(RdmaSnapshot(), NO_AGENT, 5).held_slots is None


class Read(tuple[AllocatedDevice, ...]):
    """Counts how often it is gone through."""

    times: int

    def __iter__(self) -> Iterator[AllocatedDevice]:
        self.times += 1
        return super().__iter__()


def test_a_report_of_many_devices_is_gone_through_as_often_as_one_of_few() -> None:
    def times(devices: int) -> int:
        names = [f"mlx5_{number}" for number in range(devices)]
        given = Read(AllocatedDevice(name=name, pci=name, pf=PF, vf=0, pod_uid="u1") for name in names[::2])
        given.times = 0
        look = RdmaSnapshot(
            present={name: PresentDevice(device=replace(DEVICE, name=name, pci=name)) for name in names[:-5]},
            away={
                name: AwayDevice(device=replace(DEVICE, name=name, pci=name), elsewhere=True, is_listed=True)
                for name in names[-5:]
            },
        )
        Health().inventory(look, AgentState(report=AgentReport(allocated=given)), 0)
        return given.times

    assert times(1000) == times(10)
