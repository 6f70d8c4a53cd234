"""A node's hardware as values: the settings that a VF has, and the inventory of its PFs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.chosen_vfs import ASKED, altered, asking, chosen_for
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.step import VfConfig, Vlan
from k8s_rdma.core.types import LinkState


def test_choose_vfs_notes_no_values_of_options_that_are_not_requested() -> None:
    [made] = chosen_for(asking(InterfaceOptions(vlan=7, mtu=1400, name="a")))
    assert made.config == VfConfig(index=0, vlan=Vlan(7))
    assert made.previous == VfConfig(index=0, vlan=Vlan(0))
    [made] = chosen_for(asking(InterfaceOptions(mtu=1400, name="a", network="b")))
    assert (made.config, made.previous) == (None, None)


def test_choose_vfs_assumes_settings_of_a_new_vf_if_the_kernel_reports_none() -> None:
    seen = altered(0, trust="N/A", spoof_check="N/A", link_state="N/A")
    [made] = chosen_for(asking(replace(ASKED, mac=None)), seen)
    previous = made.previous
    assert previous is not None
    assert (previous.trust, previous.spoof_check, previous.link_state) == (False, True, LinkState.AUTO)


@pytest.mark.parametrize(
    ("seen", "guid"),
    [
        ({"mac": "00:00:10:29:fe:80:00:00:00:00:00:00:0a:00:00:00:00:00:00:07"}, "0a:00:00:00:00:00:00:07"),
        ({"admin_mac": "0a:00:00:00:00:00:00:08"}, "0a:00:00:00:00:00:00:08"),
        ({"mac": ""}, "00:00:00:00:00:00:00:00"),
    ],
)
def test_choose_vfs_notes_the_guid_that_a_port_had(seen: dict[str, str], guid: str) -> None:
    asked = InterfaceOptions(guid="0c:00:00:00:00:00:00:01")
    [made] = chosen_for(asking(asked), altered(0, **seen))
    assert made.config == VfConfig(index=0, guid=asked.guid)
    assert made.previous == VfConfig(index=0, guid=guid)
