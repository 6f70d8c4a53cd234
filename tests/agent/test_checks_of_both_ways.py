"""Each check of a pod's requests by annotation has its counterpart for claims: docs/dra.md has the table.

A cell is a pod that the check refuses, by each way on its own, with the same reason.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from agent.machine import Machine
from agent.pods import requests
from agent.test_claim_policy import policies
from agent.test_claims import Running, refusal, running
from factories import PF0, PF1
from fakes.machine import FakePf
from k8s_rdma.core.pf_selection import PfRule
from k8s_rdma.core.types import PfUse, Setting
from k8s_rdma.errors import Reason
from resource_claims import claim, interface, of_pod, pod, prepare

DOCS = Path(__file__).parents[2] / "docs" / "dra.md"
MAC = "02:00:00:00:00:77"


@dataclass(frozen=True, kw_only=True)
class Check:
    """A request that a check refuses. annotation: interfaces by annotation. claimed: of a claim, likewise.

    reasons: by annotation at ADD, and by claim at its preparation. policy: of the namespace.
    """

    annotation: tuple[dict[str, Any], ...]
    claimed: tuple[dict[str, Any], ...]
    reasons: tuple[Reason, Reason]
    policy: dict[str, Any] = field(default_factory=lambda: {"allow": ["*"]})
    annotations: dict[str, str] = field(default_factory=dict)
    held: bool = False


def alike(reason: Reason, policy: dict[str, Any], annotation: dict[str, Any], **claimed: Any) -> Check:
    """A check of one interface, whose claim has the annotation's keys unless others are given."""
    return Check(
        annotation=(annotation,),
        claimed=(interface("a", **(claimed or annotation)),),
        reasons=(reason, reason),
        policy=policy,
    )


MALFORMED = Reason.MALFORMED_ANNOTATION, Reason.MALFORMED_ANNOTATION
CHECKS = {
    "unknown key": Check(annotation=({"vlam": 7},), claimed=(interface(vlam=7),), reasons=MALFORMED),
    "value beyond its range": Check(
        annotation=({"vlan": 4095},), claimed=(interface(vlan=4095),), reasons=MALFORMED
    ),
    "cap below the reservation": Check(
        annotation=({"min_tx_rate": 2000, "max_tx_rate": 1000},),
        claimed=(interface(bandwidth="2G", maxTxRate="1G"),),
        reasons=MALFORMED,
    ),
    "one address twice in a pod's request": Check(
        annotation=({"mac": MAC}, {"mac": MAC}),
        claimed=(interface("a", mac=MAC), interface("b", mac=MAC)),
        reasons=(Reason.MALFORMED_ANNOTATION, Reason.MALFORMED_REQUEST),
    ),
    "key that the namespace may not have": alike(Reason.NOT_ALLOWED, {}, {"vlan": 7}),
    "`vlans`, `macs`, `guids`, `networks`": alike(
        Reason.NOT_ALLOWED, {"allow": ["vlan"], "vlans": ["100-199"]}, {"vlan": 7}
    ),
    "`maxReservedMbps`": alike(
        Reason.NOT_ALLOWED, {"maxReservedMbps": 1000}, {"min_tx_rate": 2000}, bandwidth="2G"
    ),
    "`maxCapMbps`": alike(Reason.NOT_ALLOWED, {"maxCapMbps": 1000}, {"max_tx_rate": 0}, maxTxRate="0"),
    "`maxInterfaces`": Check(
        annotation=({}, {}),
        claimed=(interface("a"), interface("b")),
        reasons=(Reason.NOT_ALLOWED, Reason.NOT_ALLOWED),
        policy={"maxInterfaces": 1},
    ),
    "`maxMemlock`": Check(
        annotation=({},),
        claimed=(interface(),),
        reasons=(Reason.NOT_ALLOWED, Reason.NOT_ALLOWED),
        policy={"maxMemlock": "1Gi"},
        annotations={"k8s-rdma.io/memlock": "2Gi"},
    ),
    "`pfs`": Check(
        annotation=({},),
        claimed=(interface(),),
        reasons=(Reason.NO_SUCH_PF, Reason.DRIVER_REFUSES),
        policy={"pfs": {"name": "other"}},
    ),
    "setting that the PF does not take": alike(Reason.DRIVER_REFUSES, {"allow": ["*"]}, {"trust": True}),
    "more than the link": Check(
        annotation=({"min_tx_rate": 100_001},),
        claimed=(interface(bandwidth="101G"),),
        reasons=(Reason.EXCEEDS_CAPACITY, Reason.EXCEEDS_CAPACITY),
    ),
    "address of another pod of the node": Check(
        annotation=({"mac": MAC},),
        claimed=(interface(mac=MAC),),
        reasons=(Reason.CONFLICT, Reason.INSUFFICIENT),
        held=True,
    ),
}

ELSEWHERE = {
    "`hostNetwork`": (
        "extender.test_pod_requests:test_pod_in_its_nodes_network_is_refused_by_filter_and_by_bind",
        "wire.test_resource_claim:test_pod_has_to_be_the_one_on_this_node_with_a_network",
    ),
    "address of another pod or node": (
        "extender.test_scheduler_cache",
        "agent.test_held_addresses:test_address_of_a_claim_is_refused_to_claims_of_other_nodes_until_it_ends",
    ),
    "interfaces by both ways together": (
        "agent.test_claim_policy:test_claim_and_annotation_have_the_pods_limit_together",
        "agent.test_claim_policy:test_claims_that_are_prepared_at_once_have_the_pods_limit_together",
    ),
    "other rates of a running pod": (
        "extender.test_rate_changes",
        "agent.test_claim_caps:test_cap_of_the_class_holds_while_the_pod_runs_and_after_a_restart",
    ),
}
"""Checks that need more than one pod or node, or that no runtime asks for: the tests of their cells."""

NOT_OURS = {"limits of a namespace"}
"""Checks of claims that the API server makes."""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    settings = frozenset(Setting) - {Setting.TRUST}
    pfs = tuple(
        FakePf(name=name, pci=pci, vfs=4, settings=settings) for name, pci in (("f0", PF0), ("f1", PF1))
    )
    made = Machine(tmp_path, pfs=pfs)
    made.rules = (PfRule(names=frozenset({"f0"}), use=PfUse.CLAIMS), PfRule())
    return made


async def _hold(agent: Running) -> None:
    await agent.prepare(interface(mac=MAC), uid="other", name="other", pod_name="q")


@pytest.mark.parametrize("name", CHECKS)
def test_check_refuses_a_pod_by_annotation_and_by_claim(machine: Machine, name: str) -> None:
    check = CHECKS[name]
    machine.policies = policies(**check.policy)
    document = of_pod(claim(*check.claimed), "p")
    of = pod("p", "uid-p", "c")
    of["metadata"]["annotations"] = check.annotations

    async def play(agent: Running) -> None:
        if check.held:
            await _hold(agent)
        found = [
            await refusal(agent.add(annotations=requests(*check.annotation) | check.annotations)),
            await refusal(agent.claims.prepare(prepare(document, of))),
        ]
        assert tuple(error.reason for error in found) == check.reasons, found
        assert len(agent.node.ledger.claims) == check.held
        assert not agent.node.ledger.receipts

    with running(machine) as agent:
        asyncio.run(play(agent))
    assert machine.is_pristine()


def test_table_of_checks_names_each_with_its_tests() -> None:
    section = DOCS.read_text().partition("### Checks of both ways")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \|", section, re.MULTILINE)[2:]
    assert rows == [*CHECKS, *ELSEWHERE, *NOT_OURS]
    for tests in ELSEWHERE.values():
        for test in tests:
            module, _, function = test.partition(":")
            assert hasattr(import_module(module), function or "__file__"), test
