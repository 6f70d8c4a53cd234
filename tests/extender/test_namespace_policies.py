"""Refusals of the operator's policies, in every verb and before any node is looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from extender.node_server import PF0, PF1, pf, report
from extender.preemption import create, place, preempt
from extender.test_explain import explained
from extender.world import until, world

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

NOT_ALLOWED = "RDMA Scheduler Extension: the pod asks for what its namespace may not have. ("
TRUSTED = '[{"trust": true}]'
WHY = "namespace default may not have trust true (interface 0): no policy is for it"


async def test_filter_refuses_every_node_if_no_policy_allows_the_request():
    async with world("w1", "w2", policy_file=None) as w:
        await w.create_pod("p", annotation=TRUSTED)
        found = await w.filter("p")
    assert found["FailedAndUnresolvableNodes"] == dict.fromkeys(("w1", "w2"), f"{NOT_ALLOWED}{WHY})")
    assert not found["NodeNames"]


async def test_prioritize_and_bind_refuse_it_as_well():
    async with world("w1", policy_file=None) as w:
        await w.create_pod("p", annotation=TRUSTED)
        assert await w.prioritize("p") == {"w1": 0}
        assert await w.bind("p", "w1") == f"{NOT_ALLOWED}{WHY})"
        assert await w.node_of("p") is None


async def test_pod_that_was_edited_after_its_filter_is_refused_at_bind():
    async with world("w1", policy_file=None) as w:
        await w.create_pod("p", annotation="[{}]")
        assert await w.fitting("p") == ["w1"]
        await w.patch_pod("p", {"metadata": {"annotations": {"rdma_interfaces_required": TRUSTED}}})
        await until(lambda: w.extender.cache.requests.get(w.pods["p"]["metadata"]["uid"]) is None)
        assert await w.bind("p", "w1") == f"{NOT_ALLOWED}{WHY})"


async def test_explain_names_the_option_that_the_namespace_may_not_have():
    async with world("w1", policy_file=None) as w:
        await w.create_pod("p", annotation=TRUSTED)
        await w.filter("p")
        told = await explained(w, "pod=default/p")
    assert (told.malformed, told.not_allowed) == (WHY, True)


async def test_preempt_evicts_no_pod_for_a_request_against_policy():
    async with world("w1", policy_file=None) as w:
        await place(w, "victim", "w1", 9_000)
        await create(w, "p", 9_000, priority=1)
        assert await preempt(w, "p", w1=["victim"]) == {"w1": ["victim"]}
        w.pods["p"]["metadata"]["annotations"]["rdma_interfaces_required"] = (
            '[{"trust": true, "min_tx_rate": 9000}]'
        )
        assert await preempt(w, "p", w1=["victim"]) == {}


async def test_policy_that_changes_counts_for_a_pod_that_was_filtered_before(tmp_path: Path):
    path = tmp_path / "policies.yaml"
    path.write_text("policies: [{name: a, namespaces: [default], allow: [trust]}]")
    async with world("w1", policy_file=str(path)) as w:
        await w.create_pod("p", annotation='[{"trust": true, "max_tx_rate": 5}]')
        found = await w.filter("p")
        assert "cannot set trust" in str(found)
        path.write_text("policies: [{name: another, namespaces: [default]}]")
        await until(lambda: w.extender.cache.requests.policies().policy_for("default").name == "another")
        found = await w.filter("p")
    assert "policy another does not allow that" in str(found)


async def test_file_of_policies_that_cannot_be_used_is_said_when_ready_and_in_metrics(tmp_path: Path):
    path = tmp_path / "policies.yaml"
    path.write_text("policies: []")
    async with world("w1", policy_file=str(path)) as w:
        assert w.extender.warning() == ""
        path.write_text("policies: [{name: a, namespaces: []}]")
        await until(lambda: w.extender.warning() != "")
        assert "namespaces: is empty" in w.extender.warning()
        assert "k8s_rdma_extender_policies_not_reloaded 1" in w.extender.metrics.render()
        path.write_text("policies: [ ]")
        await until(lambda: w.extender.warning() == "")
        assert "k8s_rdma_extender_policies_not_reloaded 0" in w.extender.metrics.render()


async def test_pods_are_placed_on_the_pfs_of_their_policy_alone(tmp_path: Path):
    path = tmp_path / "policies.yaml"
    path.write_text(f"policies: [{{name: a, namespaces: [default], pfs: {{pci: '{PF1}'}}}}]")
    async with world("w1", policy_file=str(path)) as w:
        w.nodes["w1"].report = report("w1", pf(PF0), pf(PF1))
        for number in range(3):
            await w.create_pod(f"p{number}", 1)
            assert await w.bind(f"p{number}", "w1") == ""
            held = w.extender.cache.state.reservation("w1", w.pods[f"p{number}"]["metadata"]["uid"])
            assert [each.pf for each in held.interfaces] == [PF1]
