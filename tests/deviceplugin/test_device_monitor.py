"""Observations of devices, kept up to date."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from deviceplugin.played_agent import PlayedAgent, report
from k8s_rdma.config.devices import DevicePluginConfig
from k8s_rdma.deviceplugin.device_monitor import DeviceMonitor
from k8s_rdma.deviceplugin.main import render_metrics
from linux.small_machine import INFINIBAND, PF, vf_pci
from rdma_machine import MAJOR, RdmaMachine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path

    from k8s_rdma.core.devices.rdma_devices import DeviceInventory
    from k8s_rdma.deviceplugin.health_events import HealthChange

DEADLINE_S = 120


def run(scenario: Coroutine[Any, Any, None]) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await scenario

    asyncio.run(in_time())


@pytest.fixture
def machine(tmp_path: Path) -> RdmaMachine:
    return RdmaMachine(tmp_path)


@asynccontextmanager
async def monitor(tmp_path: Path, machine: RdmaMachine, **more: Any) -> AsyncIterator[DeviceMonitor]:
    config = DevicePluginConfig(run_dir=str(tmp_path / "run"))
    async with DeviceMonitor(config, host=machine.host(), **more) as found:
        yield found


async def until(look: DeviceMonitor, holds: Callable[[DeviceInventory], bool]) -> DeviceInventory:
    seen = look.inventory
    while not holds(seen):
        seen = await look.wait_for_change(seen)
    return seen


def healthy(name: str, *, at_home: bool = True) -> Callable[[DeviceInventory], bool]:
    def holds(seen: DeviceInventory) -> bool:
        device = seen.devices.get(name)
        return device is not None and not device.faults and device.at_home == at_home

    return holds


def ill(name: str) -> Callable[[DeviceInventory], bool]:
    return lambda seen: bool(seen.devices[name].faults)


def test_all_devices_are_known_at_once(tmp_path: Path, machine: RdmaMachine) -> None:
    async def scenario() -> None:
        async with monitor(tmp_path, machine) as look:
            assert list(look.inventory.devices) == ["mlx5_0", "mlx5_1", "mlx5_2"]
            assert (look.inventory.allocated, look.inventory.held_slots, look.inventory.rdma_cm) == (
                None,
                None,
                True,
            )
            assert (look.succeeded, look.scan_counts.failed) == (True, 0)

    run(scenario())


def test_hardware_is_read_on_request(tmp_path: Path, machine: RdmaMachine) -> None:
    async def scenario() -> None:
        async with monitor(tmp_path, machine) as look:
            before = look.scan_counts.total
            look.rescan()
            while look.scan_counts.total == before:  # noqa: ASYNC110  no event
                await asyncio.sleep(0.01)
            assert look.scan_age_s < DEADLINE_S

    run(scenario())


def test_device_is_ill_while_its_node_is_missing(tmp_path: Path, machine: RdmaMachine) -> None:
    async def scenario() -> None:
        heard: list[HealthChange] = []
        async with monitor(tmp_path, machine, on_health_changes=heard.extend) as look:
            machine.remove_node("uverbs1")
            seen = await until(look, ill("mlx5_1"))
            assert not seen.devices["mlx5_2"].faults
            why = "/dev/infiniband/uverbs1 is missing"
            reading = f'_unhealthy_rdma_device{{device="mlx5_1",pf="eth0",why="{why}"}} 1'
            assert reading in render_metrics((), look)
            machine.make_node("uverbs1", MAJOR, 193)
            await until(look, healthy("mlx5_1"))
            figures = render_metrics((), look)
            assert '_health_changes_total{device="mlx5_1",health="unhealthy"} 1' in figures
            assert '_health_changes_total{device="mlx5_1",health="healthy"} 1' in figures
        assert [(each.device.name, each.healthy) for each in heard] == [("mlx5_1", False), ("mlx5_1", True)]

    with capture_logs() as logs:
        run(scenario())
    [line] = [line for line in logs if line["event"] == "device_unhealthy"]
    assert (line["device"], line["why"]) == ("mlx5_1", "/dev/infiniband/uverbs1 is missing")
    assert [line["device"] for line in logs if line["event"] == "device_healthy"] == ["mlx5_1"]


def test_device_is_ill_while_its_infiniband_port_is_down(tmp_path: Path, machine: RdmaMachine) -> None:
    machine.write(f"{machine.device(PF)}/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand")
    machine.set_link("eth0", type=INFINIBAND)

    def set_port(state: str) -> None:
        machine.set_port("mlx5_0", state.rpartition(" ")[2])
        machine.write(f"{machine.device(PF)}/infiniband/mlx5_0/ports/1/state", state)

    async def scenario() -> None:
        async with monitor(tmp_path, machine) as look:
            set_port("1: DOWN")
            seen = await until(look, ill("mlx5_0"))
            assert seen.devices["mlx5_0"].faults == ("port 1 is DOWN, not ACTIVE",)
            set_port("4: ACTIVE")
            await until(look, healthy("mlx5_0"))

    run(scenario())


def test_devices_of_pods_are_known_at_once_if_there_is_an_agent(tmp_path: Path, machine: RdmaMachine) -> None:
    machine.take_away("mlx5_1", vf_pci(0), 1, new_number=7)

    async def scenario() -> None:
        async with PlayedAgent(tmp_path / "run/state.sock") as agent:
            agent.report = report("mlx5_1", slots=("s.slot-0",))
            async with monitor(tmp_path, machine) as look:
                assert list(look.inventory.allocated or ()) == ["mlx5_1"]
                assert look.inventory.held_slots == {"s.slot-0"}
                [node] = look.inventory.devices["mlx5_1"].nodes
                assert node.path == "/dev/infiniband/uverbs7"
                assert not look.inventory.devices["mlx5_1"].faults

    run(scenario())


def test_device_stays_healthy_from_home_to_pod_through_an_agents_restart_and_back(
    tmp_path: Path, machine: RdmaMachine
) -> None:
    async def scenario() -> None:
        heard: list[HealthChange] = []
        agent = PlayedAgent(tmp_path / "run/state.sock")
        async with agent, monitor(tmp_path, machine, on_health_changes=heard.extend) as look:
            machine.take_away("mlx5_1", vf_pci(0), 1, new_number=7)
            agent.tell(report("mlx5_1"))
            await until(look, lambda seen: bool(seen.allocated))
            await until(look, healthy("mlx5_1", at_home=False))
            await agent.stop()
            while "agent_lost" not in [line["event"] for line in logs]:  # noqa: ASYNC110  no event
                await asyncio.sleep(0.01)
            assert healthy("mlx5_1", at_home=False)(look.inventory)
            assert list(look.inventory.allocated or ()) == ["mlx5_1"]
            await agent.start()
            machine.remove_verbs(7)
            machine.add_rdma_again("mlx5_1", vf_pci(0), 1)
            agent.tell(report())
            await until(look, healthy("mlx5_1"))
        assert heard == []

    with capture_logs() as logs:
        run(scenario())


def test_missing_device_without_a_holder_is_gone(tmp_path: Path, machine: RdmaMachine) -> None:
    async def scenario() -> None:
        async with PlayedAgent(tmp_path / "run/state.sock"), monitor(tmp_path, machine) as look:
            machine.take_away("mlx5_1", vf_pci(0), 1)
            seen = await until(look, ill("mlx5_1"))
            assert "it is gone" in seen.devices["mlx5_1"].faults

    run(scenario())


def test_devices_stay_while_the_host_cannot_be_looked_at(tmp_path: Path, machine: RdmaMachine) -> None:
    async def scenario() -> None:
        async with monitor(tmp_path, machine) as look:
            before = look.inventory
            numbers = machine.at("class/infiniband_verbs/uverbs1/dev")
            numbers.unlink()
            numbers.symlink_to(numbers)  # ELOOP
            machine.remove_node("uverbs2")  # a sign
            seen = await until(look, lambda seen: bool(seen.unreadable))
            assert seen.devices == before.devices
            numbers.unlink()
            machine.write("class/infiniband_verbs/uverbs1/dev", "231:193")
            seen = await until(look, lambda seen: not seen.unreadable)
            assert seen.devices["mlx5_2"].faults
            assert look.scan_counts.failed > 0

    with capture_logs() as logs:
        run(scenario())
    assert len([line for line in logs if line["event"] == "devices_unreadable"]) == 1


def test_no_device_is_known_until_the_host_can_be_read(tmp_path: Path, machine: RdmaMachine) -> None:
    numbers = machine.at("class/infiniband_verbs/uverbs1/dev")
    numbers.unlink()
    numbers.symlink_to(numbers)

    async def scenario() -> None:
        async with monitor(tmp_path, machine) as look:
            assert (look.succeeded, dict(look.inventory.devices)) == (False, {})
            assert look.inventory.unreadable
            numbers.unlink()
            machine.write("class/infiniband_verbs/uverbs1/dev", "231:193")
            await until(look, healthy("mlx5_1"))
            assert look.succeeded

    run(scenario())


_UNPRIVILEGED = """
import asyncio, os, sys
from k8s_rdma.config.devices import DevicePluginConfig
from k8s_rdma.deviceplugin.main import render_metrics
from k8s_rdma.deviceplugin.device_monitor import DeviceMonitor
os.setgroups([]); os.setgid(65534); os.setuid(65534)  # after the imports: it may not read this Python
assert "CapEff:\\t0000000000000000" in open("/proc/self/status").read()
async def main():
    async with DeviceMonitor(DevicePluginConfig(run_dir=sys.argv[1])) as look:
        assert look.succeeded, look.inventory
        assert not look.inventory.unreadable, look.inventory
asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become nobody")
def test_no_privilege_is_needed(tmp_path: Path) -> None:
    """On the machine that this runs on, whatever RDMA devices it has."""
    tmp_path.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", _UNPRIVILEGED, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
