"""The lab's machines themselves: commands, failures, cables, power, two on one fabric, NUMA."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from k8s_rdma import __version__
from lab.errors import CommandFailed, CommandTimedOut, LabError, MachineDied
from lab.layers import REPOSITORY
from lab.machine import Machine, Shape, start

if TYPE_CHECKING:
    from lab.cache import Cache

SLOW_S = 180


def until_carrier(machine: Machine, name: str, state: int) -> None:
    script = f'. /opt/lab/lib.sh; await "[[ \\$(</sys/class/net/{name}/carrier) == {state} ]]"'
    machine.run("bash", "-c", script, timeout_s=SLOW_S)


def test_command_is_given_arguments_input_and_environment(machine: Machine):
    ended = machine.run(
        "bash", "-c", 'cat; echo "$1 $WORD"; pwd >&2', "-", "two  words", input="in\n", env={"WORD": "out"}
    )
    assert ended.returncode == 0
    assert ended.stdout == "in\ntwo  words out\n"
    assert ended.stderr == "/lab\n"


def test_failed_command_raises_its_output_unless_unchecked(machine: Machine):
    with pytest.raises(CommandFailed, match=r"(?s)status 3.*said this"):
        machine.run("bash", "-c", "echo said this >&2; exit 3")
    assert machine.run("false", check=False).returncode == 1
    assert machine.run("bash", "-c", "kill -9 $$", check=False).returncode == -signal.SIGKILL


def test_command_that_is_not_there_says_so(machine: Machine):
    ended = machine.run("nosuchprogram", check=False)
    assert ended.returncode == 127
    assert "nosuchprogram" in ended.stderr


def test_command_whose_time_is_over_is_killed_with_its_children(machine: Machine):
    with pytest.raises(CommandTimedOut, match=r"(?s)killed after 2 s.*begun"):
        machine.run("bash", "-c", "echo begun; sleep 4321 & sleep 4321", timeout_s=2)
    assert machine.run("pgrep", "-f", "sleep 4321", check=False).returncode == 1


def test_commands_run_at_the_same_time(machine: Machine):
    fifo = "/tmp/meeting"  # noqa: S108 # the guest's
    machine.run("mkfifo", fifo)
    with ThreadPoolExecutor() as threads:
        heard = threads.submit(machine.run, "cat", fifo)
        told = threads.submit(machine.run, "bash", "-c", f"echo hello >{fifo}")
        assert told.result().returncode == 0
        assert heard.result().stdout == "hello\n"


def test_command_in_the_background_goes_on_until_it_is_stopped(machine: Machine):
    running = machine.start("bash", "-c", "echo one; sleep 1000", name="sleeper")
    machine.run("bash", "-c", '. /opt/lab/lib.sh; await "test -s /lab/sleeper.log"')
    assert running.running()
    assert running.stop() == -signal.SIGTERM
    assert not running.running()
    assert running.output() == "one\n"
    assert (machine.shared / "sleeper.log").read_text() == "one\n"


def test_clock_of_the_guest_goes_as_fast_as_ours(machine: Machine):
    def looked() -> tuple[float, float, float]:
        before = time.monotonic()
        uptime_s = float(machine.read("/proc/uptime").split()[0])
        return before, uptime_s, time.monotonic()

    first = looked()
    time.sleep(3)
    last = looked()
    least, most = last[0] - first[2], last[2] - first[0]
    assert 0.95 * least < last[1] - first[1] < 1.05 * most


def test_files_are_written_and_read(machine: Machine):
    machine.write("/etc/lab-test/deep/file", "text\n", mode=0o700)
    assert machine.read("/etc/lab-test/deep/file") == "text\n"
    assert machine.run("stat", "-c", "%a", "/etc/lab-test/deep/file").stdout == "700\n"
    (machine.shared / "from-host").write_text("shared")
    assert machine.read("/lab/from-host") == "shared"
    assert machine.read("/src/pyproject.toml") == (REPOSITORY / "pyproject.toml").read_text()
    with pytest.raises(CommandFailed, match="Read-only"):
        machine.run("touch", "/src/written")


def test_guest_has_the_project_as_users_install_it(machine: Machine):
    assert __version__ in machine.run("k8s-rdma", "--version", timeout_s=SLOW_S).stdout
    assert machine.run("/opt/cni/bin/k8s-rdma-cni", env={"CNI_COMMAND": "VERSION"}).stdout.startswith("{")


def test_cable_is_pulled_and_plugged_from_outside_and_inside(machine: Machine):
    machine.run("ip", "link", "set", "eth0", "up")
    until_carrier(machine, "eth0", 1)
    machine.cable("eth0", plugged=False)
    until_carrier(machine, "eth0", 0)
    machine.run("lab-cable", "eth0", "on")
    until_carrier(machine, "eth0", 1)
    with pytest.raises(LabError, match="no PF 'eth7' has a cable"):
        machine.cable("eth7", plugged=True)
    with pytest.raises(CommandFailed, match="refused: eth7 on"):
        machine.run("lab-cable", "eth7", "on")


def test_cards_have_seven_functions_whose_rates_are_kept_as_the_driver_can(machine: Machine):
    assert machine.read("/sys/class/net/eth1/device/sriov_totalvfs") == "7\n"
    machine.run("lab-sriov", "7", timeout_s=SLOW_S)
    machine.run("ip", "link", "set", "eth1", "vf", "6", "max_tx_rate", "100")
    refused = machine.run("ip", "link", "set", "eth1", "vf", "6", "min_tx_rate", "10", check=False)
    assert "Invalid argument" in refused.stderr
    (link,) = json.loads(machine.run("ip", "-json", "-details", "link", "show", "eth1").stdout)
    assert link["vfinfo_list"][6]["rate"] == {"max_tx": 100, "min_tx": 0}


def test_soft_rdma_device_survives_a_move_of_its_netdev_if_configured(machine: Machine):
    script = """
    set -e; . /opt/lab/lib.sh
    rdma system set netns exclusive
    modprobe rdma_rxe; echo $1 >/sys/module/rdma_rxe/parameters/survives_moves
    ip link add pair0 type veth peer name pair1; ip link set pair0 up; ip link set pair1 up
    rdma link add rxe0 type rxe netdev pair0
    ip netns add moved; ip link set pair0 netns moved; sleep 1
    rdma link show | grep -c rxe0 || true
    ip netns del moved; rdma link delete rxe0 2>/dev/null || true; modprobe -r rdma_rxe
    """
    machine.run("modprobe", "-a", "ib_uverbs", "rdma_ucm")
    for parameter, devices in (("N", "0\n"), ("Y", "1\n")):
        assert machine.run("bash", "-c", script, "-", parameter, timeout_s=SLOW_S).stdout == devices


def test_disk_survives_a_crash_and_a_reboot_and_memory_does_not(lone_machine: Machine):
    lone_machine.run(
        "bash", "-c", "echo kept >/disk/written; sync; echo gone >/disk/unwritten; echo >/memory"
    )
    running = lone_machine.start("sleep", "1000", name="interrupted")
    lone_machine.crash()
    assert lone_machine.read("/disk/written") == "kept\n"
    assert lone_machine.run("test", "-e", "/memory", check=False).returncode == 1
    with pytest.raises(MachineDied):
        running.wait(1)
    lone_machine.run("bash", "-c", "echo last >/disk/last")
    lone_machine.reboot()
    assert lone_machine.read("/disk/last") == "last\n"


def test_boot_in_which_the_emulator_fails_is_begun_again(lone_machine: Machine):
    lone_machine.close()
    lone_machine.switch_on()
    console = f"id=console,path={lone_machine.shared}/"
    subprocess.run(["pkill", "-ABRT", "-P", str(os.getpid()), "-f", console], check=True)
    lone_machine.await_boot()
    assert lone_machine.run("hostname").stdout == "node\n"


def test_machine_that_dies_shows_its_console(lone_machine: Machine):
    with pytest.raises(MachineDied, match=r"(?s)console.*sysrq triggered crash"):
        lone_machine.run("bash", "-c", "echo 1 >/proc/sys/kernel/sysrq; echo c >/proc/sysrq-trigger")
    lone_machine.crash()
    assert lone_machine.run("true").returncode == 0


@pytest.mark.long
def test_two_machines_share_an_ethernet(two_machines: tuple[Machine, Machine]):
    for number, machine in enumerate(two_machines, 1):
        name = machine.run("ls", "/sys/class/net/eth0/device/virtfn0/net").stdout.strip()
        machine.run("ip", "address", "add", f"10.9.0.{number}/24", "dev", name)
        machine.run("ip", "link", "set", name, "up")
        until_carrier(machine, name, 1)
    a, b = two_machines
    assert (a.name, b.name) == ("a", "b")
    a.run("ping", "-c3", "-i0.2", "-w60", "10.9.0.2", timeout_s=SLOW_S)
    b.crash()
    assert b.run("hostname").stdout == "b\n"
    assert a.run("ping", "-c1", "-w2", "10.9.0.2", check=False).returncode == 1


@pytest.mark.long
def test_numa_shape_has_a_card_on_each_node(lab_cache: Cache, tmp_path: Path):
    with start(Shape(numa=True), cache=lab_cache, shared=tmp_path) as machine:
        nodes = [machine.read(f"/sys/class/net/eth{pf}/device/numa_node").strip() for pf in (0, 1)]
    assert nodes == ["0", "1"]


HOLDING = """
import sys
from pathlib import Path
from lab.cache import Cache
from lab.machine import Shape, start
with start(Shape(), cache=Cache(Path(sys.argv[1])), shared=Path(sys.argv[2])):
    print("booted", flush=True)
    sys.stdin.read()
"""


def test_machine_ends_with_the_process_that_started_it_however_that_ends(lab_cache: Cache, tmp_path: Path):
    command = [sys.executable, "-c", HOLDING, str(lab_cache.root), str(tmp_path)]
    environ = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ) as holding:
        assert holding.stdout
        assert holding.stdout.readline() == b"booted\n"
        children = Path(f"/proc/{holding.pid}/task/{holding.pid}/children").read_text().split()
        holding.kill()
    assert children
    for child in children:
        assert await_end(int(child)), "QEMU outlives the process that started it"


def await_end(pid: int) -> bool:
    """Of a process that may have lost its parent."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], SLOW_S)[0])
    finally:
        os.close(descriptor)
