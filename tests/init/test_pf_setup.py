"""`init` on pretended machines: PFs made ready, again, and against resistance."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import TYPE_CHECKING

from fakes.sriov_machine import Card, MachineClock
from init.conftest import IGB, IGB2, World
from k8s_rdma.core.types import LinkType, PciAddress
from k8s_rdma.init.job import StoppedError
from k8s_rdma.init.pf_setup import PfResult
from k8s_rdma.init.vf_settings import vf_guid, vf_mac
from k8s_rdma.linux.vf.sriov_links import GuidOf

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    Make = Callable[..., World]

IB = Card(
    name="ibs1",
    pci=PciAddress("0000:41:00.0"),
    mac="00:00:10:29:fe:80:00:00:00:00:00:00:0c:42:a1:03:00:a1:b2:c3",
    link_type=LinkType.INFINIBAND,
    driver="mlx5_core",
    vf_driver="mlx5_core",
    has_rdma=True,
    total_vfs=4,
)


def test_init_makes_configures_binds_and_names_all_vfs(world: Make) -> None:
    w = world()
    outcome = w.init()["enp1s0f0"]
    assert (outcome.result, outcome.previous, outcome.current) == (PfResult.CHANGED, 0, 7)
    vfs = w.card().vfs
    assert [vf.netdev for vf in vfs.values()] == [f"enp1s0f0v{index}" for index in range(7)]
    expected = [vf_mac(IGB.mac, index) for index in range(7)]
    assert [vf.mac for vf in vfs.values()] == expected
    assert [vf.netdev_mac for vf in vfs.values()] == expected
    assert w.card().up_since is not None
    assert w.card().autoprobe


def test_init_has_no_effect_the_second_time(world: Make) -> None:
    w = world()
    w.init(hardware={"pfs": [{"trust": True}]})
    w.machine.written.clear()
    outcome = w.init(hardware={"pfs": [{"trust": True}]})["enp1s0f0"]
    assert (outcome.result, outcome.message, outcome.advice) == (PfResult.READY, "", "")
    assert not w.machine.written


def test_macs_are_the_same_after_a_boot(world: Make, tmp_path_factory: pytest.TempPathFactory) -> None:
    w = world()
    w.init()
    before = [vf.netdev_mac for vf in w.card().vfs.values()]
    w.machine.write(f"bus/pci/devices/{IGB.pci}/sriov_numvfs", "0")
    w.init()
    assert [vf.netdev_mac for vf in w.card().vfs.values()] == before


def test_vfs_get_their_driver_after_addresses_and_link_and_never_by_themselves(world: Make) -> None:
    w = world(replace(IGB, link_after_s=3.0))
    w.init()
    names = [path.rpartition("/")[2] for path, _ in w.machine.written]
    assert names[:3] == ["sriov_drivers_autoprobe", "sriov_numvfs", "sriov_drivers_autoprobe"]
    assert names[3:] == ["drivers_probe"] * 7
    assert w.machine.now_s >= 3.0


def test_autoprobe_is_left_as_it_was(world: Make) -> None:
    w = world()
    w.card().autoprobe = False
    w.machine.write(f"bus/pci/devices/{IGB.pci}/sriov_drivers_autoprobe", "0")
    assert w.init()["enp1s0f0"].result is PfResult.CHANGED
    assert not w.card().autoprobe


def test_trust_is_set_if_configured_and_otherwise_left(world: Make) -> None:
    w = world(IGB, IGB2)
    w.init(hardware={"pfs": [{"names": ["enp1s0f0"], "trust": True}, {}]})
    assert {vf.trust for vf in w.card(IGB).vfs.values()} == {True}
    assert {vf.trust for vf in w.card(IGB2).vfs.values()} == {False}
    w.init(hardware={"pfs": [{"trust": False}]})
    assert {vf.trust for vf in w.card(IGB).vfs.values()} == {False}


def test_trust_that_the_driver_cannot_set_is_a_failure_without_another_try(world: Make) -> None:
    w = world(replace(IGB, settings=frozenset({"MAC"})))
    outcome = w.init(hardware={"pfs": [{"trust": True}]})["enp1s0f0"]
    assert outcome.result is PfResult.FAILED
    assert "cannot set trust" in outcome.message
    assert "`trust`" in outcome.advice


def test_mac_that_the_driver_cannot_set_is_said_and_no_failure(world: Make) -> None:
    w = world(replace(IGB, settings=frozenset()))
    outcome = w.init()["enp1s0f0"]
    assert outcome.result is PfResult.CHANGED
    assert "sets no MAC on VFs" in outcome.message
    assert w.init()["enp1s0f0"].result is PfResult.READY


def test_infiniband_vfs_have_guids_of_their_own_that_stay(world: Make) -> None:
    w = world(IB)
    assert w.init(hardware={"requireRdma": True})["ibs1"].result is PfResult.CHANGED
    port = "0c:42:a1:03:00:a1:b2:c3"
    for index, vf in w.card(IB).vfs.items():
        assert vf.node_guid == vf_guid(port, index, GuidOf.NODE)
        assert vf.port_guid == vf_guid(port, index, GuidOf.PORT)
        assert vf.netdev_mac.endswith(vf.port_guid)
        assert vf.link_state == "auto"
        assert vf.netdev == f"ibs1v{index}"
    assert w.init()["ibs1"].result is PfResult.READY


def test_vf_whose_netdev_has_another_mac_is_bound_anew(world: Make) -> None:
    w = world()
    w.init()
    w.card().vfs[3].netdev_mac = "02:00:00:00:00:99"
    w.machine.written.clear()
    assert w.init()["enp1s0f0"].message == "1 bound, 1 named"
    assert w.card().vfs[3].netdev_mac == vf_mac(IGB.mac, 3)
    assert [path for path, _ in w.machine.written if path.endswith("unbind")] == [
        f"bus/pci/devices/{w.card().vfs[3].pci}/driver/unbind"
    ]


def test_vfs_made_by_another_program_are_made_ready(world: Make) -> None:
    w = world()
    w.machine.write(f"bus/pci/devices/{IGB.pci}/sriov_drivers_autoprobe", "0")
    w.machine.write(f"bus/pci/devices/{IGB.pci}/sriov_numvfs", "7")
    assert w.init()["enp1s0f0"].message == "7 settings, 7 bound, 7 named, PF up"


def test_another_number_of_vfs_is_set_by_way_of_zero_if_no_vf_is_used(world: Make) -> None:
    w = world()
    w.init(hardware={"pfs": [{"numVfs": 2}]})
    w.machine.written.clear()
    outcome = w.init(hardware={"pfs": [{"numVfs": 5}]})["enp1s0f0"]
    assert (outcome.previous, outcome.current, outcome.result) == (2, 5, PfResult.CHANGED)
    assert [text for path, text in w.machine.written if path.endswith("numvfs")] == ["0", "5"]
    outcome = w.init(hardware={"pfs": [{"numVfs": 0}]})["enp1s0f0"]
    assert (outcome.previous, outcome.current, outcome.message) == (5, 0, "all removed")


def test_more_vfs_than_the_pf_can_have_are_refused_with_advice(world: Make) -> None:
    w = world()
    outcome = w.init(hardware={"pfs": [{"numVfs": 8}]})["enp1s0f0"]
    assert (outcome.result, outcome.current) == (PfResult.FAILED, 0)
    assert outcome.message == "8 VFs requested, its sriov_totalvfs is 7"
    assert "set numVfs to 7 or less" in outcome.advice
    assert not w.machine.written


def test_failure_of_one_pf_does_not_stop_the_others(world: Make) -> None:
    w = world(replace(IGB, max_created_vfs=3), IGB2)
    outcomes = w.init()
    assert outcomes["enp1s0f0"].result is PfResult.FAILED
    assert "7 VFs requested, its driver created 3" in outcomes["enp1s0f0"].message
    assert outcomes["enp2s0f0"].result is PfResult.CHANGED


def test_vfs_of_before_are_back_when_the_new_ones_cannot_be_made(world: Make) -> None:
    w = world()
    w.init(hardware={"pfs": [{"numVfs": 2}]})
    w.machine.refuse("sriov_numvfs", "7", errno.ENOMEM, times=3)
    outcome = w.init()["enp1s0f0"]
    assert (outcome.result, outcome.previous, outcome.current) == (PfResult.FAILED, 2, 2)
    assert "ENOMEM" in outcome.message
    assert all(vf.netdev for vf in w.card().vfs.values())


def test_try_is_repeated_with_growing_pauses_and_three_times_at_most(world: Make) -> None:
    w = world()
    w.machine.refuse("sriov_numvfs", "7", errno.EBUSY, times=2)
    outcome = w.init(backoffS=40, driverTimeoutS=0)["enp1s0f0"]
    assert (outcome.result, outcome.current) == (PfResult.CHANGED, 7)
    assert 120 <= w.machine.now_s < 130
    w.machine.write(f"bus/pci/devices/{IGB.pci}/sriov_numvfs", "0")
    w.machine.refuse("sriov_numvfs", "7", errno.EBUSY, times=3)
    assert w.init()["enp1s0f0"].result is PfResult.FAILED


def test_netdevs_that_come_late_are_waited_for_with_the_number_of_vfs(world: Make) -> None:
    w = world(replace(IGB, total_vfs=100, vf_netdev_after_s=120.0))
    assert w.init(vfTimeoutS=30, timeoutPerVfS=1)["enp1s0f0"].result is PfResult.CHANGED
    assert 120 <= w.machine.now_s < 125


def test_netdevs_that_do_not_come_fail_the_pf_naming_the_first(world: Make) -> None:
    w = world(replace(IGB, vf_netdev_after_s=1e6))
    outcome = w.init(tries=1)["enp1s0f0"]
    assert outcome.result is PfResult.FAILED
    assert "7 of 7 VFs without a netdev, the first VF 0 (0000:01:02.0): driver igbvf" in outcome.message
    assert 44 <= w.machine.now_s < 46


def test_vf_without_netdev_is_bound_anew_in_the_next_try(world: Make) -> None:
    w = world(replace(IGB, total_vfs=1, vf_netdev_after_s=1e6))
    w.init(tries=2)
    assert sum(path.endswith("unbind") for path, _ in w.machine.written) == 1


def test_vf_driver_that_is_not_loaded_is_named_with_its_module(world: Make) -> None:
    w = world()
    w.machine.loaded.clear()
    outcome = w.init()["enp1s0f0"]
    assert "no driver" in outcome.message
    assert outcome.advice == "load its driver on the host: modprobe pci:igbvf"
    assert w.card().autoprobe


def test_pf_without_cable_is_made_ready_all_the_same(world: Make) -> None:
    w = world(replace(IGB, has_cable=False, vf_driver="mlx5_core", settings=frozenset()))
    assert w.init(carrierTimeoutS=4)["enp1s0f0"].result is PfResult.CHANGED
    assert 4 <= w.machine.now_s < 6


def test_signalled_process_leaves_the_machine_in_order(world: Make) -> None:
    class Ending(MachineClock):
        def wait(self, seconds: float) -> None:
            if self.monotonic() > 5:
                msg = "stopped by a signal"
                raise StoppedError(msg)
            super().wait(seconds)

    w = world(replace(IGB, link_after_s=100.0))
    outcome = w.init(clock=Ending(w.machine), carrierTimeoutS=50)["enp1s0f0"]
    assert outcome.result is PfResult.FAILED
    assert outcome.message == "stopped by a signal (done before: 7 made, PF up)"
    assert w.card().autoprobe
    assert not any(vf.driver for vf in w.card().vfs.values())


def test_names_given_by_others_or_taken_stay(world: Make) -> None:
    w = world(IGB, replace(IGB2, name="a-name-so-long1"))
    w.init()
    assert w.card(IGB2).vfs[0].netdev.startswith("eth")
    w.machine.rename(w.card(IGB).vfs[1], "mine")
    w.card(IGB).vfs[1].netdev_mac = "02:00:00:00:00:99"
    w.machine.rename(w.card(IGB).vfs[2], "enp1s0f0v1")
    assert w.init()["enp1s0f0"].message == "1 bound"
    assert w.card(IGB).vfs[1].netdev.startswith("eth")


def test_names_are_left_to_the_kernel_if_configured(world: Make) -> None:
    w = world()
    w.init(nameVfs=False)
    assert {vf.netdev[:3] for vf in w.card().vfs.values()} == {"eth"}


def test_changes_of_a_failed_try_are_reported(world: Make) -> None:
    w = world(replace(IGB, vf_netdev_after_s=70.0, total_vfs=1))
    outcome = w.init(tries=1)["enp1s0f0"]
    assert outcome.message.endswith("(done before: 1 made, 1 settings, PF up)")
    w.machine.write(f"bus/pci/devices/{IGB.pci}/sriov_numvfs", "0")
    w.machine.now_s = 0.0
    assert w.init(vfTimeoutS=60, tries=2)["enp1s0f0"].result is PfResult.FAILED
