"""PFs and VFs as one observation has them, and as the next one does after something changed."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from k8s_rdma.core.allocation import foreign_vfs
from k8s_rdma.core.kernel import Hardware, PfState
from k8s_rdma.core.ledger import Ledger
from k8s_rdma.core.pf_selection import PfRule, Selection
from k8s_rdma.core.types import Enforce, Setting
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.discovery.functions import PATIENCE_S
from k8s_rdma.linux.discovery.observation import Observer
from k8s_rdma.linux.drivers import ability
from k8s_rdma.linux.netlink.queries import DevlinkRate
from k8s_rdma.linux.sysfs import Sysfs
from linux.small_machine import PF, PF1, SmallMachine, observed, only_pf, vf_pci
from linux.test_vf_settings import CONFIG

if TYPE_CHECKING:
    from collections.abc import Callable


class RestlessSysfs(Sysfs):
    """Something happens, once, before a file is read or a directory or link is looked at."""

    def __init__(self, machine: SmallMachine, path: str, happens: Callable[[], None]) -> None:
        super().__init__(machine.root)
        self.path = path
        self.happens: Callable[[], None] | None = happens

    def _pass(self, path: str) -> None:
        if path == self.path and self.happens:
            happens, self.happens = self.happens, None
            happens()

    def read(self, path: str) -> str:
        self._pass(path)
        return super().read(path)

    def names(self, path: str) -> list[str]:
        self._pass(path)
        return super().names(path)

    def target(self, path: str) -> str:
        self._pass(path)
        return super().target(path)


def restless(machine: SmallMachine, path: str, happens: Callable[[], None]) -> Hardware:
    return Observer(RestlessSysfs(machine, path, happens), machine.answers, Selection()).observe()


def driver_leaves(machine: SmallMachine) -> None:
    """Remove VFs and netdev as a driver of NICs does when it is unbound."""
    device = machine.at(machine.device(PF))
    for virtfn in device.glob("virtfn*"):
        machine.remove_netdev(virtfn.resolve().name, next((virtfn / "net").iterdir()).name)
        machine.at(f"bus/pci/devices/{virtfn.resolve().name}").unlink()
        shutil.rmtree(virtfn.resolve())
        virtfn.unlink()
    machine.remove_netdev(PF, "eth0")
    (device / "net").rmdir()
    (device / "sriov_numvfs").write_text("0\n")
    machine.bind(PF, None)


def test_pf_is_observed_with_all_that_is_known_of_it(machine: SmallMachine) -> None:
    machine.add_pf(vfs=1, mtu=9000)
    machine.answers.modes = {PF: "switchdev", PF1: "legacy"}
    machine.write("class/infiniband/mlx5_0/fw_ver", "16.35.2000")
    selection = Selection(rules=(PfRule(enforce=Enforce.HARDWARE),))
    pf = only_pf(machine.observer(selection).observe())
    assert [pf.mac] == [link.mac for link in machine.answers.links() if link.name == "eth0"]
    assert replace(pf, vfs=(), problems=()) == PfState(
        name="eth0",
        pci=PF,
        link_mbps=100_000,
        driver="mlx5_core",
        vfs=(),
        mtu=9000,
        rdma_device="mlx5_0",
        vendor="15b3:1017",
        firmware="16.35.2000",
        numa_node=1,
        pcie_path=pf.pcie_path,
        switchdev=True,
        rates=ability(driver="mlx5_core", link_mbps=100_000, vendor="15b3:1017"),
        enforce=Enforce.HARDWARE,
        supported_settings=frozenset({Setting.MAC, Setting.MTU}),
    )
    assert "switchdev" in pf.problems[0]


def test_unknown_of_a_pf_is_not_zero(machine: SmallMachine) -> None:
    machine.add_pf(vfs=1)
    machine.write(f"{machine.device(PF)}/numa_node", -1)
    machine.answers.firmwares = {"eth0": "16.35 (ethtool)"}
    pf = observed(machine)
    assert (pf.numa_node, pf.switchdev, pf.firmware) == (None, False, "16.35 (ethtool)")


def test_firmware_of_the_netdevs_driver_comes_before_that_of_the_rdma_device(machine: SmallMachine) -> None:
    machine.add_pf(vfs=1)
    machine.write("class/infiniband/mlx5_0/fw_ver", "1.60")
    assert observed(machine).firmware == "1.60"
    machine.answers.firmwares = {"eth0": "4.10 0x8001518e"}
    assert observed(machine).firmware == "4.10 0x8001518e"


def test_vfs_come_by_number_not_by_name(machine: SmallMachine) -> None:
    machine.add_pf(vfs=12)
    pf = observed(machine)
    assert [vf.index for vf in pf.vfs] == list(range(12))
    assert [vf.pci for vf in pf.vfs] == [vf_pci(index) for index in range(12)]


def test_pf_without_vfs_is_one_with_a_problem(machine: SmallMachine) -> None:
    machine.add_pf(vfs=0)
    pf = observed(machine)
    assert pf.vfs == ()
    assert "k8s-rdma init" in pf.problems[0]
    assert machine.answers.asked == []


def test_vf_unknown_to_its_pf_is_unusable_after_a_second_scan(machine: SmallMachine) -> None:
    machine.add_pf(vfs=2)
    del machine.answers.vfs[10][1]
    observer = machine.observer()
    assert [vf.unusable for vf in only_pf(observer.observe()).vfs] == ["", "its PF does not report it"]
    assert machine.answers.asked == [10, 10]
    observer.observe(frozenset())
    assert machine.answers.asked == [10, 10]  # a lasting state is not queried again and again


def test_vfs_of_mlnx_ofed_are_read_from_its_files_alone(machine: SmallMachine) -> None:
    machine.add_pf(vfs=1)
    machine.write(f"{machine.device(PF)}/sriov/0/config", CONFIG)
    observer = machine.observer()
    (vf,) = only_pf(observer.observe()).vfs
    assert (vf.max_tx_rate_mbps, vf.trust, vf.vgt_plus, vf.rate_group) == (20000, "ON", "ON", 4)
    assert machine.answers.asked == []
    machine.write(f"{machine.device(PF)}/sriov/0/config", CONFIG.replace("20000", "25000"))
    (vf,) = only_pf(observer.observe(frozenset())).vfs
    assert vf.max_tx_rate_mbps == 25000


def test_only_changed_pfs_are_queried_for_their_vfs_again(machine: SmallMachine) -> None:
    machine.add_pf(PF, "eth0", 10, vfs=2)
    machine.add_pf(PF1, "eth1", 30, vfs=2, rdma="mlx5_1")
    observer = machine.observer()
    observer.observe(frozenset())
    assert machine.answers.asked == [10, 30]
    machine.change_vf(0, min_tx_rate_mbps=7)
    assert observer.observe(frozenset({30})).pfs[0].vfs[0].min_tx_rate_mbps == 0
    assert machine.answers.asked == [10, 30, 30]
    assert observer.observe(frozenset({10})).pfs[0].vfs[0].min_tx_rate_mbps == 7
    assert machine.answers.asked == [10, 30, 30, 10]
    observer.observe()
    assert machine.answers.asked == [10, 30, 30, 10, 10, 30]


def test_pf_whose_link_is_down_is_queried_again_because_its_changes_make_no_event(
    machine: SmallMachine,
) -> None:
    machine.add_pf(PF, "eth0", 10, vfs=2)
    machine.answers.by_name["eth0"] = replace(machine.answers.by_name["eth0"], is_up=False)
    observer = machine.observer()
    observer.observe(frozenset())
    machine.change_vf(0, min_tx_rate_mbps=7)
    assert observer.observe(frozenset()).pfs[0].vfs[0].min_tx_rate_mbps == 7


def test_pf_whose_vfs_got_rates_by_devlink_is_queried_again_because_that_makes_no_event(
    machine: SmallMachine,
) -> None:
    machine.add_pf(vfs=2)
    machine.answers.modes = {PF: "switchdev"}
    observer = machine.observer()
    before = observer.observe(())
    machine.answers.rates_by_devlink = {PF: {1: DevlinkRate(min_tx_rate_mbps=5, group="g")}}
    machine.change_vf(1, min_tx_rate_mbps=5, max_tx_rate_mbps=9)
    found = observer.observe(())
    assert observer.observe(()) == found
    assert machine.answers.asked == [10, 10]
    first, second = found.pfs[0].vfs
    assert (first.unusable, second.min_tx_rate_mbps, second.max_tx_rate_mbps) == ("", 5, 9)
    assert second.unusable.startswith("its rates are set by devlink (tx_share 5 Mb/s, group g)")
    assert found.pfs[0].rates.min is None
    machine.answers.rates_by_devlink = {}
    machine.change_vf(1, min_tx_rate_mbps=0, max_tx_rate_mbps=0)
    assert observer.observe(()) == before


def test_devlink_is_not_queried_for_rates_without_a_switch_in_switchdev_mode(machine: SmallMachine) -> None:
    machine.add_pf(vfs=1)
    machine.answers.modes = {PF: "legacy"}
    machine.answers.rates_by_devlink = {PF: {0: DevlinkRate(max_tx_rate_mbps=1)}}
    assert machine.observer().observe().pfs[0].vfs[0].unusable == ""


def test_pf_with_other_vfs_is_queried_again(machine: SmallMachine) -> None:
    machine.add_pf(vfs=2)
    observer = machine.observer()
    observer.observe()
    machine.add_vf(2)
    machine.write(f"{machine.device(PF)}/sriov_numvfs", 3)
    assert [vf.unusable for vf in only_pf(observer.observe(frozenset())).vfs] == ["", "", ""]
    assert machine.answers.asked == [10, 10]


def test_pf_whose_vfs_were_made_anew_is_queried_again(machine: SmallMachine) -> None:
    machine.add_pf(vfs=3)
    machine.change_vf(0, trust=True)
    observer = machine.observer()
    observer.observe()
    machine.at(f"{machine.device(PF)}/virtfn2").unlink()
    machine.write(f"{machine.device(PF)}/sriov_numvfs", 2)
    machine.change_vf(0, trust=False)
    assert [vf.trust for vf in only_pf(observer.observe(frozenset())).vfs] == ["OFF", "N/A"]


def test_pf_that_could_not_be_read_is_queried_again(machine: SmallMachine) -> None:
    machine.add_pf(vfs=1)
    machine.change_vf(0, trust=True)
    observer = machine.observer()
    machine.write(f"{machine.device(PF)}/numa_node", "odd")
    assert "numa_node" in observer.observe().unreadable[0].why
    machine.write(f"{machine.device(PF)}/numa_node", 0)
    machine.change_vf(0, trust=False)
    assert [vf.trust for vf in only_pf(observer.observe(frozenset())).vfs] == ["OFF"]


def test_same_machine_is_observed_the_same(machine: SmallMachine) -> None:
    machine.add_pf(vfs=3)
    observer = machine.observer()
    assert observer.observe() == observer.observe(frozenset()) == machine.observer().observe()


def test_pf_with_fewer_vfs_than_it_is_set_to_have_is_unreadable(machine: SmallMachine) -> None:
    machine.add_pf(PF, "eth0", 10, vfs=2)
    machine.add_pf(PF1, "eth1", 30, vfs=1, rdma="mlx5_1")
    machine.write(f"{machine.device(PF)}/sriov_numvfs", 4)
    hardware = machine.observer().observe()
    assert [pf.name for pf in hardware.pfs] == ["eth1"]
    (unreadable,) = hardware.unreadable
    assert (unreadable.subject, unreadable.why) == (
        "PF eth0",
        "sriov_numvfs says 4, and 2 VFs are there",
    )


def test_pf_with_a_vf_whose_netdev_is_still_coming_is_unreadable(machine: SmallMachine) -> None:
    machine.add_pf(vfs=2)
    machine.take_netdev(vf_pci(1), "eth12")
    hardware = machine.observer().observe()
    assert hardware.pfs == ()
    assert "VF 1 (0000:3b:03.0): its driver mlx5_core has made no netdev yet" in hardware.unreadable[0].why


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_vf_whose_driver_never_makes_a_netdev_is_unusable_and_its_pf_is_used(machine: SmallMachine) -> None:
    machine.add_pf(vfs=4)
    machine.take_netdev(vf_pci(1), "eth12")
    machine.take_netdev(vf_pci(2), "eth13")
    clock = Clock()
    observer = machine.observer(now=clock)
    observer.observe()
    clock.now_s += PATIENCE_S - 0.1
    assert observer.observe().unreadable
    clock.now_s += 0.2
    hardware = observer.observe()
    why = "its driver mlx5_core made no netdev of it"
    assert [vf.unusable for vf in only_pf(hardware).vfs] == ["", why, why, ""]
    assert [each.vf.index for each in foreign_vfs(hardware, Ledger())] == [1, 2]  # they count as used


def test_vf_whose_netdev_comes_late_is_free_all_the_same(machine: SmallMachine) -> None:
    machine.add_pf(vfs=2)
    machine.take_netdev(vf_pci(1), "eth12")
    clock = Clock()
    observer = machine.observer(now=clock)
    observer.observe()
    clock.now_s += PATIENCE_S
    assert only_pf(observer.observe()).vfs[1].unusable
    machine.add_netdev(vf_pci(1), "eth12", 12)
    assert [vf.unusable for vf in only_pf(observer.observe()).vfs] == ["", ""]


@pytest.mark.parametrize("again", ["its netdev came and went", "another driver", "its PF was away"])
def test_vf_is_waited_for_again_when_its_driver_begins_anew(machine: SmallMachine, again: str) -> None:
    machine.add_pf(vfs=2)
    machine.take_netdev(vf_pci(1), "eth12")
    clock = Clock()
    observer = machine.observer(now=clock)
    observer.observe()
    clock.now_s += PATIENCE_S
    assert not observer.observe().unreadable
    if again == "its netdev came and went":
        machine.add_netdev(vf_pci(1), "eth12", 12)
        observer.observe()
        machine.take_netdev(vf_pci(1), "eth12")
    elif again == "another driver":
        machine.bind(vf_pci(1), "mlx5_other")
    else:
        machine.take_netdev(PF, "eth0")
        observer.observe()
        machine.add_netdev(PF, "eth0", 10)
    assert "has made no netdev yet" in observer.observe().unreadable[0].why


@pytest.mark.parametrize(
    "path",
    [
        f"{PF}/sriov_numvfs",
        f"{PF}",
        f"{PF}/virtfn0",
        f"{PF}/virtfn1",
        f"{vf_pci(0)}/driver",
        f"{vf_pci(0)}/net",
        f"{vf_pci(1)}/net",
        f"{PF}/numa_node",
    ],
)
def test_pf_whose_driver_leaves_while_it_is_looked_at_is_unreadable(machine: SmallMachine, path: str) -> None:
    machine.add_pf(vfs=2)
    sysfs = RestlessSysfs(machine, f"bus/pci/devices/{path}", lambda: driver_leaves(machine))
    observer = Observer(sysfs, machine.answers, Selection())
    hardware = observer.observe()
    assert sysfs.happens is None
    assert hardware.pfs == ()
    assert [each.subject for each in hardware.unreadable] == [f"PF {PF}"]
    assert observer.observe(frozenset()) == hardware  # until its driver is back


def test_pf_whose_driver_came_back_is_observed_again(machine: SmallMachine) -> None:
    machine.add_pf(vfs=1)
    observer = machine.observer()
    observer.observe()
    driver_leaves(machine)
    assert observer.observe().unreadable
    machine.bind(PF, "mlx5_core")
    machine.add_netdev(PF, "eth0", 40)
    pf = only_pf(observer.observe())
    assert (pf.name, pf.vfs) == ("eth0", ())


def test_pf_without_driver_from_the_start_is_reported_and_no_more(machine: SmallMachine) -> None:
    machine.add_pf(vfs=2)
    driver_leaves(machine)
    hardware = machine.observer().observe()
    assert (hardware.pfs, hardware.unreadable) == ((), ())
    assert "no driver" in hardware.problems[0]


def test_pf_without_driver_that_is_set_to_have_vfs_is_unreadable(machine: SmallMachine) -> None:
    """As when its driver could not take them along, because a guest has one."""
    machine.add_pf(vfs=2)
    machine.take_netdev(PF, "eth0")
    machine.bind(PF, None)
    observer = machine.observer()
    hardware = observer.observe()
    assert "no driver is bound" in hardware.unreadable[0].why
    assert observer.observe() == hardware
    machine.write(f"{machine.device(PF)}/sriov_numvfs", 0)
    hardware = machine.observer().observe()
    assert (hardware.unreadable, len(hardware.problems)) == ((), 1)


def test_pf_without_netdev_that_is_set_to_have_vfs_is_unreadable(machine: SmallMachine) -> None:
    machine.add_pf(vfs=2)
    machine.take_netdev(PF, "eth0")
    hardware = machine.observer().observe()
    assert "made no netdev" in hardware.unreadable[0].why


def test_pf_lent_to_another_namespace_or_to_a_guest_is_a_problem_only(machine: SmallMachine) -> None:
    machine.add_pf(PF, "eth0", 10, vfs=2)
    machine.remove_netdev(PF, "eth0")
    machine.add_pf(PF1, "eth1", 30, vfs=1, rdma="mlx5_1")
    machine.take_netdev(PF1, "eth1")
    machine.bind(PF1, "vfio-pci")
    hardware = machine.observer().observe()
    assert (hardware.pfs, hardware.unreadable, len(hardware.problems)) == ((), (), 2)


def test_pf_renamed_while_it_is_looked_at_is_looked_at_again(machine: SmallMachine) -> None:
    machine.add_pf(vfs=1)

    def rename() -> None:
        machine.remove_netdev(PF, "eth0")
        machine.add_netdev(PF, "ens1f0", 10)

    pf = only_pf(restless(machine, f"bus/pci/devices/{PF}/net", rename))
    assert (pf.name, pf.problems) == ("ens1f0", ())


def test_vf_renamed_while_it_is_looked_at_is_looked_at_again(machine: SmallMachine) -> None:
    machine.add_pf(vfs=2)

    def rename() -> None:
        machine.remove_netdev(vf_pci(1), "eth12")
        machine.add_netdev(vf_pci(1), "eth0v1", 12)

    vf = only_pf(restless(machine, f"bus/pci/devices/{vf_pci(1)}/net", rename)).vfs[1]
    assert (vf.netdev, vf.unusable) == ("eth0v1", "")


def test_vf_given_away_while_it_is_looked_at_is_away(machine: SmallMachine) -> None:
    machine.add_pf(vfs=2)
    leave = restless(
        machine,
        f"bus/pci/devices/{vf_pci(1)}/net",
        lambda: machine.remove_netdev(vf_pci(1), "eth12"),
    )
    vf = only_pf(leave).vfs[1]
    assert (vf.netdev, vf.unusable) == (None, "")


def test_pf_stays_ours_when_it_gets_the_default_route_or_another_name(machine: SmallMachine) -> None:
    machine.add_pf(vfs=2)
    observer = machine.observer(Selection(rules=(PfRule(names=frozenset({"eth0"})),)))
    observer.observe()
    machine.remove_netdev(PF, "eth0")
    machine.add_netdev(PF, "ens1f0", 10)
    assert only_pf(observer.observe()).name == "ens1f0"
    broad = machine.observer()
    broad.observe()
    machine.answers.routes = frozenset({10})
    (problem,) = only_pf(broad.observe()).problems
    assert "default route" in problem
    assert "restart" in problem


def test_left_out_pf_is_a_problem_of_the_machine(machine: SmallMachine) -> None:
    machine.add_pf(rdma=None)
    hardware = machine.observer().observe()
    assert (hardware.pfs, hardware.unreadable) == ((), ())
    assert "no RDMA device" in hardware.problems[0]


def test_file_that_may_not_be_read_makes_its_pf_unreadable(machine: SmallMachine) -> None:
    machine.add_pf(vfs=2)

    class Guarded(Sysfs):
        def target(self, path: str) -> str:
            if path.endswith(f"{vf_pci(1)}/driver"):
                raise PermissionError(errno.EACCES, "Permission denied", path)
            return super().target(path)

    hardware = Observer(Guarded(machine.root), machine.answers, Selection()).observe()
    assert hardware.pfs == ()
    assert "Permission denied" in hardware.unreadable[0].why


def test_pfs_that_may_not_be_looked_for_are_unreadable(machine: SmallMachine) -> None:
    machine.add_pf(vfs=2)

    class Guarded(Sysfs):
        def read(self, path: str) -> str:
            if path.endswith("sriov_totalvfs"):
                raise PermissionError(errno.EACCES, "Permission denied", path)
            return super().read(path)

    hardware = Observer(Guarded(machine.root), machine.answers, Selection()).observe()
    assert hardware.pfs == ()
    assert [each.subject for each in hardware.unreadable] == ["PFs"]


def test_pf_is_unreadable_until_it_can_be_queried_for_its_vfs(machine: SmallMachine) -> None:
    machine.add_pf(vfs=2)
    vfs = machine.answers.vfs.pop(10)
    observer = machine.observer()
    assert "ENODEV" in observer.observe().unreadable[0].why
    machine.answers.vfs[10] = vfs
    assert len(only_pf(observer.observe(frozenset())).vfs) == 2


def test_netlink_that_cannot_be_queried_is_an_error(machine: SmallMachine) -> None:
    machine.add_pf(vfs=2)

    class Deaf(type(machine.answers)):
        def links(self) -> list[object]:
            msg = "links: no answer"
            raise KernelError(msg)

    with pytest.raises(KernelError, match="no answer"):
        Observer(Sysfs(machine.root), Deaf(), Selection()).observe()


def test_pf_whose_rdma_device_has_a_name_that_is_no_text_is_shown(machine):
    """If all namespaces see all RDMA devices, a pod may call one so."""
    machine.add_pf(rdma=os.fsdecode(b"x\xff"))
    (pf,) = machine.observer().observe().pfs
    assert pf.rdma_device.encode() == rb"x\udcff"
