"""Prepared claims of a node, as they are reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.test_claims import Running, machine, scenario
from k8s_rdma.agent.claim_offers import ClaimOffers
from k8s_rdma.wire.claims import PreparedClaim, decode_offers
from resource_claims import interface

if TYPE_CHECKING:
    from agent.machine import Machine

__all__ = ["machine"]


def test_prepared_claims_list_the_interfaces_of_their_pods(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        offers = ClaimOffers(agent.node)

        async def prepared() -> PreparedClaim:
            await offers.publisher.publish()
            [found] = decode_offers(await offers.publisher.wait_for_change(None)).claims
            return found

        await agent.prepare(interface("a", bandwidth="60G", maxTxRate="80G"))
        before = await prepared()
        assert (before.claim.uid, before.pod, before.pod_uid) == ("claim-1", "p", "uid-p")
        [free] = before.interfaces
        assert (free.device, free.share_id, free.ifname, free.mac, free.ips) == (
            "f0",
            "share-0",
            "",
            "",
            None,
        )
        assert (free.min_tx_rate, free.max_tx_rate, free.min_enforced) == (60_000, 80_000, None)
        await agent.add()
        [attached] = (await prepared()).interfaces
        assert (attached.ifname, attached.ips, attached.min_enforced) == ("eth0", (), "hardware")
        assert attached.mac
        assert attached.pci == free.pci
        await agent.delete()
        assert not (await prepared()).attached

    scenario(machine, play)
