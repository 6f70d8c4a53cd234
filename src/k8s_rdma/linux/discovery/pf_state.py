"""One PF as an operator and the scheduler shall see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.kernel import PfState
from k8s_rdma.core.options import LinkType
from k8s_rdma.errors import printable
from k8s_rdma.linux.discovery.ports import ethernet_speed, infiniband_speed
from k8s_rdma.linux.discovery.rates_by_devlink import without_promises
from k8s_rdma.linux.driver_settings import takes
from k8s_rdma.linux.drivers import ability
from k8s_rdma.linux.vf.vfio import can_have_vfio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from k8s_rdma.core.kernel import Vf
    from k8s_rdma.linux.discovery.pfs import Selected
    from k8s_rdma.linux.discovery.ports import Speed
    from k8s_rdma.linux.discovery.vfs import Surroundings


def pf_state(
    around: Surroundings, selected: Selected, vfs: Iterable[Vf], ask_firmware: Callable[[str], str]
) -> PfState:
    """A PF with these VFs; `ask_firmware` of a netdev by name.

    The RDMA device is asked where that tells none: it may have a version of its own driver's (irdma on ice).
    OSError or KernelError when it cannot be read.
    """
    pf, link = selected.pf, selected.link
    vfs = tuple(vfs)
    link_type = pf.link_type or LinkType.ETHERNET
    link_mbps, unknown_speed = _speed(around, selected, link_type)
    firmware = ask_firmware(link.name)
    if not firmware and pf.rdma_device:
        firmware = around.rdma.firmware(pf.rdma_device)
    driver, by_devlink = pf.driver or "", around.devlink_rates.get(pf.pci, {})
    rates = ability(
        driver=driver,
        link_type=link_type,
        link_mbps=link_mbps,
        vendor=pf.vendor,
        vst=bool(vfs) and all(vf.vlan for vf in vfs),
    )
    rates, grouped = without_promises(driver, rates, by_devlink)
    return PfState(
        name=link.name,
        pci=pf.pci,
        link_mbps=link_mbps,
        driver=driver,
        vfs=vfs,
        mtu=link.mtu,
        link_type=link_type,
        rdma_device=None if pf.rdma_device is None else printable(pf.rdma_device),
        vendor=pf.vendor,
        firmware=printable(firmware),
        numa_node=pf.function.numa_node(),
        pcie_path=pf.function.pcie_path(),
        switchdev=pf.pci in around.switchdev,
        rates=rates,
        enforce=selected.rule.enforce,
        takes=takes(
            driver=driver,
            link_type=link_type,
            switchdev=pf.pci in around.switchdev,
            vfio_pci=bool(vfs)
            and can_have_vfio(around.sysfs, vfs[0].pci, unsafe_noiommu=around.unsafe_noiommu),
        ),
        problems=tuple(_problems(around, selected, unknown_speed, grouped)),
        mac=link.mac,
    )


def _speed(around: Surroundings, selected: Selected, link_type: LinkType) -> Speed:
    if link_type is LinkType.INFINIBAND and selected.pf.rdma_device:
        return infiniband_speed(around.sysfs, selected.link, selected.pf.rdma_device)
    return ethernet_speed(around.sysfs, selected.link)


def _problems(around: Surroundings, selected: Selected, *clauses: str) -> Iterator[str]:
    pf = selected.pf
    if not pf.num_vfs:
        yield f"PF {pf.name}: it has no VFs, of {pf.total_vfs} that it can have; run `k8s-rdma init`"
    yield from (f"PF {pf.name}: {clause}" for clause in clauses if clause)
    if pf.pci in around.switchdev:
        why = "traffic of its VFs needs the representors up and forwarded, which is left to whoever set it so"
        yield f"PF {pf.name}: its embedded switch is in switchdev mode: {why}"
    if selected.objection:
        yield selected.objection
