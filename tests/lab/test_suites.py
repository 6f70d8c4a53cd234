"""Suites of this repository that need the hardware itself, run inside guests by their own pytest."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatch
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from lab.errors import LabError
from lab.machine import Shape, start

if TYPE_CHECKING:
    from pathlib import Path

    from lab.cache import Cache
    from lab.machine import Machine

TEST_S = 600
"""Of each test inside: processes of an emulated machine take seconds to start."""
SUITE_S = 3000
ENVIRONMENT = {
    "CNI_PATH": "/opt/cni/bin:/usr/lib/cni",
    "HYPOTHESIS_STORAGE_DIRECTORY": "/tmp/hypothesis",  # noqa: S108 # the guest's
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """arguments: pytest's. vfs: made before. prepare: a script of bash that runs before.

    skipped: patterns of tests that cannot run here, and why; all others must pass. fewest: tests that pass.
    """

    arguments: tuple[str, ...]
    vfs: int
    fewest: int
    environment: dict[str, str]
    prepare: str = "true"
    skipped: dict[str, str]


HARDWARE_PFS = {"K8S_RDMA_HARDWARE_PFS": "eth0,eth1"}
INIT_PFS = {"K8S_RDMA_INIT_PFS": "eth0,eth1", "K8S_RDMA_CABLE": "/usr/bin/lab-cable"}
RDMA = "modprobe -a ib_core ib_uverbs ib_umad rdma_ucm; rdma system set netns exclusive; modprobe rdma_rxe"
DEVICE_TESTS = (
    "agent", "device_plugin", "gather", "netlink_changes", "netlink_of_rdma", "netlink_of_vfs", "rdma_health",
)  # fmt: skip
KERNEL_TESTS = ("addresses", "binding", "moves", "rates", "rdma", "settings")

SUITES = {
    "contract": Suite(
        arguments=("tests/contract", "-k", "hardware"),
        vfs=7,
        fewest=50,
        environment=HARDWARE_PFS,
        skipped={},
    ),
    "kernel": Suite(
        arguments=tuple(f"tests/hardware/test_kernel_{name}.py" for name in KERNEL_TESTS),
        vfs=4,
        fewest=30,
        environment=HARDWARE_PFS,
        prepare=RDMA,
        skipped={},
    ),
    # RDMA devices move together with their netdevs, as real VFs' do.
    "devices": Suite(
        arguments=tuple(f"tests/hardware/test_{name}.py" for name in DEVICE_TESTS),
        vfs=4,
        fewest=40,
        environment=HARDWARE_PFS,
        prepare=f"{RDMA} survives_moves=Y; modprobe netdevsim",
        skipped={"*test_move_is_refused_where_all_namespaces_share*": "RDMA namespaces are exclusive"},
    ),
    "init": Suite(
        arguments=("tests/hardware/test_init.py",),
        vfs=0,
        fewest=8,
        environment=INIT_PFS,
        skipped={},
    ),
    "node": Suite(
        arguments=("tests/hardware/test_node.py",),
        vfs=0,
        fewest=8,
        environment=INIT_PFS,
        skipped={},
    ),
}
LONG = {"contract", "kernel", "devices", "node"}


@pytest.mark.timeout(SUITE_S + TEST_S)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in LONG else ()) for name in SUITES]
)
def test_suite_passes_on_igb(name: str, lab_cache: Cache, tmp_path: Path):
    suite = SUITES[name]
    with start(Shape(vfs=suite.vfs), cache=lab_cache, shared=tmp_path) as machine:
        machine.run("bash", "-c", suite.prepare)
        report = run_suite(machine, suite)
        complaints = machine.run("bash", "-c", "dmesg | grep -iE 'bug:|oops|call trace' || true").stdout
    ended = outcomes(tmp_path / "suite.xml")
    unexpected = {
        test: outcome
        for test, outcome in ended.items()
        if outcome != ("skipped" if expected_to_be_skipped(suite, test) else "passed")
    }
    assert not unexpected, f"{unexpected}\n{report}"
    assert sum(outcome == "passed" for outcome in ended.values()) >= suite.fewest, report
    assert complaints == "", complaints


def run_suite(machine: Machine, suite: Suite) -> str:
    """What pytest said."""
    options = ("-p", "no:cacheprovider", f"--timeout={TEST_S}", "--junit-xml=/lab/suite.xml", "-q")
    command = ("python3", "-m", "pytest", *options, *suite.arguments)
    running = machine.start(*command, name="suite", env=ENVIRONMENT | suite.environment, cwd="/src")
    try:
        running.wait(SUITE_S)
    except LabError as error:
        pytest.fail(f"{error}\n{machine.console()}")
    return running.output()


def outcomes(report: Path) -> dict[str, str]:
    """By test: passed, skipped, failure or error (JUnit's words)."""
    assert report.exists(), "pytest in the guest wrote no report"
    return {
        f"{case.get('classname')}.{case.get('name')}": next(
            (each.tag for each in case if each.tag in {"skipped", "failure", "error"}), "passed"
        )
        for case in ET.parse(report).iter("testcase")  # noqa: S314 # the guest's, which is ours
    }


def expected_to_be_skipped(suite: Suite, test: str) -> bool:
    return any(fnmatch(test, pattern) for pattern in suite.skipped)
