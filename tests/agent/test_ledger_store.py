"""Marks beside the ledger: with them pods are refused rather than started without their interfaces."""

from __future__ import annotations

import asyncio
import shutil
import threading
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from agent.machine import Machine, asks, call
from agent.test_claims import Running, machine, refusal, scenario
from k8s_rdma.agent.cluster.no_cluster import NoCluster
from k8s_rdma.agent.ledger_store import EXCLUSIVE_DEVICES, mark_exclusive_devices
from k8s_rdma.core.types import PodUid
from k8s_rdma.errors import LedgerError
from k8s_rdma.linux.receipts import ClaimMark, encode_mark
from k8s_rdma.wire.claims import ClaimName
from resource_claims import claim, interface, of_pod, prepare
from resource_claims import pod as pod_of_claims

if TYPE_CHECKING:
    from pathlib import Path

    from k8s_rdma.agent.cluster.api_cluster import Consumers

__all__ = ["machine"]

SHARED = (
    "ResourceClaim default/c is prepared for another pod; an RDMA interface is of one pod: use a "
    "resourceClaimTemplateName, or delete the other pod"
)
NOBODYS = (
    "ResourceClaim default/c is prepared for no pod any more, and kubelet may not prepare it again for this "
    "one: delete this pod"
)
LOST = "its ResourceClaims were prepared, and are lost from the ledger"
CLAIM = ClaimName(namespace="default", name="c", uid="claim-1")


def consumers(**claims: str) -> Consumers:
    """Claims by the names of their pods; empty for a pod without any."""
    return {
        PodUid(f"uid-{pod}"): frozenset({f"default/{claim}"} if claim else ())
        for pod, claim in claims.items()
    }


def marks(machine: Machine) -> set[str]:
    return {path.name for path in (machine.directory / "run/claims").iterdir()}


def test_pod_whose_prepared_claims_were_lost_does_not_start(machine: Machine) -> None:
    async def begin(agent: Running) -> None:
        await agent.prepare(interface("a"))

    async def go_on(agent: Running) -> None:
        error = await refusal(agent.add())
        assert isinstance(error, LedgerError)
        assert LOST in error.message
        await agent.add("c2", "q", asks({}))

    scenario(machine, begin)
    (machine.directory / "state/ledger.db").unlink()
    scenario(machine, go_on)


def test_mark_of_lost_claims_stays_until_its_pod_is_gone(machine: Machine) -> None:
    async def begin(agent: Running) -> None:
        await agent.prepare(interface("a"))

    async def go_on(agent: Running) -> None:
        for known in (consumers(p="c"), consumers(p=""), consumers(p="", q="d")):
            agent.node.ledger_store.set_consumers(known)
            assert LOST in (await refusal(agent.add())).message
        agent.node.ledger_store.set_consumers({})
        assert not marks(machine)

    scenario(machine, begin)
    (machine.directory / "state/ledger.db").unlink()
    scenario(machine, go_on)


def test_empty_mark_outlasts_a_claim_that_its_pod_shared(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        await agent.prepare(interface("a"))
        (machine.directory / "run/claims/uid-q").write_bytes(encode_mark(ClaimMark()))
        agent.node.ledger_store.set_consumers(consumers(p="c", q="c"))
        await agent.unprepare()
        assert LOST in (await refusal(agent.add("c2", "q"))).message

    scenario(machine, play)


@pytest.mark.parametrize("named_first", [False, True], ids=["prepared-first", "named-first"])
def test_pod_that_names_the_claim_of_another_is_refused_until_it_is_prepared_for_it(
    machine: Machine, named_first: bool
) -> None:
    async def begin(agent: Running) -> None:
        if named_first:
            agent.node.ledger_store.set_consumers(consumers(p="c", q="c"))
        await agent.prepare(interface("a"))
        if not named_first:
            agent.node.ledger_store.set_consumers(consumers(p="c", q="c"))
        assert (await refusal(agent.add("c2", "q"))).message == SHARED
        await agent.add()

    async def go_on(agent: Running) -> None:
        assert (await refusal(agent.add("c2", "q"))).message == SHARED
        agent.node.ledger_store.set_consumers(consumers(p="c", q="c", r="c"))
        await agent.delete()
        await agent.unprepare()
        for pod in "qr":  # kubelet may have counted it among the claim's pods before it unprepared it
            assert (await refusal(agent.add("c2", pod))).message == NOBODYS
        await agent.prepare(interface("a"), pod_name="q")
        await agent.add("c2", "q")
        assert (await refusal(agent.add("c3", "r"))).message == SHARED
        agent.node.ledger_store.set_consumers(consumers(q="c"))
        assert marks(machine) == {"uid-q"}

    scenario(machine, begin)
    scenario(machine, go_on)


def test_further_pods_of_a_claim_are_refused_while_they_exist(machine: Machine) -> None:
    """Without a watch of the node's pods: the claim itself names them."""

    async def begin(agent: Running) -> None:
        document = of_pod(claim(interface("a")), "p")
        document["metadata"] = document["metadata"] | {"ownerReferences": [{"kind": "Pod", "uid": "uid-p"}]}
        reserved = document["status"]["reservedFor"]
        reserved += [{"resource": "pods", "name": "q", "uid": "uid-q"}]
        reserved += [{"resource": "podgroups", "apiGroup": "scheduling.k8s.io", "name": "g", "uid": "../g"}]
        await agent.claims.prepare(prepare(document, pod_of_claims("p")))
        assert marks(machine) == {"uid-p", "uid-q"}
        reserved += [{"resource": "pods", "name": "r", "uid": "uid-r"}]
        await agent.claims.prepare(prepare(document, pod_of_claims("p")))
        for pod in "qr":
            assert (await refusal(agent.add("c2", pod))).message == SHARED
        await agent.add()

    async def go_on(agent: Running) -> None:
        await agent.delete()
        await agent.unprepare()
        assert (await refusal(agent.add("c2", "q"))).message == NOBODYS
        await agent.prepare(interface("a"), pod_name="r")
        await agent.add("c3", "r")
        agent.node.ledger_store.set_consumers(consumers(r="c"))
        assert marks(machine) == {"uid-r"}
        await agent.delete("c3", "r")
        await agent.unprepare()
        assert not marks(machine)

    scenario(machine, begin)
    scenario(machine, go_on)


@pytest.mark.parametrize("uid", ["../../x", "", "A", "x" * 65])
def test_consumer_whose_uid_names_no_file_is_refused_by_its_field(machine: Machine, uid: str) -> None:
    async def play(agent: Running) -> None:
        document = of_pod(claim(interface("a")), "p")
        document["status"]["reservedFor"] += [{"resource": "pods", "name": "q", "uid": uid}]
        error = await refusal(agent.claims.prepare(prepare(document, pod_of_claims("p"))))
        assert "claim default/c: status.reservedFor[1].uid: " in error.message
        document["status"]["reservedFor"] *= 200
        error = await refusal(agent.claims.prepare(prepare(document, pod_of_claims("p"))))
        assert "status.reservedFor: has 400 entries; wanted 256 at most" in error.message
        assert not (machine.directory / "run/claims").exists()

    scenario(machine, play)


def test_pod_whose_claim_was_abandoned_is_refused_until_it_is_prepared_again(machine: Machine) -> None:
    async def begin(agent: Running) -> None:
        agent.node.ledger_store.set_consumers(consumers(p="c", q="c"))
        await agent.prepare(interface("a", bandwidth="60G"))
        await agent.prepare(interface("a"), uid="u2", name="d")
        await agent.claims.end_abandoned(CLAIM, PodUid("uid-p"))
        assert not agent.promised_mbps()

    async def go_on(agent: Running) -> None:
        for pod in "pq":  # kubelet may count the claim as prepared for either
            assert (await refusal(agent.add(name=pod))).message == NOBODYS
        await agent.prepare(interface("a"))
        await agent.add()
        await agent.delete()
        await agent.claims.end_abandoned(CLAIM, PodUid("uid-p"))
        await agent.unprepare("u2", "d")
        agent.node.ledger_store.set_consumers(consumers(p="", q="c"))
        assert (await refusal(agent.add())).message == NOBODYS
        agent.node.ledger_store.set_consumers({})
        assert not marks(machine)

    scenario(machine, begin)
    scenario(machine, go_on)


def test_marks_of_an_older_agent_refuse_and_this_agents_marks_refuse_with_an_older_one(
    machine: Machine,
) -> None:
    """An older agent compares the listed names with those of prepared claims."""

    async def play(agent: Running) -> None:
        await agent.prepare(interface("a"))
        mark = ClaimMark(shared=frozenset({"default/c"}))
        (machine.directory / "run/claims/uid-q").write_bytes(encode_mark(mark))
        assert (await refusal(agent.add("c2", "q"))).message == SHARED
        await agent.claims.end_abandoned(CLAIM, PodUid("uid-p"))
        found = agent.node.ledger_store._claim_markers.read(PodUid("uid-p"))
        assert found == ClaimMark(shared=frozenset({"default/c/claim-1"}))

    scenario(machine, play)


class ConsumersOnce(NoCluster):
    """A cluster whose pods never change."""

    async def wait_for_consumers(self, previous: Consumers | None) -> Consumers:
        return consumers(p="c", q="c") if previous is None else await super().wait_for_consumers(previous)


def test_guard_marks_sharing_pods_although_that_fails_at_first(machine: Machine) -> None:
    machine.cluster = ConsumersOnce()

    async def play(agent: Running) -> None:
        await agent.prepare(interface("a"))
        marked, aside = machine.directory / "run/claims", machine.directory / "aside"
        marked.rename(aside)
        marked.touch()
        with capture_logs() as logs:
            guarding = asyncio.create_task(agent.claims.guard())
            done, _ = await asyncio.wait([guarding], timeout=1.7)
        assert not done
        assert [entry["event"] for entry in logs] == ["sharing_pods_not_marked"]
        marked.unlink()
        aside.rename(marked)
        async with asyncio.timeout(120):
            while not (marked / "uid-q").exists():  # noqa: ASYNC110 - a file in memory
                await asyncio.sleep(0.01)
        guarding.cancel()
        assert (await refusal(agent.add("c2", "q"))).message == SHARED

    scenario(machine, play)


def test_pod_that_shares_a_claim_is_marked_while_another_pod_is_attached(machine: Machine) -> None:
    machine.cluster = ConsumersOnce()

    async def play(agent: Running) -> None:
        await agent.prepare(interface("a"))
        attached = threading.Event()
        attaching = asyncio.create_task(machine.worker.run(attached.wait, 20))
        guarding = asyncio.create_task(agent.claims.guard())
        try:
            async with asyncio.timeout(5):
                while "uid-q" not in marks(machine):  # noqa: ASYNC110 - a file in memory
                    await asyncio.sleep(0.01)
            assert not attaching.done()
        finally:
            attached.set()
            guarding.cancel()
            await asyncio.gather(attaching, guarding, return_exceptions=True)

    scenario(machine, play)


def test_pod_that_shares_a_claim_has_interfaces_once_it_is_prepared_for_it(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        await agent.prepare(interface("a"))
        agent.node.ledger_store.set_consumers(consumers(p="c", q="c"))
        await agent.prepare(interface("a"), uid="u2", pod_name="q")
        await agent.add("c2", "q")

    scenario(machine, play)


def test_pod_waits_for_the_claim_of_one_that_the_api_server_has_no_more(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        document = of_pod(claim(interface("a")), "q")
        await agent.prepare(interface("a"))
        await agent.add()
        agent.node.ledger_store.set_consumers(consumers(p="c", q="c"))
        assert (await refusal(agent.add("c2", "q"))).message == SHARED
        agent.node.ledger_store.set_consumers(consumers(q="c"))
        waiting = asyncio.create_task(agent.add("c2", "q"))
        done, _ = await asyncio.wait([waiting], timeout=0.5)
        assert not done
        await agent.delete()
        await agent.claims.hand_over(prepare(document, pod_of_claims("q")), PodUid("uid-p"))
        async with asyncio.timeout(5):
            await waiting
        assert agent.vfs("c2")

    scenario(machine, play)


def test_pod_that_waits_for_a_claim_is_refused_when_its_caller_gives_up_or_it_is_unprepared(
    machine: Machine,
) -> None:
    async def play(agent: Running) -> None:
        await agent.prepare(interface("a"))
        agent.node.ledger_store.set_consumers(consumers(q="c"))
        adding = agent.add("c2", "q", still_waiting=lambda: False)
        assert (await refusal(adding)).message == SHARED
        waiting = asyncio.create_task(agent.add("c2", "q"))
        await asyncio.wait([waiting], timeout=0.3)
        await agent.unprepare()
        async with asyncio.timeout(5):
            assert (await refusal(waiting)).message == NOBODYS

    scenario(machine, play)


def test_pod_with_a_claim_of_its_own_is_refused_for_one_that_it_shares(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        await agent.prepare(interface("a"))
        await agent.prepare(interface("a"), uid="u2", name="d", pod_name="q")
        agent.node.ledger_store.set_consumers(
            {**consumers(p="c"), PodUid("uid-q"): frozenset({"default/c", "default/d"})}
        )
        assert (await refusal(agent.add("c2", "q"))).message == SHARED
        await agent.add()

    scenario(machine, play)


def test_markers_come_back_when_their_directory_was_removed(machine: Machine) -> None:
    async def scenario() -> None:
        with machine.running() as (_, verbs):
            netns = machine.hardware.create_namespace()
            await verbs.add(call("ADD"), netns, machine.stdin(asks({})))
            shutil.rmtree(machine.directory / "run" / "attachments")
            await verbs.reconcile()
            assert machine.markers() == {"c1"}
            await verbs.delete(call("DEL"), "net")
            assert not machine.markers()

    asyncio.run(scenario())


def test_error_names_the_exclusive_devices_when_the_marker_cannot_be_removed(tmp_path: Path) -> None:
    (tmp_path / EXCLUSIVE_DEVICES).mkdir()

    with pytest.raises(LedgerError, match=r"^marker of exclusive devices: .*/exclusive-devices: "):
        mark_exclusive_devices(tmp_path, present=False)
