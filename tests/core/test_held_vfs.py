"""A pod that holds exclusive devices gets just their VFs, or a refusal that says why not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from factories import PF0, PF1, hardware, interface, pf_state, receipt
from k8s_rdma.core.devices.held_vfs import HeldDevice, held_interfaces, of_pf, vfs_by_device
from k8s_rdma.core.ledger import AllocatedInterface, Ledger
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.placement import PlacedInterface, Placement, Rejection
from k8s_rdma.core.rate_ability import NO_RATE, RateAbility, RateRange
from k8s_rdma.core.request import InterfaceRequest, Request
from k8s_rdma.core.step import VfRate
from k8s_rdma.core.types import Enforce, NodeName, Setting, VfDriver
from k8s_rdma.errors import Reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from k8s_rdma.core.kernel import Hardware, PfState

W1 = NodeName("w1")
RDMA = "tencent.com/rdma"
WEIGHTS = RateAbility(min=RateRange(), max=RateRange(), weights=100)


def pf(pci: str, *pooled: int, **changes: object) -> PfState:
    """A PF of 1000 Mb/s with RDMA devices: `m0_2` is that of VF 2 of the first PF, `m0` its own."""
    made = pf_state(pci, rdma_device=f"m{pci[-1]}", **changes)
    vfs = (
        replace(vf, rdma_device=f"m{pci[-1]}_{vf.index}", pool=RDMA if vf.index in pooled else "")
        for vf in made.vfs
    )
    return replace(made, vfs=tuple(vfs))


NOBODY = Ledger()
HERE = hardware(pf(PF0, 0, 2), pf(PF1, 1))


def wanted(*rates: int, **more: object) -> Request:
    return Request(tuple(InterfaceRequest(min_tx_rate_mbps=rate, **more) for rate in rates))


def given_for(
    *ids: str,
    request: Request | None = None,
    there: Hardware = HERE,
    ledger: Ledger = NOBODY,
    promised: Placement | None = None,
    outstanding: Sequence[PlacedInterface] = (),
) -> tuple[AllocatedInterface, ...] | Rejection:
    return held_interfaces(
        node=W1,
        request=request or wanted(*(0 for _ in ids)),
        devices=[HeldDevice(RDMA, each) for each in ids],
        hardware=there,
        ledger=ledger,
        promised=promised,
        outstanding=outstanding,
        ifnames=[f"rdma{at}" for at in range(len(ids))],
        entries=range(len(ids)),
    )


def refused(*ids: str, **more: object) -> Rejection:
    found = given_for(*ids, **more)
    assert isinstance(found, Rejection)
    return found


def changed(index: int, **changes: object) -> Hardware:
    first = HERE.pfs[0]
    vfs = (replace(vf, **changes) if vf.index == index else vf for vf in first.vfs)
    return hardware(replace(first, vfs=tuple(vfs)), HERE.pfs[1])


@given(st.permutations(["m0_0", "m0_2", "m1_1"]), st.lists(st.integers(0, 200), min_size=3, max_size=3))
def test_each_device_gets_its_own_vf_and_the_rates_at_its_place(ids: list[str], rates: list[int]) -> None:
    found = given_for(*ids, request=wanted(*rates))
    assert not isinstance(found, Rejection)
    assert [(each.rdma_device, each.min_tx_rate_mbps, each.entry) for each in found] == [
        (device, rate, at) for at, (device, rate) in enumerate(zip(ids, rates, strict=True))
    ]
    assert {each.pool for each in found} == {RDMA}
    assert [f"m{each.vf.pf[-1]}_{each.vf.index}" for each in found] == ids


def test_device_may_be_named_by_the_address_of_its_function() -> None:
    vf = HERE.pfs[0].vfs[2]
    found = vfs_by_device(HERE, NOBODY)
    assert found[vf.pci] == found["m0_2"] == (HERE.pfs[0], vf)
    assert "m9_9" not in found


def test_device_of_a_pod_is_known_by_its_home_in_the_ledger() -> None:
    away = changed(2, rdma_device=None, netdev=None)
    held = Ledger().with_receipt(receipt("a", replace(interface(PF0, 2), rdma_device="m0_2")))
    assert "m0_2" not in vfs_by_device(away, NOBODY)
    assert vfs_by_device(away, held)["m0_2"].vf.index == 2


def test_device_of_a_pf_is_no_vf() -> None:
    assert of_pf("m0", HERE)
    assert of_pf(PF0, HERE)
    assert not of_pf("m0_0", HERE)


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("rxe0", "device rxe0 of tencent.com/rdma, which kubelet gave the pod, is no VF of this node"),
        ("m0_1", "VF 1 of PF enp3s0f0 is for those who ask by annotation"),
    ],
)
def test_device_that_is_no_vf_of_its_resource_is_unknown(device: str, said: str) -> None:
    rejection = refused("m0_0", device)
    assert rejection.reason is Reason.UNKNOWN_DEVICE
    assert said in rejection.message


def test_device_that_another_pod_still_has_is_worth_another_try() -> None:
    """Kubelet gives a device on before the sandbox of its last holder has ended."""
    held = Ledger().with_receipt(receipt("a", replace(interface(PF0, 2), rdma_device="m0_2")))
    rejection = refused("m0_2", there=changed(2, rdma_device=None, netdev=None), ledger=held)
    assert rejection.reason is Reason.CONFLICT
    assert "is still held by pod default/p; try again" in rejection.message_for("default")
    assert "is still held by a pod of another namespace; try again" in rejection.message_for("other")


def test_device_that_another_program_rated_is_not_given() -> None:
    rejection = refused("m0_2", there=changed(2, min_tx_rate_mbps=7))
    assert rejection.reason is Reason.INSUFFICIENT
    assert "VF 2 of PF enp3s0f0 cannot be given: rates that are not ours: min 7" in rejection.message


def test_rates_of_all_devices_on_a_pf_must_fit_beside_its_reservations() -> None:
    crowd = Ledger().with_receipt(receipt("a", interface(PF0, 1, minimum=300)))
    assert not isinstance(given_for("m0_0", "m0_2", request=wanted(300, 400), ledger=crowd), Rejection)
    rejection = refused("m0_0", "m0_2", request=wanted(300, 401), ledger=crowd)
    assert rejection.reason is Reason.INSUFFICIENT
    assert "need 701 Mb/s there; 700 of 1000 are unreserved" in rejection.message


def test_promises_to_other_pods_leave_no_room_for_unpromised_rates() -> None:
    for promised_mbps, left_mbps in ((600, 400), (1_000, 0)):
        promised = (PlacedInterface(pf=PF0, min_tx_rate_mbps=promised_mbps),)
        rejection = refused("m0_0", request=wanted(500), outstanding=promised)
        assert f"there; {left_mbps} of 1000 are unreserved" in rejection.message
    assert not isinstance(given_for("m1_1", request=wanted(500), outstanding=promised), Rejection)


@pytest.mark.parametrize(("pf", "pool", "given"), [(PF0, RDMA, True), (PF1, RDMA, False), (PF0, "", False)])
def test_rates_count_as_promised_only_if_the_promise_has_that_pf_and_pool(
    pf: str, pool: str, given: bool
) -> None:
    """The VFs of a pool may have changed since the pod was placed."""
    others = (PlacedInterface(pf=PF0, min_tx_rate_mbps=600),)
    own = Placement(node=W1, interfaces=(PlacedInterface(pf=pf, min_tx_rate_mbps=500, pool=pool, entry=0),))
    found = given_for("m0_0", request=wanted(500), promised=own, outstanding=others)
    assert isinstance(found, Rejection) is not given


def test_rates_that_the_link_does_not_have_at_all_exceed_it() -> None:
    rejection = refused("m0_0", request=wanted(1001))
    assert (rejection.reason, rejection.message) == (
        Reason.EXCEEDS_CAPACITY,
        "the pod's devices are VFs of PF enp3s0f0 and need 1001 Mb/s there; its link has 1000",
    )
    down = hardware(pf(PF0, 0, link_mbps=None))
    assert "its link speed is unknown" in refused("m0_0", request=wanted(1), there=down).message
    assert not isinstance(given_for("m0_0", there=down), Rejection)


def test_rates_that_the_driver_does_not_take_are_refused_if_hardware_is_demanded() -> None:
    there = hardware(pf(PF0, 0, rates=NO_RATE, driver="igb"))
    assert not isinstance(given_for("m0_0", request=wanted(5), there=there), Rejection)
    rejection = refused("m0_0", request=wanted(5, enforce=Enforce.HARDWARE), there=there)
    assert rejection.reason is Reason.DRIVER_REFUSES
    assert "igb takes no minimum rates (5 Mb/s wanted)" in rejection.message


def test_device_is_capped_by_software_if_its_annotation_or_pf_demands_it() -> None:
    capped = Request((InterfaceRequest(min_tx_rate_mbps=5, max_tx_rate_mbps=9, enforce=Enforce.SOFTWARE),))
    there = hardware(pf(PF0, 0, enforce=Enforce.SOFTWARE))
    by_pf = Request((InterfaceRequest(min_tx_rate_mbps=5, max_tx_rate_mbps=9),))
    for request, seen in ((capped, HERE), (by_pf, there)):
        found = given_for("m0_0", request=request, there=seen)
        assert not isinstance(found, Rejection)
        assert found[0].rate() == VfRate(0, 5, 0)
        assert found[0].software_max_tx_rate_mbps == 9


def test_device_for_a_program_is_refused_if_software_must_cap_it() -> None:
    programs = InterfaceOptions(driver=VfDriver.VFIO_PCI)
    asked = Request((InterfaceRequest(max_tx_rate_mbps=9, options=programs),))
    there = hardware(pf(PF0, 0, enforce=Enforce.SOFTWARE, supported_settings=frozenset(Setting)))
    rejection = refused("m0_0", request=asked, there=there)
    assert rejection.reason is Reason.DRIVER_REFUSES
    assert rejection.message == (
        "PF enp3s0f0: software cannot cap a VF that is given to vfio-pci (9 Mb/s wanted), and enforcement by "
        "software is demanded"
    )


def test_vlan_of_the_network_is_refused_if_the_driver_cannot_set_one() -> None:
    asked = wanted(0, options=InterfaceOptions(vlan=7))
    rejection = refused("m0_0", request=asked)
    assert (rejection.reason, rejection.message) == (
        Reason.DRIVER_REFUSES,
        "PF enp3s0f0: mlx5_core cannot set vlan of a VF",
    )
    there = hardware(pf(PF0, 0, supported_settings=frozenset({Setting.VLAN})))
    assert not isinstance(given_for("m0_0", request=asked, there=there), Rejection)


def test_device_of_another_pf_than_is_wanted_is_refused_as_such() -> None:
    rejection = refused("m0_0", request=wanted(0, options=InterfaceOptions(mtu=9216)))
    assert (rejection.reason, rejection.message) == (
        Reason.NO_SUCH_PF,
        "PF enp3s0f0: its MTU is 1500, and mtu is 9216",
    )


def test_promises_hold_if_minima_are_weights() -> None:
    """A VF with a hundredth of the largest reservation has a whole share all the same."""
    there = hardware(pf(PF0, 0, 2, rates=WEIGHTS, driver="mlx5_core"))
    crowd = Ledger().with_receipt(receipt("a", interface(PF0, 1, minimum=999)))
    rejection = refused("m0_0", there=there, ledger=crowd)
    assert rejection.reason is Reason.INSUFFICIENT
    assert "minimum rates of mlx5_core are weights" in rejection.message
