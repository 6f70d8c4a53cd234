"""The suite of simulated PFs (tests/netdevsim), in a guest: its kernel has netdevsim as a module."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

if TYPE_CHECKING:
    from lab.machine import Machine

pytestmark = pytest.mark.long

SUITE_S = 1500


@pytest.mark.timeout(SUITE_S + 300)
def test_simulated_pfs_keep_the_contract_and_every_test_runs_for_a_driver(machine: Machine) -> None:
    machine.run("modprobe", "-a", "netdevsim", "dummy")
    ended = machine.run(
        *("python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junit-xml=/lab/netdevsim.xml"),
        "tests/netdevsim",
        cwd="/src",
        timeout_s=SUITE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    passed, skipped = set(), set()
    cases = ElementTree.parse(machine.shared / "netdevsim.xml")  # noqa: S314 # pytest wrote it
    for case in cases.iter("testcase"):
        name = case.attrib["name"].partition("[")[0]
        (passed if case.find("skipped") is None else skipped).add(name)
    assert passed
    assert skipped <= passed, ended.stdout
