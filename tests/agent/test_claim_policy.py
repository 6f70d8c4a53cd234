"""Limits of a pod hold over all its ways together: by annotation, and by each of its claims."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from agent.machine import Machine, asks
from agent.test_claims import Running, refusal, scenario
from factories import PF0
from k8s_rdma.config.faults import fit
from k8s_rdma.config.namespace_policies import PoliciesFile
from k8s_rdma.core.pf_selection import PfRule
from k8s_rdma.core.types import PfUse
from k8s_rdma.errors import K8sRdmaError, Reason
from resource_claims import claim, interface, of_pod, pod, prepare

if TYPE_CHECKING:
    from pathlib import Path

    from k8s_rdma.core.namespace_policy import NamespacePolicies


def policies(**policy: Any) -> NamespacePolicies:
    document = {"policies": [{"name": "strict", "namespaces": ["*"], **policy}]}
    return fit(PoliciesFile, document).to_core()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """`f0` is for claims, `f1` for annotations; a pod may have one interface."""
    made = Machine(tmp_path)
    made.rules = (PfRule(names=frozenset({"f0"}), use=PfUse.CLAIMS), PfRule())
    made.policies = policies(maxInterfaces=1)
    return made


def annotated(number: int, **annotations: str) -> dict[str, Any]:
    """The pod with so many interfaces by annotation."""
    document = pod("p", "uid-p", "c")
    document["metadata"]["annotations"] = asks(*({} for _ in range(number))) | annotations
    return document


async def prepared(agent: Running, uid: str, **changes: Any) -> object:
    """Prepare a claim of one interface of the pod p; return the error if it is refused."""
    try:
        return await agent.prepare(interface("a"), uid=uid, name=uid, **changes)
    except K8sRdmaError as error:
        return error


def test_claims_that_are_prepared_at_once_have_the_pods_limit_together(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        answers = await asyncio.gather(*(prepared(agent, f"u{index}") for index in range(4)))
        errors = [answer for answer in answers if isinstance(answer, K8sRdmaError)]
        assert len(errors) == 3
        assert {error.reason for error in errors} == {Reason.NOT_ALLOWED}
        assert {error.message for error in errors} == {
            "namespace default may not have 2 interfaces: policy strict allows at most 1 for a pod"
        }
        assert len(agent.node.ledger.claims) == 1

    scenario(machine, play)


def test_claim_and_annotation_have_the_pods_limit_together(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        document = of_pod(claim(interface("a")), "p")
        error = await refusal(agent.claims.prepare(prepare(document, annotated(1))))
        assert (error.reason, "2 interfaces" in error.message) == (Reason.NOT_ALLOWED, True)
        await agent.claims.prepare(prepare(document, annotated(0)))
        error = await refusal(agent.add(annotations=asks({})))
        assert (error.reason, "2 interfaces" in error.message) == (Reason.NOT_ALLOWED, True)
        await agent.add()
        assert [entry[0] for entry in agent.vfs()] == [PF0]

    scenario(machine, play)


def test_interfaces_that_a_pod_has_by_an_annotation_of_before_count(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        await agent.add(annotations=asks({}))
        document = of_pod(claim(interface("a")), "p")
        error = await refusal(agent.claims.prepare(prepare(document, annotated(0))))
        assert error.reason is Reason.NOT_ALLOWED

    scenario(machine, play)


def test_claim_of_a_pod_whose_annotation_is_malformed_is_refused_with_its_key(machine: Machine) -> None:
    async def play(agent: Running) -> None:
        broken = annotated(0, rdma_interfaces_required='[{"vlan": 4095}]')
        error = await refusal(agent.claims.prepare(prepare(of_pod(claim(interface("a")), "p"), broken)))
        assert "rdma_interfaces_required[0].vlan" in error.message

    scenario(machine, play)


def test_prepared_claim_stands_in_a_new_sandbox_after_its_policy_became_stricter(
    machine: Machine,
) -> None:
    machine.policies = policies(maxInterfaces=2)

    async def play(agent: Running) -> None:
        await agent.prepare(interface("a"), interface("b"))
        machine.policies = policies(maxInterfaces=1)
        await agent.add()
        assert len(agent.vfs()) == 2

    scenario(machine, play)


def test_claim_of_a_pod_that_would_lock_more_memory_than_it_may_is_refused(machine: Machine) -> None:
    """As a pod with an annotation is: an amount that is cut silently is not the amount asked for."""
    machine.policies = policies(maxMemlock="1Gi")

    async def play(agent: Running) -> None:
        greedy = annotated(0, **{"k8s-rdma.io/memlock": "2Gi"})
        error = await refusal(agent.claims.prepare(prepare(of_pod(claim(interface("a")), "p"), greedy)))
        assert (error.reason, "memlock" in error.message) == (Reason.NOT_ALLOWED, True)

    scenario(machine, play)
