"""Pods that lost a VF that was given to them: the report names the pod, the VF and its location."""

from __future__ import annotations

from dataclasses import replace

import pytest

from factories import PF0, PF1, hardware, interface, pf_state, vf
from k8s_rdma.core.kernel import Hardware, Unreadable
from k8s_rdma.core.losses import SeenPfs, lost_interfaces, lost_with_pfs
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.types import VfDriver

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
def test_vf_that_left_its_pod_is_reported_with_its_present_state(
    vfs: tuple[object, ...], driver: VfDriver, why: str
) -> None:
    assert lost(*vfs, driver=driver) == [f"{TO_THE_POD}{why}; the pod has to be started anew"]


def test_vfs_of_other_pfs_are_reported_with_their_pfs() -> None:
    elsewhere = interface("0000:09:00.0", 0)
    assert list(lost_interfaces(pf_state(), [("default/p", elsewhere)])) == []


def seen(*observations: Hardware) -> Hardware:
    """Return the last observation, with the losses since the earlier ones."""
    pfs = SeenPfs()
    return [pfs.with_losses(observation) for observation in observations][-1]


def test_pf_that_leaves_the_machine_is_reported_until_it_returns() -> None:
    both, one = hardware(pf_state(PF0), pf_state(PF1)), hardware(pf_state(PF1))
    [problem] = seen(both, one, one).problems
    assert problem.startswith("PF enp3s0f0 (0000:03:00.0) is gone")
    assert "4 VFs" in problem
    assert seen(both, one, both) == both


def test_pf_that_is_known_to_be_unreadable_is_not_gone() -> None:
    both = hardware(pf_state(PF0), pf_state(PF1))
    unreadable = Hardware((pf_state(PF1),), (Unreadable("PF enp3s0f0", "no driver", PF0),))
    assert seen(both, unreadable).problems == ()
    unknown = Hardware((), (Unreadable("PFs", "EIO"),))
    assert seen(both, unknown).problems == ()
    [problem] = seen(both, Hardware((), (Unreadable("PF enp3s0f0", "no driver", PF0),))).problems
    assert problem.startswith("PF enp3s0f1 ")


def test_free_vfs_are_reported_when_they_disappear() -> None:
    state = seen(hardware(pf_state(vfs=8)), hardware(pf_state(vfs=0))).pfs[0]
    assert state.problems == (
        "it has 0 VFs, and had 8: run k8s-rdma init, or restart the agent if so wanted",
    )
    assert seen(hardware(pf_state(vfs=0)), hardware(pf_state(vfs=8))).pfs[0].problems == ()


def test_pods_on_a_pf_that_is_gone_are_reported() -> None:
    given = [("default/p", interface(PF0, 1)), ("default/q", interface(PF1, 0))]
    [problem] = lost_with_pfs(hardware(pf_state(PF1)), given)
    assert problem.startswith("VF 1 of PF 0000:03:00.0, which pod default/p was given as rdma0, is lost")
    assert list(lost_with_pfs(Hardware((), (Unreadable("PFs", "EIO"),)), given)) == []
