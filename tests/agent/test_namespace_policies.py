"""The agent's refusals by its own copy of a namespace's policies, whoever placed the pod."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.pods import conf, ordinary, requests
from agent.runtime import Runtime, in_turn
from factories import PF0, PF1
from k8s_rdma.config.faults import fit
from k8s_rdma.config.namespace_policies import PoliciesFile
from k8s_rdma.core.namespace_policy import NO_POLICIES
from k8s_rdma.core.options import InterfaceOptions
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.types import NodeName, PfSelector, PodUid
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, encode
from k8s_rdma.wire.placement_keys import PlacementKeys

if TYPE_CHECKING:
    from agent.machine import Machine

KEY = PlacementKeys.shared(b"a key that extender and agents share")
STOLEN = "02:00:00:00:00:99"
CHAINED = conf("1.0.0")


def placed(*interfaces: PlacedInterface, key: PlacementKeys | None = KEY) -> dict[str, str]:
    """As an extender promises it, signed if there is a key."""
    placement = Placement(node=NodeName("w1"), interfaces=interfaces)
    return {PLACEMENT_ANNOTATION: encode(placement, PodUid("uid-p"), key)}


def stealing(**options: object) -> PlacedInterface:
    return PlacedInterface(pf=PF0, options=InterfaceOptions(mac=STOLEN, **options))


@pytest.mark.parametrize("key", [KEY, None], ids=["signed", "not-signed"])
def test_add_refuses_options_against_policy_also_if_a_placement_promises_them(
    machine: Machine, key: PlacementKeys | None
) -> None:
    machine.policies = NO_POLICIES

    async def scenario(runtime: Runtime) -> None:
        asked = requests({"mac": STOLEN, "trust": True}) | placed(stealing(trust=True), key=key)
        answer = await runtime.ask("ADD", CHAINED, annotations=asked, prev_result=ordinary("1.0.0"))
        assert answer.exit_status == 1
        assert answer.document["code"] == 117
        assert answer.document["msg"] == (
            f"namespace default may not have mac {STOLEN} (interface 0): no policy is for it"
        )
        assert not runtime.node.ledger.receipts

    in_turn(machine, scenario, key=key)
    assert machine.is_pristine()


def test_pod_ends_whose_policy_has_become_stricter(machine: Machine) -> None:
    async def scenario(runtime: Runtime) -> None:
        asked, before = requests({"mac": STOLEN}), ordinary("1.0.0")
        given = await runtime.ask("ADD", CHAINED, annotations=asked, prev_result=before)
        assert given.exit_status == 0
        machine.policies = NO_POLICIES
        checked = await runtime.ask("CHECK", CHAINED, annotations=asked, prev_result=given.document)
        assert checked.exit_status == 0
        assert (await runtime.ask("DEL", CHAINED, prev_result=given.document)).exit_status == 0

    in_turn(machine, scenario)
    assert machine.is_pristine()


@pytest.mark.parametrize("key", [KEY, None], ids=["signed", "not-signed"])
def test_interfaces_are_on_pfs_of_the_policy_although_others_were_promised(
    machine: Machine, key: PlacementKeys | None
) -> None:
    policy = {"name": "a", "namespaces": ["default"], "pfs": {"pci": PF1}}
    machine.policies = fit(PoliciesFile, {"policies": [policy]}).to_core()

    async def scenario(runtime: Runtime) -> None:
        asked = requests({}) | placed(PlacedInterface(pf=PF0), key=key)
        answer = await runtime.ask("ADD", CHAINED, annotations=asked, prev_result=ordinary("1.0.0"))
        assert answer.exit_status == 0
        [receipt] = runtime.node.ledger.receipts.values()
        assert [each.vf.pf for each in receipt.interfaces] == [PF1]

    in_turn(machine, scenario, key=key)


def test_placement_without_a_signature_counts_that_an_extender_narrowed_by_its_policy(
    machine: Machine,
) -> None:
    async def scenario(runtime: Runtime) -> None:
        on_second = InterfaceOptions(pf=PfSelector(pcis=frozenset({PF1})))
        asked = requests({}) | placed(PlacedInterface(pf=PF1, options=on_second), key=None)
        answer = await runtime.ask("ADD", CHAINED, annotations=asked, prev_result=ordinary("1.0.0"))
        assert answer.exit_status == 0
        [receipt] = runtime.node.ledger.receipts.values()
        assert [each.vf.pf for each in receipt.interfaces] == [PF1]

    in_turn(machine, scenario)
