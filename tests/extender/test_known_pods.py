"""Pods as the extender knows them when it explains: by their objects, or by their last refusals alone."""

from __future__ import annotations

import pytest

from extender.test_explain import explained
from extender.world import world
from k8s_rdma.core.pod_constraints import gates_obstacles
from k8s_rdma.core.types import NodeName

pytestmark = pytest.mark.anyio


async def test_explain_names_the_gates_of_a_pod():
    async with world("w1") as w:
        container = {"name": "c", "image": "lab.local/busybox:1"}
        meta = {"name": "p", "annotations": {"rdma_interfaces_required": "[{}]"}}
        gates = [{"name": "kueue.x-k8s.io/admission"}]
        pod = {"metadata": meta, "spec": {"containers": [container], "schedulingGates": gates}}
        assert (await w.http.post("/api/v1/namespaces/default/pods", json=pod)).is_success
        await w.create_pod("q", 1_000)
        gated, plain = await explained(w, "pod=default/p"), await explained(w, "pod=default/q")
    assert gated.obstacles == gates_obstacles(["kueue.x-k8s.io/admission"])
    assert [group.verdict for group in gated.groups] == ["fits"]
    assert plain.obstacles == ()


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"allow_unplaced": False}, "; its agent refuses it. "),
        ({}, "; its agent gives it what is not promised to other pods there, or refuses it. "),
        ({"binder": "scheduler"}, ""),
    ],
)
async def test_explain_of_a_pod_that_skipped_the_extender_gives_advice(config: dict, says: str):
    async with world("w1", **config) as w:
        for name, rates in (("p", [1_000]), ("q", [])):
            await w.create_pod(name, *rates)
            await w.bind_by_hand(name, "w1")
        told, other = await explained(w, "pod=default/p"), await explained(w, "pod=default/q")
    assert (told.state, other.notes) == ("bound", ())
    notes = [note for note in told.notes if "was bound to w1 without a placement, past this extender" in note]
    assert len(notes) == bool(says)
    assert all(says in note and "make the pod anew" in note for note in notes)


async def test_pod_that_the_extender_bound_did_not_skip_it():
    async with world("w1") as w:
        await w.create_pod("p", 1_000)
        assert await w.bind("p", "w1") == ""
        assert (await explained(w, "pod=default/p")).notes == ()


async def test_pod_whose_annotation_is_misspelt_is_explained_with_the_nearest_one():
    async with world("w1") as w:
        await w.create_pod("p", annotations={"k8s-rdma.io/interface": "[{}]"})
        found = await explained(w, "pod=default/p")
    assert (found.state, len(found.notes)) == ("no-rdma", 1)
    assert found.notes[0].endswith("did you mean k8s-rdma.io/interfaces?")


async def test_explain_without_an_api_server_knows_only_refused_pods_and_says_so():
    async with world("w1", api=False, binder="scheduler") as w:
        await w.create_pod("p", 60_000)
        answer = await w.extender.views.routes()["/v1/explain"]({"query_string": b"pod=default/p"})
        assert answer.status == 404
        assert b"no credentials for the API server" in answer.body
        w.extender.scheduling.states.suggest(NodeName("w1"), lambda: (w.nodes["w1"].address,))
        await w.filter("p")
        told = await explained(w, "pod=default/p")
    assert (told.state, told.uid) == ("refused", w.pods["p"]["metadata"]["uid"])
    assert [(group.verdict, group.count) for group in told.groups] == [("refused", 1)]
    assert "no credentials for the API server" in told.notes[0]


async def test_explain_of_an_unreadable_pod_shows_its_refusal():
    async with world("w1") as w:
        await w.create_pod("p", 60_000)
        await w.filter("p")
        w.api.unread = 1
        told = await explained(w, "pod=default/p")
    assert told.state == "refused"
    assert told.notes[0].startswith("the pod could not be read: ")
