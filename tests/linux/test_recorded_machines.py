"""Observations of machines that were recorded, or made from documentation: `tests/machines/`.

Each is read by the code that reads real ones. The last tests hold for every file there, whatever it is of.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fakes.recorded_machine import RecordedMachine, read_machine
from k8s_rdma.core.allocation import foreign_vfs
from k8s_rdma.core.inventory import Generation
from k8s_rdma.core.kernel import Hardware, PfState
from k8s_rdma.core.ledger import Ledger
from k8s_rdma.core.pf_selection import PfRule, Selection
from k8s_rdma.core.types import LinkType, NodeName, PciAddress, Setting
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.discovery.observation import Observer
from k8s_rdma.linux.drivers import ability
from k8s_rdma.linux.vfio import vfio_group
from k8s_rdma.wire.getpfs import encode_getpfs
from k8s_rdma.wire.report_builder import node_report

if TYPE_CHECKING:
    from k8s_rdma.wire.machine import Machine

OF_MLX5 = frozenset(
    {
        *(Setting.VLAN, Setting.QOS, Setting.MAC, Setting.MTU),
        *(Setting.TRUST, Setting.SPOOF_CHECK, Setting.LINK_STATE),
    }
)
MACHINES = Path(__file__).parent.parent / "machines"
FILES = sorted(path.stem for path in MACHINES.glob("*.yaml"))
WITHOUT_RDMA = Selection(require_rdma=False)


@cache
def document(name: str) -> Machine:
    return read_machine(MACHINES / f"{name}.yaml")


def machine(name: str) -> RecordedMachine:
    return RecordedMachine(document(name))


def seen(name: str, selection: Selection | None = None) -> Hardware:
    it = machine(name)
    return Observer(it.sysfs, it.queries, selection or Selection()).observe()


def alone(pf: PfState) -> PfState:
    """A PF without its VFs, and without its driver's ability for rates, which has tests of its own."""
    known = ability(driver=pf.driver, link_type=pf.link_type, link_mbps=pf.link_mbps, vendor=pf.vendor)
    assert pf.rates == known
    return replace(pf, vfs=(), rates=PfState.__dataclass_fields__["rates"].default)


def not_free(hardware: Hardware, pf: int = 0) -> dict[int, str]:
    """Why VFs of a PF are not free, by index, if no pod was given any."""
    pci = hardware.pfs[pf].pci
    return {each.vf.index: each.why for each in foreign_vfs(hardware, Ledger()) if each.vf.pf == pci}


def names(hardware: Hardware) -> list[str]:
    return [pf.name for pf in hardware.pfs]


def test_connectx5_of_the_legacy_documents_is_seen_whole() -> None:
    hardware = seen("connectx5-ofed")
    assert (hardware.unreadable, hardware.problems) == ((), ())
    one, other = hardware.pfs
    assert alone(one) == PfState(
        name="enp4s0f0",
        pci=PciAddress("0000:04:00.0"),
        link_mbps=100_000,
        driver="mlx5_core",
        vfs=(),
        rdma_device="mlx5_0",
        vendor="15b3:1017",
        firmware=one.firmware,
        numa_node=0,
        pcie_path=(PciAddress("0000:00:03.0"),),
        supported_settings=OF_MLX5,
    )
    assert one.firmware.startswith("16.25.1020")
    assert (other.name, other.rdma_device, other.link_mbps) == ("enp4s0f1", "mlx5_1", 100_000)
    assert [len(pf.vfs) for pf in hardware.pfs] == [120, 120]
    assert not_free(hardware) == not_free(hardware, 1) == {}
    last = other.vfs[119]
    assert (last.pci, last.netdev, last.rdma_device) == ("0000:04:1e.1", "enp4s0f1v119", "mlx5_241")


def test_connectx5_of_the_legacy_documents_is_shown_byte_by_byte_as_there() -> None:
    """All 240 VFs, as the published example has the first one."""
    report = node_report(
        node=NodeName("w1"), generation=Generation("e", 1), hardware=seen("connectx5-ofed"), ledger=Ledger()
    )
    assert encode_getpfs(report).decode() == "[" + ",".join(map(legacy_pf, (0, 1))) + "]"


def legacy_pf(port: int) -> str:
    vfs = ",".join(legacy_vf(n, f"7a:90:db:7b:{0x30AC + 0x1000 * port + n:04x}") for n in range(120))
    return (
        f'{{"name":"enp4s0f{port}","used_tx_rate":0,"capacity_tx_rate":100000,"used_vfs":0,"capacity_vfs":120,'
        f'"vfs":[{vfs}]}}'
    )


def legacy_vf(index: int, mac: str) -> str:
    mac = f"{mac[:-2]}:{mac[-2:]}"
    return (
        f'{{"vf":{index},"mac":"{mac}","vlan":0,"qos":0,"vlan_proto":"N/A","spoof_check":"OFF","trust":"ON",'
        '"link_state":"Follow","min_tx_rate":0,"max_tx_rate":0,"vgt_plus":"OFF","rate_group":0,"allocated":false}'
    )


def test_connectx5_reports_the_state_of_its_vfs() -> None:
    hardware = seen("connectx5")
    why = not_free(hardware)
    assert sorted(why) == [1, 2, 3, 4, 5, 7]
    assert "another network namespace" in why[1]
    assert "min 5000, max 10000" in why[2]
    assert "VLAN 100" in why[3]
    assert "vfio-pci" in why[4]
    assert "no driver" in why[5]
    assert "enp59s0f0v7" in why[7]
    vfs = hardware.pfs[0].vfs
    assert [vf.netdev for vf in vfs] == [
        "enp59s0f0v0",
        None,
        "enp59s0f0v2",
        "enp59s0f0v3",
        None,
        None,
        "enp59s0f0v6",
        "enp59s0f0v7",
    ]
    assert (vfs[0].mac, vfs[0].mtu) == ("02:00:00:00:00:00", 9000)
    assert (vfs[1].mac, vfs[1].rdma_device, vfs[1].min_tx_rate_mbps, vfs[1].max_tx_rate_mbps) == (
        "02:00:00:00:00:01",
        "mlx5_3",
        15_000,
        20_000,
    )
    assert (vfs[3].vlan, vfs[3].qos, vfs[3].vlan_proto) == (100, 3, "802.1Q")
    assert (vfs[6].spoof_check, vfs[6].trust, vfs[6].link_state) == ("ON", "ON", "Up")
    assert (vfs[0].spoof_check, vfs[0].trust, vfs[0].link_state) == ("OFF", "OFF", "Follow")


def test_vf_with_an_address_of_the_host_is_not_free() -> None:
    assert not_free(seen("connectx5"), pf=1).keys() == {1}
    assert "IP address on its netdev enp59s0f1v1" in not_free(seen("connectx5"), pf=1)[1]


def test_port_without_a_link_has_no_speed_and_says_so() -> None:
    port = seen("connectx5").pfs[1]
    assert (port.name, port.link_mbps, len(port.vfs)) == ("enp59s0f1np1", None, 2)
    assert any("no carrier" in problem for problem in port.problems)


def test_port_that_is_set_down_has_no_speed_and_says_so() -> None:
    up, down = seen("igb-link-down").pfs
    assert (up.link_mbps, up.problems) == (1000, ())
    assert down.link_mbps is None
    assert any("down" in problem for problem in down.problems)
    assert len(down.vfs) == 7


def test_switchdev_pf_is_its_uplink_and_not_a_representor() -> None:
    [pf] = seen("connectx5-switchdev").pfs
    assert (pf.name, pf.switchdev, pf.rdma_device, pf.link_mbps) == ("enp59s0f0np0", True, "mlx5_0", 100_000)
    assert any("switchdev" in problem for problem in pf.problems)
    assert [(vf.netdev, vf.rdma_device) for vf in pf.vfs] == [
        (f"enp59s0f0v{index}", f"mlx5_{index + 1}") for index in range(4)
    ]


def test_infiniband_port_has_the_rate_of_its_rdma_device_and_takes_no_rates() -> None:
    hardware = seen("connectx6-infiniband")
    [pf] = hardware.pfs
    assert alone(pf) == PfState(
        name="ib0",
        pci=PciAddress("0000:3b:00.0"),
        link_mbps=200_000,
        driver="mlx5_core",
        vfs=(),
        mtu=2044,
        link_type=LinkType.INFINIBAND,
        rdma_device="mlx5_0",
        vendor="15b3:101b",
        firmware=pf.firmware,
        numa_node=0,
        pcie_path=(PciAddress("0000:3a:00.0"),),
        supported_settings=frozenset({Setting.GUID, Setting.LINK_STATE, Setting.MTU}),
    )
    assert (pf.rates.min, pf.rates.max) == (None, None)
    assert [(vf.netdev, vf.rdma_device) for vf in pf.vfs] == [
        (f"ib{index}", f"mlx5_{index}") for index in range(1, 5)
    ]
    assert [vf.mac[-5:] for vf in pf.vfs] == ["01:00", "01:01", "01:02", "01:03"]
    assert not_free(hardware) == {}


def test_e810_has_rdma_on_its_ports_and_not_on_their_vfs() -> None:
    one, other = seen("e810").pfs
    assert (one.rdma_device, one.driver, one.vendor) == ("rocep24s0f0", "ice", "8086:1592")
    assert one.firmware == "4.10 0x8001518e 1.3310.0"  # of the card; irdma has one of its own
    assert [(vf.netdev, vf.rdma_device) for vf in one.vfs] == [
        (f"ens801f0v{index}", None) for index in range(4)
    ]
    assert (other.vfs, other.rates.sum_checked) == ((), True)
    assert any("no VFs" in problem for problem in other.problems)


def test_bcm57508_is_found_behind_its_switch() -> None:
    [pf] = seen("bcm57508").pfs
    assert alone(pf) == PfState(
        name="enp67s0np0",
        pci=PciAddress("0000:43:00.0"),
        link_mbps=200_000,
        driver="bnxt_en",
        vfs=(),
        mtu=9000,
        rdma_device="bnxt_re0",
        vendor="14e4:1750",
        firmware=pf.firmware,
        numa_node=1,
        pcie_path=(PciAddress("0000:40:01.1"), PciAddress("0000:41:00.0"), PciAddress("0000:42:08.0")),
        supported_settings=OF_MLX5 - {Setting.QOS},
    )
    assert [(vf.pci, vf.rdma_device) for vf in pf.vfs] == [
        (f"0000:43:02.{index}", f"bnxt_re{index + 1}") for index in range(4)
    ]


def test_vfs_of_a_machine_with_an_iommu_can_be_handed_to_programs_and_one_is() -> None:
    one, other = seen("igb-iommu", WITHOUT_RDMA).pfs
    of_igb = OF_MLX5 - {Setting.LINK_STATE}
    assert one.supported_settings == other.supported_settings == of_igb | {Setting.VFIO_PCI}
    held, configured = one.vfs[1], one.vfs[2]
    assert (held.driver, held.netdev) == ("vfio-pci", None)
    assert (configured.vlan, configured.qos, configured.trust, configured.driver) == (100, 5, "ON", "igbvf")
    assert vfio_group(held.pci, machine("igb-iommu").sysfs) == "/dev/vfio/9"


@pytest.mark.parametrize("name", ["igb", "igb-numa-rxe"])
def test_machine_without_rdma_on_its_ports_selects_no_port_and_reports_why(name: str) -> None:
    hardware = seen(name)
    assert (hardware.pfs, hardware.unreadable) == ((), ())
    assert len(hardware.problems) == 2
    assert all("no RDMA device" in problem for problem in hardware.problems)


def test_machine_without_rdma_has_its_ports_if_rdma_is_not_required() -> None:
    hardware = seen("igb", WITHOUT_RDMA)
    assert [(pf.name, pf.pci, pf.link_mbps, pf.numa_node, pf.pcie_path) for pf in hardware.pfs] == [
        ("eth0", "0000:01:00.0", 1000, None, ("0000:00:03.0",)),
        ("eth1", "0000:02:00.0", 1000, None, ("0000:00:04.0",)),
    ]
    assert [(pf.driver, pf.vendor, pf.firmware, pf.rdma_device) for pf in hardware.pfs] == [
        ("igb", "8086:10c9", "2.1.0", None)
    ] * 2
    assert [vf.netdev for vf in hardware.pfs[1].vfs] == [f"eth{index}" for index in range(9, 16)]
    assert not_free(hardware) == not_free(hardware, 1) == {}


def test_soft_rdma_devices_of_vfs_are_theirs_and_ports_lie_on_their_numa_nodes() -> None:
    hardware = seen("igb-numa-rxe", WITHOUT_RDMA)
    assert [(pf.name, pf.numa_node, pf.rdma_device, pf.pcie_path) for pf in hardware.pfs] == [
        ("eth1", 0, None, ("0000:20:00.0",)),
        ("eth0", 1, None, ("0000:40:00.0",)),
    ]
    assert {vf.netdev: vf.rdma_device for pf in hardware.pfs for vf in pf.vfs if vf.rdma_device} == {
        "eth2": "rxe0",
        "eth3": "rxe1",
        "eth9": "rxe2",
    }


def test_vfs_in_use_by_others_are_reported_as_by_a_real_kernel() -> None:
    hardware = seen("igb-rxe")
    assert [(pf.name, pf.rdma_device) for pf in hardware.pfs] == [("eth0", "rxe0"), ("eth1", "rxe1")]
    why = not_free(hardware)
    assert sorted(why) == [2, 3]
    assert "max 500" in why[2]
    assert "VLAN 100" in why[3]
    away = not_free(hardware, 1)
    assert sorted(away) == [1]
    assert "another network namespace" in away[1]
    trusted = hardware.pfs[0].vfs[4]
    assert (trusted.trust, trusted.spoof_check) == ("ON", "OFF")


def test_port_with_the_default_route_is_left_alone_unless_it_is_named() -> None:
    hardware = seen("igb-default-route")
    assert names(hardware) == ["eth1"]
    assert any("eth0" in problem and "default route" in problem for problem in hardware.problems)
    named = Selection(rules=(PfRule(names=frozenset({"eth0"})), PfRule()))
    assert names(seen("igb-default-route", named)) == ["eth0", "eth1"]


def test_vfs_without_a_driver_cannot_be_given_and_the_others_can() -> None:
    hardware = seen("igb-half-created")
    assert names(hardware) == ["eth0", "eth1"]
    assert [vf.netdev for vf in hardware.pfs[0].vfs] == ["eth2", "eth3", None, None]
    why = not_free(hardware)
    assert sorted(why) == [2, 3]
    assert all("no driver" in each for each in why.values())
    assert hardware.pfs[1].vfs == ()


def test_pf_whose_vfs_are_being_made_cannot_be_read_yet() -> None:
    hardware = seen("connectx6-vfs-coming")
    assert hardware.pfs == ()
    [unreadable] = hardware.unreadable
    assert "enp59s0f0np0" in unreadable.subject
    assert "VF 3" in unreadable.why


def test_simulated_device_and_ports_without_a_driver_are_no_pfs() -> None:
    hardware = seen("netdevsim", WITHOUT_RDMA)
    assert (hardware.pfs, hardware.unreadable) == ((), ())
    assert sorted(problem[:15] for problem in hardware.problems) == ["PF 0000:01:00.0", "PF 0000:02:00.0"]


@pytest.mark.parametrize(
    ("name", "leaves"),
    [
        ("igb", "0000:01:00.0"),
        ("igb-rxe", "0000:02:00.0"),
        ("connectx5", "0000:3b:00.0"),
        ("connectx6-infiniband", "0000:3b:00.0"),
        ("connectx5-switchdev", "0000:3b:00.0"),
    ],
)
def test_pf_whose_driver_leaves_between_two_looks_is_whole_or_missed(name: str, leaves: str) -> None:
    """At whatever look it happens: all VFs, or a report that the PF is missing or unreadable."""
    before = seen(name, WITHOUT_RDMA)
    for looks in range(looks_of(name)):
        it = machine(name)
        it.unbind_driver_after(PciAddress(leaves), looks)
        try:
            after = Observer(it.sysfs, it.queries, WITHOUT_RDMA).observe()
        except KernelError:
            continue
        told = {pf.pci: pf for pf in after.pfs}
        assert_others_stay(before, told, leaves)
        if leaves in told:
            assert len(told[PciAddress(leaves)].vfs) == len(vfs_of(before, leaves))
        else:
            assert after.unreadable or any(leaves in problem for problem in after.problems), f"look {looks}"


def looks_of(name: str) -> int:
    it = machine(name)
    Observer(it.sysfs, it.queries, WITHOUT_RDMA).observe()
    return it.reads


def vfs_of(hardware: Hardware, pci: str) -> tuple[object, ...]:
    return next(pf.vfs for pf in hardware.pfs if pf.pci == pci)


def assert_others_stay(before: Hardware, told: dict[PciAddress, PfState], leaves: str) -> None:
    for pf in before.pfs:
        if pf.pci != leaves:
            assert told[pf.pci] == pf


@pytest.mark.parametrize("name", FILES)
def test_machine_agrees_with_itself(name: str) -> None:
    """Sysfs and netlink agree on all that both say, links lead somewhere, and PFs have the VFs they count."""
    it = machine(name)
    assert it.machine.about.source.startswith(("recorded by ", "documentation: "))
    by_name = {link.name: link for link in it.queries.links()}
    for netdev in it.sysfs.names_if_any("class/net") or ():
        link, place = by_name[netdev], f"class/net/{netdev}"
        assert (it.sysfs.value_if_any(f"{place}/ifindex") or str(link.index)) == str(link.index)
        assert (it.sysfs.value_if_any(f"{place}/address") or link.mac) == link.mac
        if link.device:
            assert it.sysfs.resolved(place).split("/net/")[0].endswith(f"/{link.device}")
    indexes = {link.index for link in by_name.values()}
    ports = [port.netdev_index for device in it.queries.rdma_devices() for port in device.ports]
    assert {*it.machine.vfs, *it.machine.default_route_links, *filter(None, ports)} <= indexes


@pytest.mark.parametrize("name", FILES)
def test_pf_of_a_machine_has_the_vfs_that_it_counts(name: str) -> None:
    sysfs = machine(name).sysfs
    for pci in sysfs.names("bus/pci/devices"):
        place = f"bus/pci/devices/{pci}"
        if count := sysfs.number_if_any(f"{place}/sriov_numvfs"):
            assert len([each for each in sysfs.names(place) if each.startswith("virtfn")]) == count
        for index in range(count or 0):
            assert sysfs.target(f"{place}/virtfn{index}/physfn") == pci
            assert sysfs.target(f"{place}/virtfn{index}") == counted(pci, index, sysfs)


def counted(pf: str, index: int, sysfs: object) -> str:
    """The address of a VF (PCI Express Base Specification, 9.2.1.2: first offset and stride)."""
    place = f"bus/pci/devices/{pf}"
    domain, bus, device = pf.split(":")
    slot, function = device.split(".")
    routing = int(bus, 16) << 8 | int(slot, 16) << 3 | int(function)
    routing += sysfs.number(f"{place}/sriov_offset") + index * sysfs.number(f"{place}/sriov_stride")  # type: ignore[attr-defined]
    return f"{domain}:{routing >> 8:02x}:{routing >> 3 & 31:02x}.{routing & 7}"
