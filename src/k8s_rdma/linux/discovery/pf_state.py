"""State of one PF for operators and the scheduler: link speed, rates, problems, settings made by devlink.

The system itself never sets rates by devlink; somebody else may have. With the drivers of the table rates
are set through the PF's netdev, in switchdev mode as well (`linux.drivers`). mlx5 keeps one value of each
rate, whoever set it last; what devlink set for ice, devlink alone reports. A VF in a group shares with the
others there what the group gets of the link, so that a minimum rate is no promise to it, and neither to a
VF beside the group.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from k8s_rdma.core.kernel import PfState
from k8s_rdma.core.options import LinkType
from k8s_rdma.errors import printable
from k8s_rdma.linux.drivers import ability, supported_settings
from k8s_rdma.linux.vfio import can_have_vfio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from k8s_rdma.core.kernel import Vf
    from k8s_rdma.core.rates import RateAbility
    from k8s_rdma.linux.discovery.pfs import Selected
    from k8s_rdma.linux.discovery.vf_settings import VfSettings
    from k8s_rdma.linux.discovery.vfs import VfContext
    from k8s_rdma.linux.netlink.queries import DevlinkRate
    from k8s_rdma.linux.netlink.rtnl import Link
    from k8s_rdma.linux.sysfs import Sysfs

OWN_GROUPS = frozenset({"ice"})
"""Drivers that by themselves show their scheduler as groups, with each VF in one
(`ice_devlink_rate_init_tx_topology`, drivers/net/ethernet/intel/ice/devlink/devlink.c, Linux 6.12)."""


def group_of(driver: str, rate: DevlinkRate) -> str:
    """Return the rate group that an administrator put a VF in or gave rates; empty for none."""
    return rate.group if rate.group_rated or driver not in OWN_GROUPS else ""


def with_devlink(
    driver: str, settings: Mapping[int, VfSettings], rates: Mapping[int, DevlinkRate]
) -> Mapping[int, VfSettings]:
    """Return the settings of a PF's VFs, merged with their devlink rates.

    The larger of two minimum rates applies, and the smaller of two maximum rates.
    """
    return {
        index: _with_rate(driver, setting, rates[index]) if index in rates else setting
        for index, setting in settings.items()
    }


def without_promises(
    driver: str, ability: RateAbility, rates: Mapping[int, DevlinkRate]
) -> tuple[RateAbility, str]:
    """Return the rates that a PF accepts beside groups of VFs, and a clause on what these restrict."""
    grouped = {index: group for index, rate in rates.items() if (group := group_of(driver, rate))}
    if not grouped:
        return ability, ""
    vfs, groups = ", ".join(map(str, sorted(grouped))), ", ".join(sorted(set(grouped.values())))
    why = f"its VFs {vfs} are in groups of devlink rates ({groups}), beside which no minimum rate holds"
    return replace(ability, min=None, weights=None), why


def _with_rate(driver: str, reported: VfSettings, rate: DevlinkRate) -> VfSettings:
    maxima = {reported.max_tx_rate_mbps, rate.max_tx_rate_mbps} - {0}
    return replace(
        reported,
        min_tx_rate_mbps=max(reported.min_tx_rate_mbps, rate.min_tx_rate_mbps),
        max_tx_rate_mbps=min(maxima, default=0),
        by_devlink=_describe(rate, group_of(driver, rate)),
    )


def _describe(rate: DevlinkRate, group: str) -> str:
    found = [
        f"tx_share {rate.min_tx_rate_mbps} Mb/s" if rate.min_tx_rate_mbps else "",
        f"tx_max {rate.max_tx_rate_mbps} Mb/s" if rate.max_tx_rate_mbps else "",
        f"group {group}" if group else "",
    ]
    if not any(found):
        return ""
    description = ", ".join(filter(None, found))
    return f"its rates are set by devlink ({description}); `devlink port function rate set` takes them back"


Speed = tuple[int | None, str]
"""Mb/s and an empty text, or None and the reason why it is unknown."""

_RATE = re.compile(r"(\d+(?:\.\d+)?) Gb/sec\b.*")
_NO_RESERVATIONS = "it takes no interfaces with a reservation"


def ethernet_speed(sysfs: Sysfs, link: Link) -> Speed:
    """Read a netdev's `speed` (Mb/s; -1 or EINVAL when the driver does not know)."""
    if not (link.is_up and link.carrier):
        state = "has no carrier" if link.is_up else "is set down"
        return None, f"its link {state}; {_NO_RESERVATIONS}"
    speed = sysfs.number(f"class/net/{link.name}/speed")
    if speed is None or speed <= 0:
        return None, f"its driver does not tell the link's speed; {_NO_RESERVATIONS}"
    return speed, ""


def infiniband_speed(sysfs: Sysfs, link: Link, rdma_device: str) -> Speed:
    """Read the RDMA port's `rate`, like `100 Gb/sec (4X EDR)`; it is known while `state` is `4: ACTIVE`.

    Source: Linux `drivers/infiniband/core/sysfs.c`, rate_show, state_show. `dev_port` of an IPoIB netdev
    counts from 0, ports count from 1.
    """
    number = (sysfs.number_if_any(f"class/net/{link.name}/dev_port") or 0) + 1
    port = f"class/infiniband/{rdma_device}/ports/{number}"
    state = (sysfs.value(f"{port}/state") or "unknown").rpartition(": ")[2]
    if state != "ACTIVE":
        return None, f"its port is {state}, not ACTIVE (is a subnet manager running?); {_NO_RESERVATIONS}"
    found = _RATE.fullmatch(sysfs.value(f"{port}/rate") or "")
    if not found:
        return None, f"its port does not tell its rate; {_NO_RESERVATIONS}"
    return round(float(found[1]) * 1000), ""


def pf_state(
    context: VfContext, selected: Selected, vfs: Iterable[Vf], query_firmware: Callable[[str], str]
) -> PfState:
    """Build the state of a PF with these VFs; `query_firmware` takes a netdev's name.

    Without a version of the netdev, that of the RDMA device is used, whose driver may have its own (irdma on
    ice). OSError or KernelError when the PF cannot be read.
    """
    pf, link = selected.pf, selected.link
    vfs = tuple(vfs)
    link_type = pf.link_type or LinkType.ETHERNET
    link_mbps, unknown_speed = _speed(context, selected, link_type)
    firmware = query_firmware(link.name)
    if not firmware and pf.rdma_device:
        firmware = context.rdma.firmware(pf.rdma_device)
    driver, by_devlink = pf.driver or "", context.devlink_rates.get(pf.pci, {})
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
        switchdev=pf.pci in context.switchdev,
        rates=rates,
        enforce=selected.rule.enforce,
        supported_settings=supported_settings(
            driver=driver,
            link_type=link_type,
            switchdev=pf.pci in context.switchdev,
            vfio_pci=bool(vfs)
            and can_have_vfio(context.sysfs, vfs[0].pci, unsafe_noiommu=context.unsafe_noiommu),
        ),
        problems=tuple(_problems(context, selected, unknown_speed, grouped)),
        mac=link.mac,
    )


def _speed(context: VfContext, selected: Selected, link_type: LinkType) -> Speed:
    if link_type is LinkType.INFINIBAND and selected.pf.rdma_device:
        return infiniband_speed(context.sysfs, selected.link, selected.pf.rdma_device)
    return ethernet_speed(context.sysfs, selected.link)


def _problems(context: VfContext, selected: Selected, *clauses: str) -> Iterator[str]:
    pf = selected.pf
    if not pf.num_vfs:
        yield f"PF {pf.name}: it has no VFs, of {pf.total_vfs} that it can have; run `k8s-rdma init`"
    yield from (f"PF {pf.name}: {clause}" for clause in clauses if clause)
    if pf.pci in context.switchdev:
        why = "traffic of its VFs needs the representors up and forwarded, which is left to whoever set it so"
        yield f"PF {pf.name}: its embedded switch is in switchdev mode: {why}"
    if selected.objection:
        yield selected.objection
