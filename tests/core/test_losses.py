"""Pods that lost a VF that was given to them: the report names the pod, the VF, and where that is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from factories import PF0, interface, pf_state, vf
from k8s_rdma.core.allocation import lost_interfaces
from k8s_rdma.core.types import InterfaceOptions, VfDriver

AWAY = vf(PF0, 0, netdev=None)
BOUND = {"driver": "vfio-pci", "unusable": "it is bound to vfio-pci, which makes no netdev"}
TO_THE_POD = "VF 0 of PF enp3s0f0, which pod default/p was given as rdma0, is lost to it: "


def lost(*vfs: object, driver: VfDriver = VfDriver.KERNEL) -> list[str]:
    given = replace(interface(PF0, 0), options=InterfaceOptions(driver=driver))
    pf = replace(pf_state(), vfs=vfs)
    return list(lost_interfaces(pf, [("default/p", given)]))


def test_vf_in_a_pods_namespace_is_no_problem() -> None:
    assert lost(AWAY) == []
    assert lost(replace(AWAY, **BOUND), driver=VfDriver.VFIO_PCI) == []


@pytest.mark.parametrize(
    ("vfs", "driver", "why"),
    [
        ((), VfDriver.KERNEL, "the PF has 0 VFs now"),
        ((vf(PF0, 1),), VfDriver.KERNEL, "the PF has 1 VFs now"),
        (
            (vf(PF0, 0, netdev="eth7"),),
            VfDriver.KERNEL,
            "its netdev is in the host's network namespace, as eth7",
        ),
        (
            (replace(AWAY, unusable="no driver is bound to it"),),
            VfDriver.KERNEL,
            "no driver is bound to it",
        ),
        ((replace(AWAY, **BOUND),), VfDriver.KERNEL, BOUND["unusable"]),
        (
            (vf(PF0, 0, driver="igbvf"),),
            VfDriver.VFIO_PCI,
            "its netdev is in the host's network namespace, as 0v0",
        ),
        (
            (replace(AWAY, unusable="no driver is bound to it"),),
            VfDriver.VFIO_PCI,
            "no driver is bound to it",
        ),
    ],
)
def test_vf_that_is_not_with_its_pod_is_told_with_what_became_of_it(
    vfs: tuple[object, ...], driver: VfDriver, why: str
) -> None:
    assert lost(*vfs, driver=driver) == [f"{TO_THE_POD}{why}; the pod has to be started anew"]


def test_vfs_of_other_pfs_are_told_with_those() -> None:
    elsewhere = interface("0000:09:00.0", 0)
    assert list(lost_interfaces(pf_state(), [("default/p", elsewhere)])) == []
