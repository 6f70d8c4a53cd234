"""Findings on locked memory, beside the table of cases."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from doctor.cases.memlock import memlock
from doctor.known_cases import findings_of

if TYPE_CHECKING:
    from pathlib import Path


def test_capability_is_no_cure_for_locked_memory_of_who_is_not_root():
    [finding] = findings_of("memlock-low")
    assert "except for root with IPC_LOCK" in finding.found
    assert finding.fix.endswith("IPC_LOCK helps root alone")


def test_limit_of_the_runtime_is_no_fault_if_slots_raise_it():
    [finding] = memlock(8 << 20, amount="64Gi")
    assert finding.id == "memlock-ok"
    assert finding.found == "containers with a slot may lock 64Gi, others 8388608 bytes"


def test_limit_that_a_runtime_sets_is_no_fault_if_it_is_unlimited():
    ulimits = (("crio", "-1:-1"),)
    assert [each.id for each in memlock(None, amount="64Gi", ulimits=ulimits)] == ["memlock-ok"]
    assert "memlock=8388608:-1" in findings_of("memlock-overrides")[0].found


def test_fix_of_locked_memory_can_be_typed_if_the_service_has_no_files_yet(tmp_path: Path):
    [finding] = findings_of("memlock-low")
    (tmp_path / "systemd" / "system").mkdir(parents=True)
    typed = finding.fix.partition(", then ")[0].replace("/etc", str(tmp_path))
    subprocess.run(["bash", "-eu", "-c", typed], check=True)
    [written] = tmp_path.rglob("memlock.conf")
    assert written.read_text() == "[Service]\nLimitMEMLOCK=infinity\n"
