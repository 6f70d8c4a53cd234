"""Caps of interfaces by ResourceClaim: as the pod's annotation says, or refused with the reason."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from agent.machine import Machine, call
from agent.pods import PlacingCluster
from factories import PF1
from k8s_rdma.agent.claim_offers import ClaimOffers
from k8s_rdma.agent.cni.node_access import NodeAccess
from k8s_rdma.agent.live_rates import FIRST_RETRY_S, LAST_RETRY_S, ClaimCaps, LiveRates
from k8s_rdma.agent.node import Node
from k8s_rdma.core.namespace_policy import NO_POLICIES, NamespacePolicies, NamespacePolicy
from k8s_rdma.core.pf_selection import PfRule
from k8s_rdma.core.rate_ability import RateAbility, RateRange
from k8s_rdma.core.types import Enforce, PfUse, PodUid
from k8s_rdma.wire.claim_caps import CapsRequest
from k8s_rdma.wire.rates_status import RatesStatus, decode_rates_status, digest, encode_rates_status
from resource_claims import claim, interface, of_pod, prepare

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


P = PodUid("uid-p")


@dataclass
class Capped:
    """A node with a pod of two interfaces by claim: data (rdma0) and sync."""

    machine: Machine
    node: Node
    cluster: PlacingCluster
    policies: NamespacePolicies = NO_POLICIES
    now: float = 0.0

    def __post_init__(self) -> None:
        access = NodeAccess(
            node=self.node, worker=self.machine.worker, device_specs=self.machine.specifications.devices
        )
        self.access = access
        self.caps = ClaimCaps(access, self.cluster, lambda: self.policies, now=lambda: self.now)

    async def want(self, text: str, status: str = "") -> float | None:
        """Have the pod's annotation say so."""
        return await self.caps.change_all({P: CapsRequest(text, status)})

    def programmed(self) -> list[tuple[int, int]]:
        """Reservation and cap of the VFs, as the machine has them."""
        functions = self.machine.hardware.functions
        [receipt] = self.node.ledger.of_pod(P)
        assert receipt.change is None
        return [
            (functions[each.vf].min_tx_rate_mbps, functions[each.vf].max_tx_rate_mbps)
            for each in receipt.interfaces
        ]

    def told(self) -> list[RatesStatus]:
        """The statuses written to the pod."""
        return [decode_rates_status(text) for _, text in self.cluster.decided]


BASE = [(60_000, 70_000), (10_000, 0)]


def run(machine: Machine, scene: Callable[[Capped], Awaitable[None]]) -> None:
    machine.rules = (PfRule(names=frozenset({"f1"}), use=PfUse.CLAIMS), PfRule())
    machine.cluster = cluster = PlacingCluster()

    async def main() -> None:
        with machine.running() as (node, verbs):
            wanted = (
                interface("a", "f1", bandwidth="60G", maxTxRate="70G", name="rdma0"),
                interface("b", "f1", bandwidth="10G", name="sync"),
            )
            document = of_pod(claim(*wanted, uid="claim-p", name="uid-p"), "p")
            await machine.claim_commands.prepare(prepare(document))
            netns = machine.hardware.create_namespace()
            await verbs.add(call("ADD", uid=P, name=P), netns, machine.stdin({}))
            capped = Capped(machine, node, cluster)
            assert capped.programmed() == BASE
            await scene(capped)

    asyncio.run(main())


def test_cap_changes_and_comes_back_with_the_end_of_its_annotation(machine: Machine) -> None:
    async def scene(it: Capped) -> None:
        text = '{"rdma0": 80000, "sync": 20000}'
        await it.want(text)
        assert it.programmed() == [(60_000, 80_000), (10_000, 20_000)]
        assert it.told() == [RatesStatus(state="programmed", request=digest(text))]
        it.now = FIRST_RETRY_S
        await it.want('{"sync": 0}')
        assert it.programmed() == BASE
        it.now = 2 * FIRST_RETRY_S
        await it.want("", it.cluster.decided[-1][1])
        assert it.programmed() == BASE
        assert it.told()[-1] == RatesStatus(state="programmed", request=digest(""))
        assert [refused for _, refused in it.cluster.rates] == [False, False]
        assert it.cluster.rates[0][0].endswith("rdma0: max 80000 Mb/s; sync: max 20000 Mb/s")

    run(machine, scene)


def test_cap_of_the_class_holds_while_the_pod_runs_and_after_a_restart(machine: Machine) -> None:
    async def scene(it: Capped) -> None:
        store = it.node.ledger_store
        [claim] = it.node.ledger.claims.values()
        limited = tuple(replace(entry, class_cap_mbps=75_000) for entry in claim.interfaces)
        store.prepare_claim(replace(claim, interfaces=limited))
        for cap in (0, 80_000):
            await it.want(f'{{"rdma0": {cap}}}')
            assert it.programmed() == BASE
            assert "is beyond the cap of the DeviceClass, 75000 Mb/s" in it.told()[-1].message
            it.now += FIRST_RETRY_S
        await it.want('{"rdma0": 75000}')
        assert it.programmed() == [(60_000, 75_000), (10_000, 0)]

    run(machine, scene)
    with machine.running() as (node, _):
        [claim] = node.ledger.claims.values()
        assert [entry.class_cap_mbps for entry in claim.interfaces] == [75_000, 75_000]


def test_owner_that_edits_without_end_takes_a_turn_of_the_worker_a_second(machine: Machine) -> None:
    """The worker serves all pods of the node, and each change is synced to the disk."""

    async def scene(it: Capped) -> None:
        applied = len(machine.kernel.applied)
        for cap in range(80_000, 80_050):
            await it.caps.change_all({P: CapsRequest(f'{{"rdma0": {cap}}}')})
            it.now += FIRST_RETRY_S / 10
        assert len(machine.kernel.applied) - applied == 5
        it.now += FIRST_RETRY_S
        await it.caps.change_all({P: CapsRequest('{"rdma0": 90000}')})
        assert it.programmed() == [(60_000, 90_000), (10_000, 0)]

    run(machine, scene)


def test_claim_of_the_pod_shows_the_cap_in_force(machine: Machine) -> None:
    async def scene(it: Capped) -> None:
        await it.want('{"rdma0": 80000}')
        offers = json.loads(await ClaimOffers(it.node).publisher.wait_for_change(None))
        [prepared] = offers["claims"]
        assert [each.get("max_tx_rate", 0) for each in prepared["interfaces"]] == [80_000, 0]
        [claim] = it.node.ledger.claims.values()
        assert [each.placed.max_tx_rate_mbps for each in claim.interfaces] == [70_000, 0]

    run(machine, scene)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"rdma0": 50000}', "below the 60000 Mb/s that its ResourceClaim reserves"),
        ('{"rdma0": 100001}', "beyond the link of PF f1, 100000 Mb/s"),
        (
            '{"rdma0": 80000, "eth9": 5}',
            "eth9: the pod has no such interface by ResourceClaim; it has rdma0, sync",
        ),
        ('{"rdma0": -1}', "k8s-rdma.io/claim-caps: "),
        ('{"rdma0": "80G"}', "k8s-rdma.io/claim-caps: "),
        ('{"rdma0": 1e400}', "k8s-rdma.io/claim-caps: "),
        ("[80000]", "k8s-rdma.io/claim-caps: "),
        ("{" * 100_000, ", at most 65536 are read"),
    ],
)
def test_impossible_cap_is_refused_with_the_reason_and_without_effect(
    machine: Machine, text: str, why: str
) -> None:
    async def scene(it: Capped) -> None:
        assert await it.want(text) == LAST_RETRY_S
        assert it.programmed() == BASE
        [status] = it.told()
        assert (status.state, status.request) == ("refused", digest(text))
        assert why in status.message
        [problem] = it.caps.problems()
        assert problem.startswith("pod default/uid-p: the caps of its annotation are not programmed: ")
        assert [refused for _, refused in it.cluster.rates] == [True]
        it.now = FIRST_RETRY_S
        await it.want('{"rdma0": 80000}')
        assert it.caps.problems() == ()

    run(machine, scene)


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (NamespacePolicy(name="still", namespaces=("*",), live_rates=False), "liveRates"),
        (NamespacePolicy(name="slow", namespaces=("*",), max_cap_mbps=75_000), "caps of at most 75000 Mb/s"),
    ],
)
def test_namespace_policy_forbids_a_change(machine: Machine, policy: NamespacePolicy, why: str) -> None:
    async def scene(it: Capped) -> None:
        it.policies = NamespacePolicies((policy,))
        await it.want('{"rdma0": 80000}')
        assert it.programmed() == BASE
        assert why in it.told()[-1].message
        it.policies, it.now = NO_POLICIES, FIRST_RETRY_S
        await it.want('{"rdma0": 80000}')
        assert it.programmed()[0] == (60_000, 80_000)
        it.policies, it.now = NamespacePolicies((policy,)), 2 * FIRST_RETRY_S
        await it.want('{"rdma0": 80000}')
        assert it.caps.problems() == ()

    run(machine, scene)


def test_driver_that_takes_no_such_cap_refuses_it_if_hardware_must_keep_it(machine: Machine) -> None:
    async def scene(it: Capped) -> None:
        rates = RateAbility(min=RateRange(), max=None)
        machine.hardware.pfs[PF1] = replace(machine.hardware.pfs[PF1], rates=rates, enforce=Enforce.HARDWARE)
        it.node.refresh()
        await it.want('{"rdma0": 80000}')
        assert "PF f1: " in it.told()[-1].message
        assert it.programmed() == BASE

    run(machine, scene)


def test_failed_step_leaves_the_caps_before_and_is_tried_again(machine: Machine) -> None:
    async def scene(it: Capped) -> None:
        machine.kernel.fail(after_changes=1)
        assert await it.want('{"rdma0": 80000, "sync": 20000}') == LAST_RETRY_S
        assert it.programmed() == BASE
        assert "made to fail" in it.told()[-1].message
        assert await it.want('{"rdma0": 80000, "sync": 20000}') == LAST_RETRY_S
        it.now = LAST_RETRY_S
        await it.want('{"rdma0": 80000, "sync": 20000}')
        assert it.programmed() == [(60_000, 80_000), (10_000, 20_000)]

    run(machine, scene)


def test_change_that_cannot_be_undone_either_is_undone_later_and_made_anew(machine: Machine) -> None:
    async def scene(it: Capped) -> None:
        machine.kernel.fail(after_changes=1, times=2)
        await it.want('{"rdma0": 80000, "sync": 20000}')
        [receipt] = it.node.ledger.of_pod(P)
        assert receipt.change is not None
        await LiveRates(it.access, it.cluster).recover()
        assert it.programmed() == BASE
        it.now = LAST_RETRY_S
        await it.want('{"rdma0": 80000, "sync": 20000}')
        assert it.programmed() == [(60_000, 80_000), (10_000, 20_000)]

    run(machine, scene)


def test_no_caps_are_written_for_a_pod_that_has_those_of_its_claims(machine: Machine) -> None:
    async def scene(it: Capped) -> None:
        assert await it.want("") is None
        text = '{"rdma0": 70000}'
        status = encode_rates_status(RatesStatus(state="programmed", request=digest(text)))
        it.now = FIRST_RETRY_S
        assert await it.want(text, status) is None
        assert (it.told(), it.cluster.rates) == ([], [])

    run(machine, scene)


def test_pod_whose_call_is_under_way_waits(machine: Machine) -> None:
    async def scene(it: Capped) -> None:
        [receipt] = it.node.ledger.of_pod(P)
        async with it.access.locks.alone(receipt.attachment.container):
            assert await it.want('{"rdma0": 80000}') == FIRST_RETRY_S
            assert it.programmed() == BASE
        await it.want('{"rdma0": 80000}')
        assert it.programmed()[0] == (60_000, 80_000)

    run(machine, scene)
