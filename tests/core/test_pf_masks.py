"""Bit sets of PFs, against the needs asked PF by PF."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from k8s_rdma.core.options import InterfaceOptions, needs_of
from k8s_rdma.core.pf_masks import PfMasks
from k8s_rdma.core.pf_needs import meets
from placement_oracle import OPTIONS, nodes, unlike


@given(st.data(), OPTIONS, st.booleans())
def test_masks_agree_with_meets(data: st.DataObject, options: InterfaceOptions, software: bool) -> None:
    inventory, _ = unlike(data.draw(nodes()), data.draw)
    needs, masks = needs_of(options, software_caps=software), PfMasks(inventory.pfs)
    assert [bool(masks.meeting(needs) >> at & 1) for at in range(len(inventory.pfs))] == [
        meets(pf, needs) for pf in inventory.pfs
    ]
    whichever = replace(needs, pf=None, link_type=None, mtu=0)
    assert [bool(masks.able(needs) >> at & 1) for at in range(len(inventory.pfs))] == [
        meets(pf, whichever) for pf in inventory.pfs
    ]
