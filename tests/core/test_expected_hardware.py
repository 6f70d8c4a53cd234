"""Hardware as an observation would find it after VFs were given to a pod and returned."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from core.chosen_vfs import W1, asking, chosen_for
from factories import PF0, PF1, hardware, pf_state, receipt
from k8s_rdma.core.allocation import choose_vfs, foreign_vfs
from k8s_rdma.core.expected_hardware import returned
from k8s_rdma.core.expected_hardware import with_allocations as given_to_pod
from k8s_rdma.core.ledger import Ledger
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.placement import PlacedInterface, Placement, Rejection
from k8s_rdma.core.types import LinkState, PciAddress, VfDriver

if TYPE_CHECKING:
    from k8s_rdma.core.kernel import Hardware


@given(st.lists(st.tuples(st.sampled_from((PF0, PF1)), st.integers(0, 200)), min_size=1, max_size=8))
def test_hardware_is_as_before_when_given_and_returned(drawn: list[tuple[PciAddress, int]]) -> None:
    asked = Placement(
        node=W1, interfaces=tuple(PlacedInterface(pf=pf, min_tx_rate_mbps=rate) for pf, rate in drawn)
    )
    wide = hardware(pf_state(PF0, vfs=8), pf_state(PF1, vfs=8))
    chosen = choose_vfs(asked, wide, Ledger(), tuple(f"rdma{index}" for index in range(len(drawn))))
    assert not isinstance(chosen, Rejection)
    assert len({each.vf for each in chosen}) == len(drawn)
    after = given_to_pod(wide, chosen)
    assert sum(vf.netdev is None for pf in after.pfs for vf in pf.vfs) == len(drawn)
    assert sum(vf.min_tx_rate_mbps for pf in after.pfs for vf in pf.vfs) == sum(rate for _, rate in drawn)
    assert returned(after, chosen) == wide


OPTIONS = st.builds(
    InterfaceOptions,
    vlan=st.none() | st.integers(0, 4094),
    trust=st.none() | st.booleans(),
    spoof_check=st.none() | st.booleans(),
    link_state=st.none() | st.sampled_from(LinkState),
    mtu=st.none() | st.just(9000),
    driver=st.sampled_from(VfDriver),
)


@given(st.lists(OPTIONS, min_size=1, max_size=4), st.booleans(), st.sampled_from(("Follow", "Up", "Down")))
def test_hardware_is_as_before_when_settings_were_given_and_returned(
    drawn: list[InterfaceOptions], trusted: bool, link: str
) -> None:
    options = [
        replace(each, mac=f"02:00:00:00:01:0{at}" if at % 2 else None) for at, each in enumerate(drawn)
    ]
    first = pf_state(PF0)
    vfs = tuple(
        replace(each, admin_mac=each.mac, driver="igbvf", trust="ON" if trusted else "OFF", link_state=link)
        for each in first.vfs
    )
    seen = hardware(replace(first, vfs=vfs))
    chosen = chosen_for(asking(*options), seen)
    away = given_to_pod(seen, chosen)
    ledger = Ledger().with_receipt(receipt("a", *chosen))
    assert not foreign_vfs(away, ledger)
    for each, asked in zip(away.pfs[0].vfs, options, strict=False):
        assert each.vlan == (asked.vlan or 0)
        assert each.admin_mac == (asked.mac or each.admin_mac)
        assert each.trust == {None: vfs[0].trust, True: "ON", False: "OFF"}[asked.trust]
    # the kernel's report of VFs that are away
    looked_at = tuple(replace(each, mtu=1, mac="", unusable="bound to vfio-pci") for each in away.pfs[0].vfs)
    back = returned(
        hardware(replace(away.pfs[0], vfs=(*looked_at[: len(chosen)], *vfs[len(chosen) :]))), chosen
    )
    for each, asked in zip(back.pfs[0].vfs, options, strict=False):
        assert each.unusable == ("bound to vfio-pci" if asked.driver is VfDriver.KERNEL else "")
    assert replace_all(back, unusable="") == seen
    assert not foreign_vfs(replace_all(back, unusable=""), Ledger())


def replace_all(seen: Hardware, **changes: object) -> Hardware:
    return hardware(*(replace(pf, vfs=tuple(replace(each, **changes) for each in pf.vfs)) for pf in seen.pfs))
