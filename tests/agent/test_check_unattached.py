"""CHECK of a sandbox that has no attachment: refused if the pod is to have one, whichever way it asks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import structlog

from agent.machine import Machine, asks, call
from agent.pods import KnowingCluster
from agent.test_claims import FOR_CLAIMS, Running, scenario
from fakes.nodes import FakePodResources
from k8s_rdma.config.devices import ExclusiveResource, Selector
from k8s_rdma.core.pf_selection import PfRule
from k8s_rdma.errors import K8sRdmaError, Reason
from resource_claims import interface

if TYPE_CHECKING:
    from pathlib import Path

RDMA = "tencent.com/rdma"


def check(machine: Machine, annotations: dict[str, str] | None = None) -> K8sRdmaError | None:
    """Return the refusal, if there is one."""

    async def main() -> K8sRdmaError | None:
        with machine.running() as (_, verbs):
            try:
                await verbs.check(call("CHECK"), machine.stdin(annotations))
            except K8sRdmaError as error:
                return error
        return None

    return asyncio.run(main())


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path, rdma=True)


@pytest.fixture
def kubelet(machine: Machine) -> FakePodResources:
    machine.resources = (ExclusiveResource(name=RDMA, select=Selector(pfs=("f0#1-3",))),)
    machine.kubelet = kubelet = FakePodResources()
    return kubelet


def is_unknown(error: K8sRdmaError | None) -> bool:
    return error is not None and error.reason is Reason.UNKNOWN_CONTAINER


def test_check_succeeds_for_a_pod_without_requests(machine: Machine) -> None:
    assert check(machine, {}) is None


def test_check_is_refused_for_a_pod_that_asks_by_annotation(machine: Machine) -> None:
    assert is_unknown(check(machine, asks({"min_tx_rate": 1000})))


def test_check_is_refused_for_a_pod_whose_annotations_the_agent_reads_itself(machine: Machine) -> None:
    machine.cluster = KnowingCluster(asks({"min_tx_rate": 1000}))
    assert is_unknown(check(machine))


def test_check_is_refused_for_a_pod_that_holds_exclusive_devices(
    machine: Machine, kubelet: FakePodResources
) -> None:
    kubelet.allocate("default", "p", RDMA, "f0r2")
    assert is_unknown(check(machine, {}))


def test_check_succeeds_with_a_warning_while_kubelet_does_not_tell(
    machine: Machine, kubelet: FakePodResources
) -> None:
    kubelet.silent = True
    with structlog.testing.capture_logs() as logs:
        assert check(machine, {}) is None
    assert [line["event"] for line in logs] == ["check_incomplete"]


def test_check_is_refused_for_a_pod_with_a_prepared_claim_until_that_ends(machine: Machine) -> None:
    machine.rules = (FOR_CLAIMS, PfRule())

    async def play(agent: Running) -> None:
        await agent.prepare(interface("a", bandwidth="25G"))
        with pytest.raises(K8sRdmaError) as raised:
            await agent.verbs.check(call("CHECK"), machine.stdin({}))
        assert raised.value.reason is Reason.UNKNOWN_CONTAINER
        await agent.unprepare()
        await agent.verbs.check(call("CHECK"), machine.stdin({}))

    scenario(machine, play)


def test_check_succeeds_for_the_other_network_of_a_pod_whose_claim_is_attached(machine: Machine) -> None:
    machine.rules = (FOR_CLAIMS, PfRule())

    async def play(agent: Running) -> None:
        await agent.prepare(interface("a", bandwidth="25G"))
        await agent.add()
        await agent.verbs.check(call("CHECK"), machine.stdin({}))
        await agent.verbs.check(call("CHECK", ifname="net1"), machine.stdin({}, name="other"))

    scenario(machine, play)
