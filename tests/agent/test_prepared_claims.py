"""What the DRA driver is told of prepared claims, and what becomes of those that nobody unprepares."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from agent.test_resource_claims import Running, machine, refusal, scenario
from k8s_rdma.agent.claims import ClaimOffers, ClaimsSocket
from k8s_rdma.agent.unix_sockets import listen_unix, serve_connections
from k8s_rdma.core.types import PodUid
from k8s_rdma.errors import Reason
from k8s_rdma.wire.claims import ClaimName, PreparedClaim, Question, decode_offers, encode_line
from resource_claims import interface

if TYPE_CHECKING:
    from agent.machine import Machine

__all__ = ["machine"]


def test_prepared_claims_say_what_their_pods_have(machine: Machine) -> None:
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


def test_abandoned_promise_ends_when_its_pod_has_nothing_any_more(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        named = ClaimName(namespace="default", name="c", uid="claim-1")
        await agent.prepare(interface("a", bandwidth="60G"))
        await agent.add()
        error = await refusal(agent.claims.end_abandoned(named, PodUid("uid-p")))
        assert (error.reason, "still has interfaces" in error.message) == (Reason.CONFLICT, True)
        await agent.delete()
        error = await refusal(agent.claims.end_abandoned(named, PodUid("uid-q")))
        assert (error.reason, "not abandoned by" in error.message) == (Reason.CONFLICT, True)
        assert agent.promised_mbps() == 60_000
        await agent.claims.end_abandoned(named, PodUid("uid-p"))
        assert not agent.promised_mbps()
        assert not agent.cdi_files()
        assert machine.is_pristine()

    scenario(machine, play)


def test_follower_gets_the_offers_again_as_a_heartbeat(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        path = machine.directory / "claims.sock"
        talk = ClaimsSocket(agent.claims, ClaimOffers(agent.node).publisher, heartbeat_s=0.05).talk
        with listen_unix(path, 0o600) as listener:
            serving = asyncio.create_task(serve_connections(listener, talk, limit=8))
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(encode_line(Question(follow=True)))
            first = await reader.readline()
            assert [await reader.readline() for _ in range(2)] == [first, first]
            writer.close()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    scenario(machine, play)
