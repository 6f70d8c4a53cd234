"""Why a PF does not meet an interface's needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given

from k8s_rdma.core.inventory import Pf
from k8s_rdma.core.options import InterfaceOptions, needs_of
from k8s_rdma.core.pf_needs import unmet
from k8s_rdma.core.request import InterfaceRequest, Request
from k8s_rdma.core.types import LinkType, PciAddress, Setting
from placement_oracle import OPTIONS, meets, needy

if TYPE_CHECKING:
    from placement_oracle import Situation

IB = Pf(
    name="ib0",
    pci=PciAddress("0000:03:00.0"),
    capacity_vfs=4,
    link_mbps=200_000,
    driver="mlx5_core",
    link_type=LinkType.INFINIBAND,
    supported_settings=frozenset({Setting.GUID, Setting.LINK_STATE}),
)


def test_partition_key_is_refused_with_the_reason_and_a_key_to_request_instead() -> None:
    why = unmet(IB, needs_of(InterfaceOptions(pkey=0x8001)))
    assert "no driver sets pkey" in why
    assert "ask for guid" in why
    assert unmet(IB, needs_of(InterfaceOptions(guid="02:00:00:00:00:00:00:01"))) == ""


@given(OPTIONS, needy())
def test_refusal_describes_the_pfs_that_do_not_meet_the_options(
    options: InterfaceOptions, drawn: tuple[Request, Situation]
) -> None:
    _, (node, _) = drawn
    for pf in node.pfs:
        assert bool(unmet(pf, needs_of(options))) is not meets(pf, InterfaceRequest(options=options))
