"""ResourceClaims on a node: they stay prepared over sandboxes and restarts, and never exceed a PF."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from agent.machine import Machine, Verbs, asks, call
from cdi_documents import decode_specification
from factories import PF0
from k8s_rdma.agent.claim_offers import ClaimOffers
from k8s_rdma.agent.claims import POLL_S, ClaimCommands, ClaimsSocket
from k8s_rdma.agent.cluster.no_cluster import NoCluster
from k8s_rdma.agent.node import Node
from k8s_rdma.agent.sandbox import Sandbox
from k8s_rdma.agent.unix_sockets import listen_unix, serve_connections
from k8s_rdma.core.ledger import Attachment, Pod
from k8s_rdma.core.namespace_policy import NO_POLICIES
from k8s_rdma.core.pf_selection import PfRule
from k8s_rdma.core.placement import Rejection
from k8s_rdma.core.request import Request
from k8s_rdma.core.types import ContainerId, NodeName, PfUse, PodUid
from k8s_rdma.errors import K8sRdmaError, Reason
from k8s_rdma.wire.claims import (
    DRIVER,
    ClaimAnswer,
    ClaimName,
    ClaimQuestion,
    Prepare,
    decode_answer,
    decode_offers,
    encode_line,
)
from k8s_rdma.wire.resource_claim import decode_prepare
from resource_claims import claim, interface, of_pod, prepare
from resource_claims import pod as pod_of_claims

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

FOR_CLAIMS = PfRule(names=frozenset({"f0"}), use=PfUse.CLAIMS)
LINK = 100_000
HOSTILE_S = 1.5
"""Of processor time; 0.05 s measured."""


@dataclass(frozen=True, slots=True)
class Running:
    """A running agent."""

    machine: Machine
    node: Node
    verbs: Verbs
    claims: ClaimCommands

    async def prepare(
        self, *interfaces: dict[str, Any], pod_name: str = "p", **changes: Any
    ) -> tuple[str, ...]:
        """The CDI devices of a claim of this pod."""
        wait_s = changes.pop("wait_s", 0.0)
        document = of_pod(claim(*interfaces, **changes), pod_name)
        devices = await self.claims.prepare(prepare(document, wait_s=wait_s))
        return tuple(name for device in devices for name in device.cdi)

    async def unprepare(self, uid: str = "claim-1", name: str = "c") -> None:
        await self.claims.unprepare(ClaimName(namespace="default", name=name, uid=uid))

    async def add(
        self,
        container: str = "c1",
        name: str = "p",
        annotations: dict[str, str] | None = None,
        still_waiting: Callable[[], bool] = lambda: True,
    ) -> Any:
        netns = self.machine.sandboxes[self.machine.sandbox(container)]
        stdin = self.machine.stdin(annotations or {})
        await self.verbs.add(call("ADD", container, f"uid-{name}", name=name), netns, stdin, still_waiting)

    async def delete(self, container: str = "c1", name: str = "p") -> None:
        await self.verbs.delete(call("DEL", container, f"uid-{name}", name=name), "net")

    def vfs(self, container: str = "c1") -> list[tuple[str, int, str, int, int]]:
        """PF, VF, name and rates of a sandbox's interfaces."""
        [receipt] = self.node.ledger.of_container(container)
        return [
            (held.vf.pf, held.vf.index, held.ifname, held.min_tx_rate_mbps, held.max_tx_rate_mbps)
            for held in receipt.interfaces
        ]

    def promised_mbps(self) -> int:
        claims = self.node.ledger.claims.values()
        return sum(kept.placed.min_tx_rate_mbps for claim in claims for kept in claim.interfaces)

    def cdi_files(self) -> set[str]:
        return {path.name for path in (self.machine.directory / "host/var/run/cdi").glob("*")}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """`f0` is for claims, `f1` for annotations, both with 4 VFs and a link of 100 Gb/s."""
    made = Machine(tmp_path, rdma=True)
    made.rules = (FOR_CLAIMS, PfRule())
    return made


@contextmanager
def running(machine: Machine, **changes: Any) -> Iterator[Running]:
    with machine.running(**changes) as (node, verbs):
        assert machine.claim_commands is not None
        yield Running(machine, node, verbs, machine.claim_commands)


def scenario(machine: Machine, play: Callable[[Running], Awaitable[None]], **changes: Any) -> None:
    with running(machine, **changes) as agent:
        asyncio.run(_play(play, agent))


async def _play(play: Callable[[Running], Awaitable[None]], agent: Running) -> None:
    await play(agent)


async def refusal(attempt: Awaitable[object]) -> K8sRdmaError:
    with pytest.raises(K8sRdmaError) as raised:
        await attempt
    return raised.value


def test_prepared_claim_is_recorded_and_described_without_other_changes(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        names = await agent.prepare(interface("a", bandwidth="25G"), interface("b", bandwidth="5G"))
        assert names == ("k8s-rdma.io/claim=claim-1.a", "k8s-rdma.io/claim=claim-1.b")
        assert machine.is_pristine()
        assert (machine.directory / "run/claims/uid-p").exists()
        path = machine.directory / "host/var/run/cdi/k8s-rdma.io-claim_claim-1.json"
        kind, devices = decode_specification(path.read_bytes())
        assert (kind, [device.name for device in devices]) == (
            "k8s-rdma.io/claim",
            ["claim-1.a", "claim-1.b"],
        )
        prepared = agent.node.ledger.prepared_for(PodUid("uid-p"))
        assert [device.container_edits.env for device in devices] == [
            (f"K8S_RDMA_CLAIM_NET_C_{name}={kept.pci}",) for name, kept in zip("AB", prepared, strict=True)
        ]
        assert all(device.container_edits.device_nodes for device in devices)

    scenario(machine, play)


def test_new_sandbox_gets_the_same_vfs_until_the_claim_is_unprepared(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        await agent.prepare(interface("a", bandwidth="60G"))
        await agent.add("c1")
        first = agent.vfs("c1")
        await agent.delete("c1")
        assert agent.promised_mbps() == 60_000
        other = await refusal(
            agent.prepare(interface("a", bandwidth="60G"), uid="u2", name="d", pod_name="q")
        )
        assert other.reason is Reason.INSUFFICIENT
        await agent.add("c2")
        assert agent.vfs("c2") == first
        await agent.delete("c2")
        await agent.unprepare()
        assert not agent.node.ledger.claims
        assert not agent.cdi_files()
        assert not list((machine.directory / "run/claims").iterdir())
        await agent.prepare(interface("a", bandwidth="60G"), uid="u2", name="d", pod_name="q")

    scenario(machine, play)


def test_sum_of_prepared_claims_never_exceeds_the_link(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        await agent.prepare(interface("a", bandwidth="75G"))
        error = await refusal(
            agent.prepare(interface("a", bandwidth="30G"), uid="u2", name="d", pod_name="q")
        )
        assert "PF f0: the claim needs 30000 Mb/s; 25000 of 100000 are unreserved" in error.message
        assert "pod default/q" in error.message
        await agent.prepare(interface("a", bandwidth="25G"), uid="u3", name="e", pod_name="r")
        assert agent.promised_mbps() == LINK

    scenario(machine, play)


def test_claim_is_counted_once_while_its_pod_runs(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        await agent.prepare(interface("a", bandwidth="50G"))
        await agent.add()
        await agent.prepare(interface("a", bandwidth="50G"), uid="u2", name="d", pod_name="q")

    scenario(machine, play)


@pytest.mark.parametrize(
    ("entry", "reason", "why"),
    [
        (interface("a", bandwidth="101G"), Reason.EXCEEDS_CAPACITY, "needs 101000 Mb/s; its link has 100000"),
        (interface("a", "f1"), Reason.NO_SUCH_PF, "device f1 of request a is no PF of this node for claims"),
        (interface("a", mtu=65_000), Reason.DRIVER_REFUSES, "request a: PF f0: "),
    ],
)
def test_impossible_claim_is_refused_at_once(
    machine: Machine, entry: dict[str, Any], reason: Reason, why: str
) -> None:
    async def play(agent: Running) -> None:
        error = await refusal(agent.prepare(entry, wait_s=40.0))
        assert (error.reason, why in error.message) == (reason, True), error.message

    scenario(machine, play)


def test_claim_waits_for_one_that_is_ending(machine: Machine) -> None:
    """As after a deletion by force: the claim is free for the scheduler, and its pod still on the node."""

    async def play(agent: Running) -> None:
        await agent.prepare(interface("a", bandwidth="60G"))
        await agent.add()
        waiting = asyncio.create_task(
            agent.prepare(interface("a", bandwidth="60G"), uid="u2", name="d", pod_name="q", wait_s=40.0)
        )
        done, _ = await asyncio.wait([waiting], timeout=0.2)
        assert not done
        await agent.delete()
        await agent.unprepare()
        await waiting
        assert agent.promised_mbps() == 60_000

    scenario(machine, play)


class Pods(NoCluster):
    """A cluster of these pods, to which one may be added or taken away."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = set(names)

    def lasting_pods(self) -> set[PodUid]:
        return {PodUid(f"uid-{name}") for name in self.names}


@pytest.mark.parametrize("attached", [False, True])
def test_claim_is_refused_at_once_if_no_pod_ends(machine: Machine, attached: bool) -> None:
    machine.cluster = Pods("p", "q", "r")

    async def play(agent: Running) -> None:
        await agent.prepare(interface("a", bandwidth="60G"))
        if attached:
            await agent.add()
        async with asyncio.timeout(POLL_S / 2):
            error = await refusal(
                agent.prepare(interface("a", bandwidth="60G"), uid="u2", name="d", pod_name="q", wait_s=40.0)
            )
        assert "the claim needs 60000 Mb/s; 40000 of 100000 are unreserved" in error.message

    scenario(machine, play)


@pytest.mark.parametrize("unknown", ["p", "q"])
def test_claim_waits_until_it_is_known_that_no_pod_ends(machine: Machine, unknown: str) -> None:
    """A holder that the watch has no more may end; and it is as old as that if it has not the new pod yet."""
    machine.cluster = cluster = Pods(*{"p", "q"} - {unknown})

    async def play(agent: Running) -> None:
        await agent.prepare(interface("a", bandwidth="60G"))
        waiting = asyncio.create_task(
            agent.prepare(interface("a", bandwidth="60G"), uid="u2", name="d", pod_name="q", wait_s=40.0)
        )
        done, _ = await asyncio.wait([waiting], timeout=2 * POLL_S)
        assert not done
        cluster.names.add(unknown)
        async with asyncio.timeout(120):
            assert (await refusal(waiting)).reason is Reason.INSUFFICIENT

    scenario(machine, play)


def test_claim_waits_for_its_mac_until_the_pod_that_has_it_ends(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        await agent.prepare(interface("a", mac="02:00:00:00:00:77"))
        successor = interface("a", mac="02:00:00:00:00:77")
        again = {"uid": "u2", "name": "d", "pod_name": "q"}
        error = await refusal(agent.prepare(successor, **again, wait_s=0.05))
        assert "asks for MAC 02:00:00:00:00:77, which request a of claim default/c has" in error.message
        await agent.add()
        waiting = asyncio.create_task(agent.prepare(successor, **again, wait_s=40.0))
        done, _ = await asyncio.wait([waiting], timeout=0.2)
        assert not done
        await agent.delete()
        await agent.unprepare()
        await waiting
        await agent.add("c2", "q")

    scenario(machine, play)


def test_claim_is_refused_with_numbers_when_it_has_waited_in_vain(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        await agent.prepare(*(interface(name) for name in "abcd"))
        error = await refusal(agent.prepare(interface("a"), uid="u2", name="d", pod_name="q", wait_s=0.05))
        assert "PF f0: none of its 4 VFs for claims is free for request a" in error.message

    scenario(machine, play)


def test_claim_prepared_again_has_the_same_answer_and_another_content_is_refused(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        first = await agent.prepare(interface("a", bandwidth="60G"))
        await agent.add()
        assert await agent.prepare(interface("a", bandwidth="60G")) == first
        assert agent.promised_mbps() == 60_000
        error = await refusal(agent.prepare(interface("a", bandwidth="61G")))
        assert "was prepared with another allocation" in error.message

    scenario(machine, play)


def test_prepared_claims_outlast_the_agent(machine: Machine) -> None:
    async def begin(agent: Running) -> None:
        await agent.prepare(interface("a", bandwidth="60G"))

    async def go_on(agent: Running) -> None:
        await agent.add()
        assert agent.vfs() == [(PF0, 0, "eth0", 60_000, 0)]
        await agent.unprepare()
        assert machine.is_pristine()
        assert not agent.node.ledger.receipts

    scenario(machine, begin)
    scenario(machine, go_on)


def test_after_a_reboot_a_claim_prepared_again_has_its_vfs(machine: Machine) -> None:
    async def begin(agent: Running) -> None:
        await agent.prepare(interface("a", bandwidth="60G"))
        await agent.add()

    async def go_on(agent: Running) -> None:
        await agent.verbs.reconcile()
        await agent.prepare(interface("a", bandwidth="60G"))
        await agent.add("c2")
        assert agent.vfs("c2") == [(PF0, 0, "eth0", 60_000, 0)]

    scenario(machine, begin)
    machine.boot()
    (machine.directory / "run/claims/uid-p").unlink()
    scenario(machine, go_on, boot_id="boot-2")


def test_vfs_of_claims_are_not_given_to_annotations(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        error = await refusal(agent.add(annotations=asks(*[{}] * 5)))
        assert error.reason in {Reason.INSUFFICIENT, Reason.EXCEEDS_CAPACITY}

    scenario(machine, play)


def test_unprepare_ends_remaining_attachments_of_the_pod(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        await agent.prepare(interface("a"))
        await agent.add()
        await agent.unprepare()
        assert machine.is_pristine()
        assert not agent.node.ledger.receipts
        await agent.unprepare()

    scenario(machine, play)


def test_use_of_a_pf_changes_once_its_vfs_are_free(machine: Machine) -> None:
    async def begin(agent: Running) -> None:
        await agent.add("c1", "x", asks({}))
        await agent.prepare(interface("a", "f0"))

    async def go_on(agent: Running) -> None:
        waiting = [why.partition(":")[0] for why in agent.node.hardware.problems]
        assert waiting == ["PF f0", "PF f1"]
        error = await refusal(agent.prepare(interface("a", "f1"), uid="u2", name="d", pod_name="q"))
        assert error.reason is Reason.NO_SUCH_PF
        offered = decode_offers(await ClaimOffers(agent.node).publisher.wait_for_change(None))
        assert not offered.pfs
        await agent.unprepare()
        await agent.delete("c1", "x")
        agent.node.refresh()
        await agent.prepare(interface("a", "f1"), uid="u2", name="d", pod_name="q")

    scenario(machine, begin)
    machine.rules = (PfRule(names=frozenset({"f1"}), use=PfUse.CLAIMS), PfRule())
    scenario(machine, go_on)


def test_waiting_claim_that_is_unprepared_or_given_up_gets_no_vf(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        await agent.prepare(interface("a", bandwidth="60G"))
        second = of_pod(claim(interface("a", bandwidth="60G"), uid="u2", name="d"), "q")
        third = of_pod(claim(interface("a", bandwidth="60G"), uid="u3", name="e"), "r")
        gone: list[bool] = []
        waiting = asyncio.create_task(agent.claims.prepare(prepare(second, wait_s=40.0)))
        given_up = asyncio.create_task(agent.claims.prepare(prepare(third, wait_s=40.0), lambda: not gone))
        done, _ = await asyncio.wait([waiting, given_up], timeout=0.2)
        assert not done
        await agent.unprepare("u2", "d")
        assert "kubelet does not wait for it any more" in (await refusal(waiting)).message
        gone.append(True)
        assert "kubelet does not wait for it any more" in (await refusal(given_up)).message
        await agent.unprepare()
        assert not agent.node.ledger.claims
        assert not agent.cdi_files()

    scenario(machine, play)


def test_unprepare_ends_a_preparation_that_has_begun(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        document = of_pod(claim(interface("a")), "p")
        preparing = asyncio.create_task(agent.claims.prepare(prepare(document)))
        await asyncio.sleep(0)
        await agent.unprepare()
        await asyncio.gather(preparing, return_exceptions=True)
        assert not agent.node.ledger.claims
        assert not agent.cdi_files()

    scenario(machine, play)


@pytest.mark.parametrize("lasting", [(), ("p",)])
@pytest.mark.parametrize("turns", range(1, 12, 2))
def test_claim_prepared_while_it_is_unprepared_is_prepared_anew(
    machine: Machine, turns: int, lasting: tuple[str, ...]
) -> None:
    """Whatever kubelet is answered holds: without a prepared claim its pod would start without interfaces."""
    machine.cluster = Pods(*lasting)

    async def play(agent: Running) -> None:
        await agent.prepare(interface("a", bandwidth="60G"))
        await agent.add()
        ending = asyncio.create_task(agent.unprepare())
        for _ in range(turns):
            await machine.worker.run(lambda: None)
        devices = await agent.prepare(interface("a", bandwidth="60G"), wait_s=5.0)
        await ending
        assert len(devices) == len(agent.node.ledger.claims) == len(agent.cdi_files()) == 1
        await agent.add("c2")
        assert agent.vfs("c2") == [(PF0, 0, "eth0", 60_000, 0)]

    scenario(machine, play)


def test_add_whose_claim_is_unprepared_meanwhile_is_refused(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        await agent.prepare(interface("a", bandwidth="80G"))
        prepared = agent.node.ledger_store.prepared_for(PodUid("uid-p"))
        await agent.unprepare()
        await agent.prepare(interface("a", bandwidth="80G"), uid="u2", name="d", pod_name="q")
        attachment = Attachment("net", ContainerId("c1"), "eth0")
        sandbox = Sandbox(
            attachment=attachment,
            pod=Pod(namespace="default", name="p", uid=PodUid("uid-p")),
            netns=machine.sandboxes[machine.sandbox("c1")],
            ifnames=("rdma0",),
            entries=(0,),
            claimed=dict(enumerate(prepared)),
        )
        request = Request(tuple(entry.placed.as_request() for entry in prepared))
        found = agent.node.prepare(sandbox, request, None)
        assert isinstance(found, Rejection)
        assert found.message == "its ResourceClaim was unprepared meanwhile"

    scenario(machine, play)


def test_prepared_claim_stands_whatever_policies_and_further_pods_come(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        document = of_pod(claim(interface("a", vlan=7)), "p")
        of_another_driver = {"request": "gpu", "driver": "gpu.example", "pool": "w1", "device": "g0"}
        document["status"]["allocation"]["devices"]["results"].insert(0, of_another_driver)
        first = await agent.claims.prepare(prepare(document))
        machine.policies = NO_POLICIES
        document["status"]["reservedFor"].insert(0, {"resource": "pods", "name": "q", "uid": "uid-q"})
        assert await agent.claims.prepare(prepare(document, pod_of_claims("q"))) == first
        other = of_pod(claim(interface("a", vlan=7), uid="u2", name="d"), "q")
        assert (await refusal(agent.claims.prepare(prepare(other)))).reason is Reason.NOT_ALLOWED

    scenario(machine, play)


def test_prepared_claim_stands_although_its_cap_is_below_its_consumed_capacity(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        document = claim(interface("a", bandwidth="0", consumed="1G", maxTxRate="400M"))
        answer = await agent.claims.prepare(prepare(document))
        assert agent.promised_mbps() == 400
        document["status"]["reservedFor"] += [{"resource": "pods", "name": "q", "uid": "uid-q"}]
        assert await agent.claims.prepare(prepare(document, pod_of_claims("p"))) == answer

    scenario(machine, play)


def test_claims_that_wait_do_not_scan_the_hardware_again_and_again(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        await agent.prepare(interface("a", bandwidth="60G"))
        before = agent.node.scanner.scans.total
        await refusal(
            agent.prepare(interface("a", bandwidth="60G"), uid="u2", name="d", pod_name="q", wait_s=1.2)
        )
        assert agent.node.scanner.scans.total <= before + 1

    scenario(machine, play)


@asynccontextmanager
async def served(agent: Running, commands: ClaimCommands | None = None) -> AsyncIterator[Path]:
    """Serve `claims.sock`; its path."""
    path = agent.machine.directory / "claims.sock"
    claims_socket = ClaimsSocket(commands or agent.claims, ClaimOffers(agent.node).publisher)
    with listen_unix(path, 0o600) as listener:
        serving = asyncio.create_task(serve_connections(listener, claims_socket.talk, limit=8))
        yield path
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


def test_fault_of_the_agent_is_an_answer(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        async with served(agent, Faulty(agent.node, machine.worker, *[None] * 3)) as path:
            for _ in range(2):
                answer = await ask(path, ClaimQuestion(prepare=prepare(claim(interface("a")))))
                assert (answer.reason, "the agent has a fault" in answer.error) == ("internal", True)

    scenario(machine, play)


class Faulty(ClaimCommands):
    """Claims that cause an unforeseen error."""

    async def prepare(self, question: Prepare, *waiting: object) -> Any:
        raise OverflowError


async def ask(path: Path, question: ClaimQuestion | bytes) -> ClaimAnswer:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(question if isinstance(question, bytes) else encode_line(question))
    answer = decode_answer(await reader.readline())
    writer.close()
    return answer


def test_socket_answers_each_question_and_follows(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        async with served(agent) as path:
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(encode_line(ClaimQuestion(follow=True)))
            assert not decode_offers(await reader.readline()).claims
            question: Prepare = prepare(claim(interface("a")))
            prepared = await ask(path, ClaimQuestion(prepare=question))
            assert [device.request for device in prepared.devices] == ["a"], prepared
            assert decode_offers(await reader.readline()).claims
            refused = await ask(path, ClaimQuestion(prepare=prepare(claim(interface("a", "f9"), uid="u2"))))
            assert (refused.reason, "device f9" in refused.error) == ("no_such_pf", True)
            unprepare = ClaimQuestion(unprepare=question.claim)
            assert await ask(path, unprepare) == ClaimAnswer()
            assert not decode_offers(await reader.readline()).claims
            for garbage in (
                b"\n",
                b"{}\n",
                b'{"follow": true, "abandoned_by": "p"}\n',
                b'{"follow": true, "unprepare": {}}\n',
                b"\xff\n",
            ):
                assert (await ask(path, garbage)).reason == "malformed_request"
            writer.close()

    scenario(machine, play)


def test_hostile_claims_are_refused_and_hold_up_no_others(machine: Machine) -> None:
    nested = {"driver": DRIVER, "parameters": msgspec.Raw(b"[" * 50_000 + b"]" * 50_000)}
    many = claim(*(interface(f"r{index}", vlan=7) for index in range(5_000)), uid="u1")
    deep = claim(interface(vlan=7), uid="u2")
    deep["status"]["allocation"]["devices"]["config"] = [{"opaque": nested}]
    path_as_uid = of_pod(claim(interface(), uid="u3"), "p")
    path_as_uid["status"]["reservedFor"][0]["uid"] = "../../../etc/passwd"
    long_share = claim(interface(), uid="u4")
    long_share["status"]["allocation"]["devices"]["results"][0]["shareID"] = "x" * 1_000
    hostile = many, deep, path_as_uid, long_share

    async def play(agent: Running) -> None:
        async with served(agent) as path:
            began_s = time.process_time()
            questions = [prepare(document, pod_of_claims()) for document in hostile]
            first = prepare(claim(interface("a", bandwidth="60G"), uid="u5"))
            second = prepare(of_pod(claim(interface("a", bandwidth="40G"), uid="u6", name="d"), "q"))
            asked = [ask(path, ClaimQuestion(prepare=each)) for each in (*questions, first, second)]
            *refused, of_first, of_second = await asyncio.gather(*asked)
            assert time.process_time() - began_s < HOSTILE_S
            assert {answer.reason for answer in refused} == {Reason.MALFORMED_REQUEST}
            fields = "devices.results", "nested deeper than 64 levels", "status.reservedFor[0].uid", "shareID"
            assert all(field in answer.error for field, answer in zip(fields, refused, strict=True))
            assert [device.device for each in (of_first, of_second) for device in each.devices] == ["f0"] * 2
            third = of_pod(claim(interface("a", bandwidth="1M"), uid="u7", name="e"), "r")
            assert "0 of 100000" in (await ask(path, ClaimQuestion(prepare=prepare(third)))).error
            assert {mark.name for mark in (machine.directory / "run/claims").iterdir()} == {"uid-p", "uid-q"}

    scenario(machine, play)


def test_claim_whose_requests_name_no_cdi_devices_gets_no_vf_and_ends_no_agent(
    machine: Machine,
) -> None:
    no_name = claim(interface("a-"), uid="u1")
    one_name_twice = claim(interface("a"), interface("a"), interface("a/1"), uid="u2")
    one_name_twice["spec"]["devices"]["requests"][-1] = {"name": "a", "firstAvailable": [{"name": "1"}]}

    async def play(agent: Running) -> None:
        for document in (no_name, one_name_twice):
            refused = await refusal(agent.claims.prepare(prepare(document)))
            assert (refused.reason, agent.node.ledger.claims) == (Reason.MALFORMED_REQUEST, {})
            await machine.specifications.restore()

    scenario(machine, play)


def test_claim_in_the_ledger_that_no_specification_can_hold_ends_no_agent(machine: Machine) -> None:
    """As an agent made it that did not refuse the claim."""

    async def play(agent: Running) -> None:
        allocated, _ = decode_prepare(prepare(claim(interface("a"))), NodeName("w1"))
        [named] = allocated.interfaces
        agent.node.prepare_claim(replace(allocated, interfaces=(replace(named, request="a-"),)))
        await machine.specifications.restore()
        assert "devices[0].name" in (await refusal(agent.add("c1"))).message
        assert agent.node.ledger.receipts == {}

    scenario(machine, play)
