"""Suites of this repository that need the hardware itself, run inside guests by their own pytest."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatch
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from lab.errors import LabError
from lab.machine import Machine, Shape, start
from lab.places import CNI_PATH

if TYPE_CHECKING:
    from pathlib import Path

    from lab.cache import Cache

TEST_S = 600
"""Of each test inside: processes of an emulated machine take seconds to start."""
SUITE_S = 3000
SHORT_SUITE_S = 600
TIMER_LOST = "rcu_preempt kthread timer wakeup didn't happen"
"""A guest's kernel says so when the emulator forgot a processor's timer: the guest has stopped by then."""
PASSED = ("passed", "")
COMPLAINTS = "dmesg | grep -E -A 30 'BUG:|Oops|general protection' || true"
"""Of the kernel; not that somebody waits for long, which is the host's doing."""
ENVIRONMENT = {
    "CNI_PATH": CNI_PATH,
    "HYPOTHESIS_STORAGE_DIRECTORY": "/tmp/hypothesis",  # noqa: S108 # the guest's
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """arguments: pytest's. vfs, iommu: as of `Shape`. prepare: a script of bash that runs before.

    needless: patterns of reasons why a test of it is useless here; all others must pass. fewest: tests that
    pass.
    """

    arguments: tuple[str, ...]
    vfs: int
    fewest: int
    environment: dict[str, str]
    prepare: str = "true"
    iommu: bool = False
    needless: tuple[str, ...] = ()


HARDWARE_PFS = {"K8S_RDMA_HARDWARE_PFS": "eth0,eth1"}
INIT_PFS = {"K8S_RDMA_INIT_PFS": "eth0,eth1", "K8S_RDMA_CABLE": "/usr/bin/lab-cable"}
RDMA = "modprobe -a ib_core ib_uverbs ib_umad rdma_ucm; rdma system set netns {mode}; modprobe rdma_rxe"
VFIO = "modprobe -a vfio_iommu_type1 vfio_pci"
NETDEVSIM = "modprobe netdevsim"
DEVICE_TESTS = (
    "agent", "device_plugin", "gather", "netlink_changes", "netlink_of_rdma", "netlink_of_vfs", "rdma_health",
)  # fmt: skip
KERNEL_TESTS = ("addresses", "binding", "moves", "rates", "rdma", "settings")
SHARED = "*RDMA devices shared (rdma system set netns shared)"
EXCLUSIVE = "*RDMA devices exclusive (rdma system set netns exclusive)"

SUITES = {
    "contract": Suite(
        arguments=("tests/contract", "-k", "hardware"),
        vfs=7,
        iommu=True,
        fewest=165,
        environment=HARDWARE_PFS,
        prepare=VFIO,
        needless=(
            "needs * of VFs, which eth0 does not take",  # GUIDs, VLAN protocols, states of links
            "eth0 takes *",  # of a test that it is refused
            "needs minimum rates, which the driver of eth0 does not take",
            "needs a driver that takes a cap above 1000 Mb/s",
            "needs 60 VFs on a PF, has 7",
        ),
    ),
    "kernel": Suite(
        arguments=tuple(f"tests/hardware/test_kernel_{name}.py" for name in KERNEL_TESTS),
        vfs=4,
        iommu=True,
        fewest=55,
        environment=HARDWARE_PFS,
        prepare=f"{RDMA.format(mode='exclusive')}; {VFIO}; {NETDEVSIM}",
        needless=(SHARED,),
    ),
    "shared": Suite(
        arguments=("tests/hardware/test_kernel_rdma.py",),
        vfs=4,
        fewest=4,
        environment=HARDWARE_PFS,
        prepare=RDMA.format(mode="shared"),
        needless=(EXCLUSIVE,),
    ),
    # RDMA devices move together with their netdevs, as real VFs' do.
    "devices": Suite(
        arguments=tuple(f"tests/hardware/test_{name}.py" for name in DEVICE_TESTS),
        vfs=4,
        fewest=40,
        environment=HARDWARE_PFS,
        prepare=f"{RDMA.format(mode='exclusive')} survives_moves=Y; {NETDEVSIM}",
        needless=(SHARED,),
    ),
    "init": Suite(arguments=("tests/hardware/test_init.py",), vfs=0, fewest=8, environment=INIT_PFS),
    "node": Suite(arguments=("tests/hardware/test_node.py",), vfs=0, fewest=8, environment=INIT_PFS),
    "programs": Suite(
        arguments=("tests/hardware/test_programs.py",),
        vfs=0,
        iommu=True,
        fewest=2,
        environment=INIT_PFS,
        prepare=VFIO,
    ),
}
LONG = {"contract", "kernel", "shared", "devices", "node", "programs"}


@pytest.mark.timeout(2 * (SUITE_S + TEST_S))
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in LONG else ()) for name in SUITES]
)
def test_suite_passes_on_igb(name: str, lab_cache: Cache, tmp_path: Path):
    suite, limit_s = SUITES[name], SUITE_S if name in LONG else SHORT_SUITE_S
    shared = tmp_path / "first"
    try:
        report, complaints = in_guest(suite, lab_cache, shared, limit_s)
    except TimerLostError:
        shared = tmp_path / "second"
        report, complaints = in_guest(suite, lab_cache, shared, limit_s)
    ended = outcomes(shared / "suite.xml")
    passed = [test for test, outcome in ended.items() if outcome == PASSED]
    unexpected = {
        test: outcome
        for test, outcome in ended.items()
        if outcome != PASSED and not is_needless(suite, outcome)
    }
    assert not unexpected, f"{unexpected}\n{report}"
    assert len(passed) >= suite.fewest, report
    assert complaints == "", complaints


class TimerLostError(Exception):
    """The guest came to a halt by the emulator's fault."""


def in_guest(suite: Suite, cache: Cache, shared: Path, limit_s: float) -> tuple[str, str]:
    """Return pytest's output, and complaints of the kernel."""
    shared.mkdir()
    with start(Shape(vfs=suite.vfs, iommu=suite.iommu), cache=cache, shared=shared) as machine:
        try:
            machine.run("bash", "-c", suite.prepare)
            return run_suite(machine, suite, limit_s), machine.run("bash", "-c", COMPLAINTS).stdout
        except LabError as error:
            said = machine.console()
            if TIMER_LOST in said:
                raise TimerLostError from error
            pytest.fail(f"{error}\n{said}")


def run_suite(machine: Machine, suite: Suite, limit_s: float) -> str:
    """Return pytest's output."""
    options = ("-p", "no:cacheprovider", f"--timeout={TEST_S}", "--junit-xml=/lab/suite.xml", "-q")
    command = ("python3", "-m", "pytest", *options, *suite.arguments)
    running = machine.start(*command, name="suite", env=ENVIRONMENT | suite.environment, cwd="/src")
    running.wait(limit_s)
    return running.output()


def outcomes(report: Path) -> dict[str, tuple[str, str]]:
    """By test: passed, skipped, failure or error (JUnit's words), and why."""
    assert report.exists(), "pytest in the guest wrote no report"
    return {
        f"{case.get('classname')}.{case.get('name')}": next(
            (
                (each.tag, each.get("message", ""))
                for each in case
                if each.tag in {"skipped", "failure", "error"}
            ),
            PASSED,
        )
        for case in ET.parse(report).iter("testcase")  # noqa: S314 # the guest's, which is ours
    }


def is_needless(suite: Suite, outcome: tuple[str, str]) -> bool:
    what, why = outcome
    return what == "skipped" and any(fnmatch(why, pattern) for pattern in suite.needless)
