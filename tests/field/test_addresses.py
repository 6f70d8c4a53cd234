"""MACs that pods bring with them, and that a VF still has."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from agent.machine import Machine
from agent.pods import requests
from agent.test_claims import Running, running
from factories import PF0, PF1
from k8s_rdma.core.pf_selection import PfRule
from k8s_rdma.core.types import PfUse
from resource_claims import interface

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("way", ["annotation", "claim"])
def test_pod_with_a_fixed_mac_gets_the_vf_that_still_has_it(tmp_path: Path, way: str) -> None:
    """The pod ended while no plugin ran: a VF kept its MAC, and of two with it both were cut off.

    https://github.com/k8snetworkplumbingwg/sriov-network-device-plugin/issues/685,
    https://github.com/k8snetworkplumbingwg/sriov-cni/issues/125
    """
    machine = Machine(tmp_path)
    machine.rules = (PfRule(names=frozenset({"f0"}), use=PfUse.CLAIMS), PfRule())
    pci = PF0 if way == "claim" else PF1

    async def play(agent: Running) -> None:
        [pf] = [pf for pf in agent.node.hardware.pfs if pf.pci == pci]
        mac = pf.vfs[2].mac
        if way == "claim":
            await agent.prepare(interface(mac=mac))
            await agent.add()
        else:
            await agent.add(annotations=requests({"mac": mac}))
        [receipt] = agent.node.ledger.of_container("c1")
        assert [(held.vf.pf, held.vf.index, held.mac) for held in receipt.interfaces] == [(pci, 2, mac)]

    with running(machine) as agent:
        asyncio.run(play(agent))
