"""`init` on real hardware: VFs removed, made, used and made anew.

Needs two PFs whose VFs may all be removed, and igbvf or another driver of VFs that may be unloaded.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from contract.linux_lab import ip, run
from init.receipts import BOOT_ID, receipt_of
from k8s_rdma.config.init import InitConfig
from k8s_rdma.core.types import pci_address
from k8s_rdma.init.job import MachineInterfaces, StoppableClock
from k8s_rdma.init.main import make_all_ready
from k8s_rdma.init.pf_setup import PfOutcome, PfResult
from k8s_rdma.init.vf_settings import vf_mac
from k8s_rdma.linux.discovery.netlink_queries import NetlinkQueries
from k8s_rdma.linux.receipts import Receipts
from k8s_rdma.linux.sysfs import Sysfs
from k8s_rdma.linux.vf.sriov_links import KernelSriovLinks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


import msgspec

VARIABLE = "K8S_RDMA_INIT_PFS"
PFS = tuple(os.environ.get(VARIABLE, "").split(",")) if os.environ.get(VARIABLE) else ()
DEADLINE_S = 120
SOON_S = 3.0
"""A VF has its link well before this when its driver was bound in time, else after 4 to 10 s (igbvf)."""

pytestmark = [
    pytest.mark.skipif(
        len(PFS) != 2, reason=f"needs two PFs whose VFs may be removed: set {VARIABLE}, such as to eth0,eth1"
    ),
    pytest.mark.timeout(300),
]


@dataclass(frozen=True)
class Node:
    """This machine, its two PFs without VFs, and the directory for its agent's ledger."""

    state_dir: Path

    def document(self, **changes: object) -> dict[str, object]:
        rules = [{"names": list(PFS), **changes}]
        hardware = {"requireRdma": False, "pfs": rules}
        return {"stateDir": str(self.state_dir), "hardware": hardware, "backoffS": 0.1}

    def init(self, document: dict[str, object] | None = None) -> dict[str, PfOutcome]:
        machine = MachineInterfaces(
            sysfs=Sysfs(),
            queries=NetlinkQueries,
            links=KernelSriovLinks,
            clock=StoppableClock(threading.Event()),
            boot_id=BOOT_ID,
        )
        config = msgspec.convert(document or self.document(), InitConfig)
        return {outcome.pf: outcome for outcome in make_all_ready(machine, config)}


def device(pf: str) -> Path:
    return Path(f"/sys/class/net/{pf}/device")


def total(pf: str) -> int:
    return int((device(pf) / "sriov_totalvfs").read_text())


def netdevs(pf: str) -> list[str]:
    """Of its VFs, in their order; fails if one has no netdev."""
    return [
        next((device(pf) / f"virtfn{index}/net").iterdir()).name
        for index in range(int((device(pf) / "sriov_numvfs").read_text()))
    ]


def indexes(pf: str) -> list[int]:
    """That tell whether netdevs are still the same."""
    return [ip(None, "link", "show", name)[0]["ifindex"] for name in netdevs(pf)]


def until(what: str, holds: Callable[[], bool], deadline_s: float = DEADLINE_S) -> None:
    end = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def remove_vfs(pf: str) -> None:
    (device(pf) / "sriov_numvfs").write_text("0")
    (device(pf) / "sriov_drivers_autoprobe").write_text("1")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    for pf in PFS:
        remove_vfs(pf)
        run("ip", "link", "set", pf, "down")
    yield Node(tmp_path / "state")
    for pf in PFS:
        remove_vfs(pf)


@contextmanager
def used_by_namespace(pf: str, vf: int) -> Iterator[None]:
    run("ip", "netns", "add", "init-test")
    try:
        run("ip", "link", "set", netdevs(pf)[vf], "netns", "init-test")
        yield
    finally:
        run("ip", "netns", "delete", "init-test")
        until("the VF is back", lambda: any((device(pf) / f"virtfn{vf}/net").iterdir()))


def test_vfs_of_both_pfs_are_made_named_and_addressed_and_have_a_link_soon(node: Node) -> None:
    outcomes = node.init()
    for pf in PFS:
        assert (outcomes[pf].result, outcomes[pf].previous, outcomes[pf].current) == (
            PfResult.CHANGED,
            0,
            total(pf),
        )
        assert netdevs(pf) == [f"{pf}v{index}" for index in range(total(pf))]
        shown = ip(None, "-details", "link", "show", pf)[0]
        expected = [vf_mac(shown.get("permaddr", shown["address"]), index) for index in range(total(pf))]
        assert [vf["address"] for vf in shown["vfinfo_list"]] == expected
        assert [ip(None, "link", "show", name)[0]["address"] for name in netdevs(pf)] == expected
        assert "UP" in shown["flags"]
        assert (device(pf) / "sriov_drivers_autoprobe").read_text() == "1\n"
    vf = netdevs(PFS[0])[-1]
    run("ip", "link", "set", vf, "up")
    carrier = Path(f"/sys/class/net/{vf}/carrier")
    until("the VF has a link", lambda: carrier.read_text() == "1\n", SOON_S)


def test_second_run_has_no_effect_and_says_so(node: Node) -> None:
    document = node.document(trust=True)
    node.init(document)
    before = [indexes(pf) for pf in PFS]
    outcomes = node.init(document)
    assert {(outcome.result, outcome.message) for outcome in outcomes.values()} == {(PfResult.READY, "")}
    assert [indexes(pf) for pf in PFS] == before


def test_trust_is_set_on_vfs_that_exist(node: Node) -> None:
    node.init()
    before = indexes(PFS[0])
    assert node.init(node.document(trust=True))[PFS[0]].message == f"{total(PFS[0])} settings"
    assert all(vf["trust"] for vf in ip(None, "-details", "link", "show", PFS[0])[0]["vfinfo_list"])
    assert indexes(PFS[0]) == before


def test_other_count_is_refused_while_a_vf_is_elsewhere_and_made_when_it_is_back(node: Node) -> None:
    node.init(node.document(numVfs=2))
    before = indexes(PFS[0])
    with used_by_namespace(PFS[0], 1):
        outcomes = node.init(node.document(numVfs=3))
        assert (outcomes[PFS[0]].result, outcomes[PFS[0]].current) == (PfResult.REFUSED, 2)
        assert "another network namespace (VF 1)" in outcomes[PFS[0]].message
        assert outcomes[PFS[1]].current == 3
    assert indexes(PFS[0]) == before
    outcome = node.init(node.document(numVfs=3))[PFS[0]]
    assert (outcome.result, outcome.previous, outcome.current) == (PfResult.CHANGED, 2, 3)
    assert netdevs(PFS[0]) == [f"{PFS[0]}v{index}" for index in range(3)]


def test_other_count_is_refused_with_the_name_of_the_pod_that_holds_a_vf(node: Node) -> None:
    node.init(node.document(numVfs=2))
    ledger = Receipts(node.state_dir / "ledger.db")
    ledger.put(receipt_of("trainer", pci_address(device(PFS[0]).resolve().name), 0))
    ledger.close()
    outcome = node.init(node.document(numVfs=1))[PFS[0]]
    assert outcome.result is PfResult.REFUSED
    assert "pod default/trainer (VF 0)" in outcome.message


def test_more_vfs_than_there_can_be_fail_their_pf_alone(node: Node) -> None:
    document = node.document()
    most = total(PFS[0])
    document["hardware"] = {
        "requireRdma": False,
        "pfs": [{"names": [PFS[0]], "numVfs": most + 1}, {"names": [PFS[1]], "numVfs": 1}],
    }
    outcomes = node.init(document)
    assert outcomes[PFS[0]].message == f"{most + 1} VFs requested, its sriov_totalvfs is {most}"
    assert (outcomes[PFS[0]].result, outcomes[PFS[1]].result) == (PfResult.FAILED, PfResult.CHANGED)


def test_vfs_without_driver_get_it_once_it_is_loaded(node: Node) -> None:
    node.init(node.document(numVfs=1))
    driver = (device(PFS[0]) / "virtfn0/driver").resolve()
    if driver == (device(PFS[0]) / "driver").resolve():
        pytest.skip("needs VFs with another driver than their PF's, which can be unloaded")
    module = (driver / "module").resolve().name
    run("modprobe", "-r", module)
    loading = threading.Timer(1.0, run, ("modprobe", module))
    loading.start()
    try:
        assert node.init(node.document(numVfs=1))[PFS[0]].result is PfResult.CHANGED
    finally:
        loading.join()
        run("modprobe", module)
    assert netdevs(PFS[0]) == [f"{PFS[0]}v0"]


def test_signalled_process_leaves_autoprobe_as_it_was(node: Node, tmp_path: Path) -> None:
    node.init(node.document(numVfs=1))
    autoprobe = device(PFS[0]) / "sriov_drivers_autoprobe"
    autoprobe.write_text("0")
    module = (device(PFS[0]) / "virtfn0/driver/module").resolve().name
    if module == (device(PFS[0]) / "driver/module").resolve().name:
        pytest.skip("needs VFs with another driver than their PF's, which can be unloaded")
    run("modprobe", "-r", module)
    config = tmp_path / "init.yaml"
    config.write_text(json.dumps(node.document(numVfs=1)))
    command = [sys.executable, "-m", "k8s_rdma", "init", "--config", str(config)]
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            until("VFs may have drivers", lambda: autoprobe.read_text() == "1\n")
            process.terminate()
            told, _ = process.communicate(timeout=DEADLINE_S)
    finally:
        run("modprobe", module)
    assert process.returncode == 1
    assert "stopped by a signal" in " ".join(told.split())
    assert autoprobe.read_text() == "0\n"


def test_pf_whose_driver_comes_late_is_waited_for(node: Node) -> None:
    driver = (device(PFS[1]) / "driver").resolve()
    pci = device(PFS[1]).resolve().name
    (driver / "unbind").write_text(pci)
    binding = threading.Timer(1.0, (driver / "bind").write_text, (pci,))
    binding.start()
    document = node.document(numVfs=1)
    document["hardware"] = {"requireRdma": False, "pfs": [{"pcis": [pci], "numVfs": 1}]}
    try:
        outcomes = node.init(document)
    finally:
        binding.join()
    assert outcomes.pop(PFS[0]).result is PfResult.SKIPPED
    assert [outcome.result for outcome in outcomes.values()] == [PfResult.CHANGED]


def test_autoprobe_that_is_off_stays_off_and_vfs_have_their_driver(node: Node) -> None:
    (device(PFS[0]) / "sriov_drivers_autoprobe").write_text("0")
    assert node.init(node.document(numVfs=2))[PFS[0]].result is PfResult.CHANGED
    assert (device(PFS[0]) / "sriov_drivers_autoprobe").read_text() == "0\n"
    assert len(netdevs(PFS[0])) == 2


def test_read_only_sysfs_ends_the_process_with_advice(node: Node, tmp_path: Path) -> None:
    config = tmp_path / "init.yaml"
    config.write_text(json.dumps(node.document(numVfs=1)))
    command = f"mount -o remount,bind,ro /sys && {sys.executable} -m k8s_rdma init --config {config}"
    ended = subprocess.run(
        ["unshare", "--mount", "sh", "-c", command], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1, ended.stderr
    assert "EROFS" in ended.stderr
    assert "mount /sys writable" in " ".join(ended.stderr.split())
    assert "failed" in ended.stdout
