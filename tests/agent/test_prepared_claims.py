"""Prepared claims that their pod has no more: they end, or pass to a new pod."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from agent.test_claims import Running, machine, refusal, scenario
from factories import PF0
from k8s_rdma.core.types import PodUid
from k8s_rdma.errors import Reason
from k8s_rdma.wire.claims import ClaimName, Prepare
from resource_claims import claim, interface, of_pod, prepare

if TYPE_CHECKING:
    from agent.machine import Machine

__all__ = ["machine"]


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


def successor(*interfaces: dict[str, Any], pod: str = "q") -> Prepare:
    """The claim of `p`, as it is when it is allocated again, for another pod."""
    document = claim(*interfaces)
    for result in document["status"]["allocation"]["devices"]["results"]:
        result["shareID"] = "anew"
    return prepare(of_pod(document, pod), wait_s=40.0)


def test_claim_that_is_being_unprepared_passes_to_no_pod(machine: Machine) -> None:
    """The devices that it prepared for the new pod would end with it."""

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
        # The executable asks for the marked pod, although the former pod has no prepared claim any more.
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
