"""What the DRA driver is told of prepared claims, and what becomes of those that nobody unprepares."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from agent.test_resource_claims import Running, machine, refusal, scenario
from factories import PF0
from k8s_rdma.agent.claim_offers import ClaimOffers
from k8s_rdma.agent.claims import ClaimsSocket
from k8s_rdma.agent.unix_sockets import listen_unix, serve_connections
from k8s_rdma.core.types import PodUid
from k8s_rdma.errors import Reason
from k8s_rdma.wire.claims import (
    ClaimName,
    ClaimQuestion,
    Prepare,
    PreparedClaim,
    decode_offers,
    encode_line,
)
from resource_claims import claim, interface, of_pod, prepare

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


def test_abandoned_claim_ends_when_its_pod_has_no_interface_any_more(machine: Machine) -> None:
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
            writer.write(encode_line(ClaimQuestion(follow=True)))
            first = await reader.readline()
            assert [await reader.readline() for _ in range(2)] == [first, first]
            writer.close()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    scenario(machine, play)


def successor(*interfaces: dict[str, Any], pod: str = "q") -> Prepare:
    """The claim of `p`, as it is when it is allocated again, for another pod."""
    document = claim(*interfaces)
    for result in document["status"]["allocation"]["devices"]["results"]:
        result["shareID"] = "anew"
    return prepare(of_pod(document, pod), wait_s=40.0)


def test_claim_that_is_being_unprepared_passes_to_no_pod(machine: Machine) -> None:
    """What it prepared for the new one would end with it."""

    async def play(agent: Running) -> None:
        await agent.prepare(interface("a", bandwidth="60G"))
        ending = asyncio.create_task(agent.unprepare())
        await asyncio.sleep(0)
        question = successor(interface("a", bandwidth="60G"))
        error = await refusal(agent.claims.hand_over(question, PodUid("uid-p")))
        assert (error.reason, "being unprepared" in error.message) == (Reason.CONFLICT, True)
        await ending

    scenario(machine, play)


def test_claim_of_a_former_pod_passes_to_its_new_one_if_the_former_has_no_interface(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        hand_over = agent.claims.hand_over
        question = successor(interface("a", bandwidth="60G"))
        error = await refusal(hand_over(question, PodUid("uid-p")))
        assert (error.reason, "is not prepared" in error.message) == (Reason.CONFLICT, True)
        names = await agent.prepare(interface("a", bandwidth="60G"))
        agent.node.ledger_store.set_consumers({PodUid("uid-q"): frozenset({"default/c"})})
        await agent.add()
        error = await refusal(hand_over(question, PodUid("uid-p")))
        assert (error.reason, "still has interfaces" in error.message) == (Reason.CONFLICT, True)
        given_up = agent.add("c2", "q", still_waiting=lambda: False)
        assert "prepared for another pod" in (await refusal(given_up)).message
        waiting = asyncio.create_task(agent.claims.prepare(question))
        await agent.delete()
        error = await refusal(hand_over(question, PodUid("uid-r")))
        assert "not abandoned by uid-r" in error.message
        [device] = await hand_over(question, PodUid("uid-p"))
        assert (device.cdi, device.share_id) == (names, "anew")
        assert await waiting == (device,)
        assert agent.promised_mbps() == 60_000
        await agent.add("c2", "q")
        assert agent.vfs("c2") == [(PF0, 0, "eth0", 60_000, 0)]
        # The executable asks for what is marked, although the former pod has no prepared claim any more.
        assert (machine.directory / "run/claims/uid-p").exists()
        assert "prepared for another pod" in (await refusal(agent.add("c3", "p"))).message
        agent.node.ledger_store.set_consumers({PodUid("uid-q"): frozenset({"default/c"})})
        assert not (machine.directory / "run/claims/uid-p").exists()
        await agent.delete("c2", "q")
        await agent.unprepare()
        assert machine.is_pristine()
        assert not agent.cdi_files()

    scenario(machine, play)


def test_prepared_claim_stands_when_the_new_pod_cannot_have_it(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        await agent.prepare(interface("a", bandwidth="60G"))
        await agent.prepare(interface("a", bandwidth="40G"), uid="u2", name="d", pod_name="r")
        error = await refusal(
            agent.claims.hand_over(successor(interface("a", bandwidth="61G")), PodUid("uid-p"))
        )
        assert "needs 61000 Mb/s; 60000 of 100000 are unreserved" in error.message
        assert [claim.pod.name for claim in agent.node.ledger.claims.values()] == ["p", "r"]
        await agent.add()

    scenario(machine, play)


def test_claim_handed_over_outlasts_the_agent(machine: Machine) -> None:
    async def begin(agent: Running) -> None:
        await agent.prepare(interface("a", bandwidth="60G"))
        await agent.claims.hand_over(successor(interface("a", bandwidth="60G")), PodUid("uid-p"))

    async def go_on(agent: Running) -> None:
        assert "prepared for another pod" in (await refusal(agent.add())).message
        await agent.add("c2", "q")

    scenario(machine, begin)
    scenario(machine, go_on)
