"""bind: its writes, its reservations, and their fate if the API server fails."""

from __future__ import annotations

import asyncio
import json

import pytest

from extender.faulty_api import Fault
from extender.node_server import PF0, PF1, pf, report
from extender.world import World, cluster, extending, interfaces, until, world
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, decode
from k8s_rdma.wire.placement_keys import PlacementKeys

pytestmark = pytest.mark.anyio

KEY = PlacementKeys.shared(b"a key that agents share")
NOT_ENOUGH = "RDMA Scheduler Extension: Node did not have enough free RDMA resources. ("


async def placement(w, name: str, key: PlacementKeys | None = None):
    """The placement in the pod's annotation, which must hold for the pod and its node."""
    pod = await w.read_pod(name)
    text = pod["metadata"]["annotations"][PLACEMENT_ANNOTATION]
    uid, node = PodUid(pod["metadata"]["uid"]), NodeName(pod["spec"]["nodeName"])
    return decode(text, uid=uid, node=node, keys=key)


async def test_bind_sets_node_and_signed_placement_in_one_write():
    async with world("w1", key=KEY) as w:
        await w.create_pod("p", 3_000, 2_000)
        await w.filter("p")
        assert await w.bind("p", "w1") == ""
        given = await placement(w, "p", KEY)
        assert [(i.pf, i.min_tx_rate_mbps) for i in given.interfaces] == [(PF0, 3_000), (PF0, 2_000)]
        assert [b.annotations.keys() for b in w.api.started] == [{PLACEMENT_ANNOTATION}]


async def test_bind_writes_no_hmac_when_there_is_no_key():
    async with world("w1") as w:
        await w.create_pod("p", 1)
        assert await w.bind("p", "w1") == ""
        pod = await w.read_pod("p")
        assert "hmac" not in json.loads(pod["metadata"]["annotations"][PLACEMENT_ANNOTATION])


async def test_bind_reads_the_pod_when_it_was_not_filtered_here():
    async with world("w1") as w:
        await w.create_pod("p", 3_000)
        assert await w.bind("p", "w1") == ""
        assert w.api.reads == 1
        assert len((await placement(w, "p")).interfaces) == 1


async def test_bind_uses_the_request_of_filter_without_reading_the_pod():
    async with world("w1") as w:
        await w.create_pod("p", 3_000)
        await w.filter("p")
        assert await w.bind("p", "w1") == ""
        assert w.api.reads == 0


async def test_bind_reads_the_pod_anew_when_its_annotation_changed_since_filter():
    async with world("w1") as w:
        await w.create_pod("p", 3_000)
        await w.filter("p")
        changed = {"metadata": {"annotations": {"rdma_interfaces_required": '[{"min_tx_rate": 7000}]'}}}
        await w.patch_pod("p", changed)
        await until(lambda: w.extender.cache.requests.get(w.pods["p"]["metadata"]["uid"]) is None)
        assert await w.bind("p", "w1") == ""
        assert [i.min_tx_rate_mbps for i in (await placement(w, "p")).interfaces] == [7_000]


async def test_bind_is_a_plain_binding_if_the_pod_requests_no_interface():
    async with world("w1") as w:
        await w.create_pod("p")
        await w.filter("p")
        assert await w.bind("p", "w1") == ""
        assert await w.node_of("p") == "w1"
        assert PLACEMENT_ANNOTATION not in (await w.read_pod("p"))["metadata"].get("annotations", {})
        assert not w.nodes["w1"].asked


async def test_bind_refuses_a_malformed_annotation_by_field():
    async with world("w1") as w:
        await w.create_pod("p", annotation='[{"min": 1}]')
        error = await w.bind("p", "w1")
        assert "malformatted. (rdma_interfaces_required[0].min" in error
        assert w.api.started == []


async def test_bind_reads_the_node_again_and_reports_the_shortage_when_the_pod_no_longer_fits():
    async with world("w1", max_age_s=3600.0) as w:
        await w.create_pod("p", 5_000)
        assert await w.fitting("p") == ["w1"]
        w.nodes["w1"].holds(other=6_000)
        error = await w.bind("p", "w1")
        assert error.startswith(f"{NOT_ENOUGH}node w1: ")
        assert "its report changed since the pod was filtered" in error
        assert await w.node_of("p") is None


async def test_bind_names_the_pods_that_were_bound_to_the_node_in_between():
    async with world("w1") as w:
        await w.create_pod("p", 6_000)
        await w.create_pod("q", 6_000)
        assert await w.fitting("p") == await w.fitting("q") == ["w1"]
        assert await w.bind("q", "w1") == ""
        assert "bound there since the pod was filtered: default/q" in await w.bind("p", "w1")


async def test_bind_refuses_a_node_that_cannot_be_read():
    async with world("w1", node_timeout_s=0.05) as w:
        await w.create_pod("p", 1)
        await w.filter("p")
        w.nodes["w1"].answering.clear()
        error = await w.bind("p", "w1")
        assert error.startswith("RDMA Scheduler Extension: Unable to collect information")
        assert await w.node_of("p") is None


async def test_bind_refuses_a_node_that_does_not_exist():
    async with world("w1") as w:
        await w.create_pod("p", 1)
        assert "node w9" in await w.bind("p", "w9")


async def test_bind_asks_a_node_that_timed_out_lately_all_the_same():
    async with world("w1", node_timeout_s=0.1, retry_s=3600.0) as w:
        w.nodes["w1"].answering.clear()
        await w.create_pod("p", 1)
        assert await w.fitting("p") == []
        w.nodes["w1"].answering.set()
        assert await w.bind("p", "w1") == ""


def ended(w: World, uid: str) -> bool:
    """Whether the extender has seen the pod's end; its reservation may be over already."""
    reservation = w.extender.cache.state.reservation("w1", uid)
    return reservation is None or bool(reservation.ended_at)


async def test_promise_counts_until_the_pod_is_gone_and_the_node_does_not_report_it():
    async with world("w1") as w:
        q = await w.create_pod("q", 6_000)
        uid = q["metadata"]["uid"]
        await w.create_pod("p", 6_000)
        assert await w.bind("q", "w1") == ""
        assert await w.fitting("p") == []
        w.nodes["w1"].holds(**{uid: 6_000})
        assert await w.fitting("p") == []
        w.nodes["w1"].holds()  # the sandbox died; it will be made again
        assert await w.fitting("p") == []
        w.nodes["w1"].holds(**{uid: 6_000})
        await w.delete_pod("q")
        await until(lambda: ended(w, uid))
        assert await w.fitting("p") == []
        w.nodes["w1"].holds()
        assert await w.fitting("p") == ["w1"]


async def test_promise_ends_when_the_pod_finished_without_interfaces():
    async with world("w1") as w:
        await w.create_pod("q", 6_000)
        await w.create_pod("p", 6_000)
        assert await w.bind("q", "w1") == ""
        await until(w.expect(pods_promised=1))
        await w.finish_pod("q")
        await until(lambda: ended(w, w.pods["q"]["metadata"]["uid"]))
        assert await w.fitting("p") == ["w1"]
        assert w.metric("pods_promised") == 0


async def test_pods_bound_by_others_count_only_when_reported_if_agents_refuse_them():
    async with world("w1", allow_unplaced=False) as w:
        q = await w.create_pod("q", 6_000)
        await w.create_pod("p", 6_000)
        await w.bind_by_hand("q", "w1")
        assert await w.fitting("p") == ["w1"]
        w.nodes["w1"].holds(**{q["metadata"]["uid"]: 6_000})
        assert await w.fitting("p") == []


@pytest.mark.parametrize("forged", ["unsigned", "another_uid", "no_json"])
async def test_placement_written_by_a_pods_owner_is_no_promise_if_there_is_a_key(forged):
    document = {"version": 1, "node": "w1", "uid": "", "interfaces": []}
    document["interfaces"] = [{"pf": PF0, "min_tx_rate": 9_000, "max_tx_rate": 0}]
    async with world("w1", key=KEY) as w:
        q = await w.create_pod("q")
        document["uid"] = q["metadata"]["uid"] if forged == "unsigned" else "other"
        text = "{" if forged == "no_json" else json.dumps(document)
        await w.bind_by_hand("q", "w1", **{"k8s-rdma.io_placement": text})
        await w.create_pod("p", 9_000)
        assert await w.bind("p", "w1") == ""


async def test_plain_pod_cannot_occupy_a_node_by_a_placement_of_its_own_without_a_key():
    async with world("w1") as w:
        q = await w.create_pod("q")
        claim = {"version": 1, "node": "w1", "uid": q["metadata"]["uid"], "interfaces": []}
        claim["interfaces"] = [{"pf": PF0, "min_tx_rate": 10_000, "max_tx_rate": 0}]
        await w.bind_by_hand("q", "w1", **{"k8s-rdma.io_placement": json.dumps(claim)})
        await w.create_pod("marker", 6_000)
        assert await w.bind("marker", "w1") == ""
        await w.finish_pod("marker")
        uid = w.pods["marker"]["metadata"]["uid"]
        await until(lambda: w.extender.cache.state.reservation("w1", uid).ended_at is not None)
        await w.create_pod("p", 9_000)  # the marker's end has been seen, and so has the bound pod before it
        assert await w.fitting("p") == ["w1"]
        assert await w.bind("p", "w1") == ""


async def test_promise_stands_when_the_pods_owner_edits_or_removes_the_annotation():
    async with world("w1", key=KEY) as w:
        await w.create_pod("q", 6_000)
        assert await w.bind("q", "w1") == ""
        await w.patch_pod("q", {"metadata": {"annotations": {PLACEMENT_ANNOTATION: None}}})
        await w.create_pod("p", 6_000)
        assert await w.fitting("p") == []
        await w.create_pod("marker", 7_000)
        await w.filter("marker")
        await w.delete_pod("marker")
        await until(w.expect(pods_waiting=1))  # the marker's end has been seen, and so has the edit before it
        assert await w.fitting("p") == []
        assert (await w.bind("p", "w1")).startswith(NOT_ENOUGH)


async def test_bind_is_success_again_when_repeated():
    async with world("w1") as w:
        await w.create_pod("p", 6_000)
        assert await w.bind("p", "w1") == ""
        assert await w.bind("p", "w1") == ""
        assert len(w.api.started) == 1
        assert w.metric("pods_promised") == 1


async def test_bind_is_success_when_an_extender_before_this_one_bound_the_pod():
    async with cluster("w1") as c:
        c.nodes["w1"].report = report("w1", pf(PF0), pf(PF1))
        async with extending(c, KEY) as w:
            await w.create_pod("p", 6_000)
            assert await w.bind("p", "w1") == ""
        async with extending(c, KEY) as w:
            w.api.started.clear()
            w.extender.cache.state.withdraw("w1", w.pods["p"]["metadata"]["uid"])  # as if not seen yet
            w.nodes["w1"].report = report("w1", pf(PF0, foreign=[5_000]), pf(PF1), generation=2)
            assert await w.bind("p", "w1") == ""
            assert w.api.started == []


@pytest.mark.parametrize("elsewhere", ["w1", "w2"])
async def test_bind_fails_and_reserves_no_room_when_another_scheduler_bound_the_pod(elsewhere):
    async with world("w1", "w2", allow_unplaced=False) as w:
        await w.create_pod("p", 6_000)
        await w.filter("p")
        await w.bind_by_hand("p", elsewhere)
        error = await w.bind("p", "w1")
        assert f"already bound to node {elsewhere}" in error
        assert w.metric("pods_promised") == 0


async def test_bind_of_a_plain_pod_is_success_when_it_is_bound_there_already():
    async with world("w1") as w:
        await w.create_pod("p")
        await w.bind_by_hand("p", "w1")
        assert await w.bind("p", "w1") == ""


async def test_bind_fails_when_the_pod_was_made_anew_under_its_name():
    async with world("w1") as w:
        old = await w.create_pod("p", 1)
        await w.filter("p")
        await w.delete_pod("p")
        await w.create_pod("p", 1)
        w.pods["p"] = old
        error = await w.bind("p", "w1")
        assert "does not exist any more" in error
        assert await w.node_of("p") is None
        assert w.metric("pods_promised") == 0


async def test_bind_refused_by_the_api_server_for_another_uid_reserves_no_room():
    async with world("w1") as w:
        old = await w.create_pod("p", 6_000)
        await w.delete_pod("p")
        await w.create_pod("p", 6_000)
        w.pods["p"] = old
        await w.filter("p")  # the scheduler has not seen the end of the old pod
        assert "does not exist any more" in await w.bind("p", "w1")
        assert w.api.started == []
        assert w.metric("pods_promised") == 0


async def test_bind_of_a_pod_under_the_name_of_another_keeps_the_room_reserved_for_that():
    async with world("w1", api_request_timeout_s=3600.0) as w:
        own, other = await w.create_pod("own", 1_000), await w.create_pod("other", 1_000)
        await until(lambda: w.extender.cache.pods.unbound_count == 2)
        w.api.faults.append(Fault.DROPPED)
        w.api.touchable = False
        assert "no answer" in await w.bind("other", "w1")
        w.api.touchable = True
        own["metadata"]["uid"] = other["metadata"]["uid"]
        assert "is not default/own" in await w.bind("own", "w1")
        assert await w.bind("other", "w1") == ""


async def test_bind_places_a_pod_that_was_filtered_before_it_requested_interfaces():
    async with world("w1") as w:
        pod = await w.create_pod("p")
        await w.patch_pod("p", {"metadata": {"annotations": {"rdma_interfaces_required": interfaces(1_000)}}})
        await until(lambda: w.extender.cache.pods.unbound_count == 1)
        w.pods["p"] = pod
        await w.filter("p")
        assert await w.bind("p", "w1") == ""
        assert [each.min_tx_rate_mbps for each in (await placement(w, "p")).interfaces] == [1_000]


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.UNREACHABLE])
async def test_bind_gives_the_capacity_back_at_once_when_the_write_surely_did_not_happen(fault):
    async with world("w1") as w:
        w.api.faults.append(fault)
        await w.create_pod("p", 6_000)
        await w.create_pod("q", 6_000)
        assert await w.bind("p", "w1")
        assert await w.bind("q", "w1") == ""


async def test_bind_succeeds_when_the_answer_is_lost_but_the_pod_is_bound():
    async with world("w1") as w:
        w.api.faults.append(Fault.LOST)
        await w.create_pod("p", 6_000)
        assert await w.bind("p", "w1") == ""
        assert w.metric("pods_promised") == 1


async def test_bind_holds_the_capacity_while_an_unanswered_write_may_still_happen():
    async with world("w1", api_request_timeout_s=3600.0) as w:
        w.api.touchable = False
        w.api.faults.append(Fault.LATE)
        await w.create_pod("p", 6_000)
        await w.create_pod("q", 6_000)
        assert "no answer" in await w.bind("p", "w1")
        assert (await w.bind("q", "w1")).startswith(NOT_ENOUGH)
        w.api.late.set()
        await asyncio.gather(*w.api.late_writes)
        uid = w.pods["p"]["metadata"]["uid"]
        await until(lambda: w.extender.cache.state.reservation("w1", uid).bound)
        assert await w.bind("p", "w1") == ""


async def test_bind_repeats_the_same_placement_after_an_unanswered_write():
    async with world("w1", api_request_timeout_s=3600.0) as w:
        w.api.touchable = False
        w.nodes["w1"].report = report("w1", pf(PF0), pf(PF1))
        w.api.faults.append(Fault.DROPPED)
        await w.create_pod("p", 6_000)
        assert await w.bind("p", "w1")
        w.nodes["w1"].report = report("w1", pf(PF0, foreign=[1]), pf(PF1, foreign=[3_000]), generation=2)
        assert await w.bind("p", "w1") == ""
        first, second = (binding.annotations for binding in w.api.started)
        assert first == second


async def test_bind_does_not_choose_another_placement_while_the_first_may_still_be_written():
    async with world("w1", api_request_timeout_s=3600.0) as w:
        w.api.touchable = False
        w.nodes["w1"].report = report("w1", pf(PF0), pf(PF1))
        w.api.faults.append(Fault.DROPPED)
        await w.create_pod("p", 6_000)
        assert await w.bind("p", "w1")
        w.nodes["w1"].report = report("w1", pf(PF0, foreign=[5_000]), pf(PF1), generation=2)
        assert "an earlier bind without an answer" in await w.bind("p", "w1")
        assert len(w.api.started) == 1


async def test_bind_stays_in_doubt_when_a_refusal_follows_an_unanswered_write():
    async with world("w1", api_request_timeout_s=3600.0) as w:
        w.api.touchable = False
        w.api.faults += [Fault.LATE, Fault.REFUSED]
        await w.create_pod("p", 6_000)
        await w.create_pod("q", 6_000)
        assert await w.bind("p", "w1")
        assert await w.bind("p", "w1")
        assert (await w.bind("q", "w1")).startswith(NOT_ENOUGH)


async def test_bind_elsewhere_frees_the_node_that_was_in_doubt():
    async with world("w1", "w2", api_request_timeout_s=3600.0) as w:
        w.api.touchable = False
        w.api.faults.append(Fault.DROPPED)
        await w.create_pod("p", 6_000)
        await w.create_pod("q", 6_000)
        assert await w.bind("p", "w1")
        assert await w.bind("p", "w2") == ""
        assert await w.bind("q", "w1") == ""


async def test_doubt_ends_when_the_pod_is_read_unbound_after_the_api_servers_own_timeout():
    async with world("w1", api_request_timeout_s=0.05) as w:
        w.api.touchable = False
        w.api.faults.append(Fault.DROPPED)
        await w.create_pod("p", 6_000)
        assert await w.bind("p", "w1")
        assert w.metric("pods_promised") == 1
        await until(w.expect(pods_promised=0))


async def test_doubt_ends_with_a_promise_when_the_pod_is_read_bound():
    async with cluster("w1") as c, extending(c, api_request_timeout_s=0.05) as w:
        w.api.touchable = False
        w.api.faults.append(Fault.LOST)
        await w.create_pod("p", 6_000)
        await w.filter("p")
        w.api.unread = 1  # so that the write's outcome stays unknown
        assert "no answer" in await w.bind("p", "w1")
        uid = w.pods["p"]["metadata"]["uid"]
        await until(lambda: w.extender.cache.state.reservation("w1", uid).bound)


async def test_doubt_ends_when_the_pod_is_deleted():
    async with world("w1", api_request_timeout_s=3600.0) as w:
        w.api.touchable = False
        w.api.faults.append(Fault.DROPPED)
        await w.create_pod("p", 6_000)
        await w.create_pod("q", 6_000)
        assert await w.bind("p", "w1")
        await w.delete_pod("p")
        uid = w.pods["p"]["metadata"]["uid"]
        await until(lambda: ended(w, uid))
        assert await w.bind("q", "w1") == ""


async def test_doubt_leaves_the_end_of_a_deleted_pod_to_the_nodes_next_report():
    async with world("w1", api_request_timeout_s=0.02) as w:
        w.api.touchable = False
        w.api.faults.append(Fault.DROPPED)
        await w.create_pod("p", 6_000)
        assert await w.bind("p", "w1")
        state, uid = w.extender.cache.state, w.pods["p"]["metadata"]["uid"]
        state.on_delete(PodUid(uid), w.extender.binder.clock())
        await until(lambda: not w.extender.pod_writer.doubts)
        assert state.reservation("w1", uid).ended_at is not None


@pytest.mark.parametrize("fault", [None, Fault.LOST])
async def test_answer_after_the_pods_end_does_not_bring_its_promise_back(fault):
    async with world("w1", api_request_timeout_s=3600.0) as w:
        w.api.touchable = False
        w.api.faults.append(fault)
        (w.api.answering if fault is None else w.api.reading).clear()
        await w.create_pod("q", 6_000)
        await w.filter("q")
        state, uid = w.extender.cache.state, w.pods["q"]["metadata"]["uid"]
        bind = asyncio.create_task(w.bind("q", "w1"))
        await until(lambda: bool(state.reservation("w1", uid)) and state.reservation("w1", uid).bound)
        if fault:
            await until(lambda: w.api.reads == 1)
        await w.delete_pod("q")
        await until(lambda: state.reservation("w1", uid).ended_at is not None)
        await w.create_pod("p", 6_000)
        assert await w.fitting("p") == ["w1"]  # the node was asked, and the ended reservation is gone
        w.api.answering.set()
        w.api.reading.set()
        await bind
        assert state.pods() == frozenset()
        assert await w.fitting("p") == ["w1"]


async def test_end_of_a_pod_that_is_being_read_back_is_not_forgotten():
    async with world("w1", api_request_timeout_s=3600.0) as w:
        w.api.touchable = False
        w.api.faults.append(Fault.LOST)
        w.api.reading.clear()
        await w.create_pod("q", 6_000)
        await w.filter("q")
        state, uid = w.extender.cache.state, w.pods["q"]["metadata"]["uid"]
        bind = asyncio.create_task(w.bind("q", "w1"))
        await until(lambda: w.api.reads == 1 and state.reservation("w1", uid).bound)
        await w.finish_pod("q")
        await until(lambda: state.reservation("w1", uid).ended_at is not None)
        w.api.reading.set()
        assert await bind == ""
        assert state.reservation("w1", uid).ended_at is not None


async def test_filter_counts_a_bind_whose_write_is_under_way_but_not_against_its_own_pod():
    async with world("w1") as w:
        w.api.writing.clear()
        await w.create_pod("p", 6_000)
        await w.create_pod("q", 6_000)
        bind = asyncio.create_task(w.bind("p", "w1"))
        await w.api.begun.wait()
        assert await w.fitting("q") == []
        assert await w.fitting("p") == ["w1"]
        assert (await w.prioritize("p"))["w1"] > 0
        w.api.writing.set()
        assert await bind == ""


async def test_pod_whose_placement_has_no_room_among_its_annotations_is_refused():
    """A Binding is not validated: bound, the pod could never be written to again."""
    async with world("w1") as w:
        await w.create_pod("p", 5_000)
        await w.patch_pod("p", {"metadata": {"annotations": {"padding": "x" * 262_000}}})
        w.pods["p"] = await w.read_pod("p")
        told = (await w.filter("p"))["FailedAndUnresolvableNodes"]["w1"]
        assert "malformatted. (metadata.annotations: they are 262" in told
        assert "metadata.annotations" in await w.bind("p", "w1")
        assert await w.node_of("p") is None
        await w.patch_pod("p", {"metadata": {"annotations": {"padding": "x" * 200_000}}})
        w.pods["p"] = await w.read_pod("p")
        assert await w.fitting("p") == ["w1"]
        assert await w.bind("p", "w1") == ""


async def test_pod_that_is_padded_after_filter_is_refused_by_bind():
    async with world("w1") as w:
        await w.create_pod("p", 5_000)
        assert await w.fitting("p") == ["w1"]
        await w.patch_pod("p", {"metadata": {"annotations": {"padding": "x" * 262_000}}})
        version = (await w.read_pod("p"))["metadata"]["resourceVersion"]
        pods = w.extender.cache.pods
        uid = w.pods["p"]["metadata"]["uid"]
        await until(lambda: pods._pods[uid].unbound.version == version)
        assert "metadata.annotations" in await w.bind("p", "w1")
        assert await w.node_of("p") is None
