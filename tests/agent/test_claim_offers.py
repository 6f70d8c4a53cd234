"""Offers for claims, as the DRA driver gets them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from agent.test_claims import LINK, Running, machine, scenario
from k8s_rdma.agent.claim_offers import ClaimOffers
from k8s_rdma.agent.claims import ClaimsSocket
from k8s_rdma.agent.unix_sockets import listen_unix, serve_connections
from k8s_rdma.wire.claims import ClaimQuestion, decode_offers, encode_line
from resource_claims import interface

if TYPE_CHECKING:
    from agent.machine import Machine

__all__ = ["machine"]


def test_follower_gets_the_offers_again_as_a_heartbeat(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        path = machine.directory / "claims.sock"
        talk = ClaimsSocket(agent.claims, ClaimOffers(agent.node).publisher, heartbeat_s=0.05).talk
        with listen_unix(path, 0o600) as listener:
            serving = asyncio.create_task(serve_connections(listener, talk, limit=8))
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(encode_line(ClaimQuestion(follow=True)))
            first = await reader.readline()
            assert [await reader.readline() for _ in range(2)] == [first, first]
            writer.close()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    scenario(machine, play)


def test_offers_have_the_vfs_of_a_pf_and_remember_its_speed(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        offers = ClaimOffers(agent.node)
        await agent.prepare(interface("a", bandwidth="60G"))
        [first] = decode_offers(await offers.publisher.wait_for_change(None)).pfs
        assert (first.name, first.bandwidth_mbps, first.vfs, first.link_up) == ("f0", LINK, 4, True)
        assert first.pcie_root == "pci0000:03"
        pfs = agent.node.hardware.pfs
        agent.node.hardware = replace(agent.node.hardware, pfs=(replace(pfs[0], link_mbps=None), *pfs[1:]))
        await offers.publisher.publish()
        found = decode_offers(await offers.publisher.wait_for_change(None))
        assert (found.pfs[0].bandwidth_mbps, found.pfs[0].link_up) == (LINK, False)

    scenario(machine, play)
