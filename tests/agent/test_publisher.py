"""The agent's objects: always the present state, a renewal only of a published one, whatever fails."""

from __future__ import annotations

import msgspec
import pytest

from agent.cluster_world import refusal
from agent.publishing_world import RDMA_NODES, World, body, publishing, with_foreign
from extender.node_server import pf
from k8s_rdma.agent.cluster.publisher import amount, timed
from k8s_rdma.config.agent import AgentConfig
from k8s_rdma.wire.rdma_node import decode_status, encode_status, status_of
from k8s_rdma_demo.cluster.objects import LEASES, NODES

pytestmark = pytest.mark.anyio


async def published(world: World) -> None:
    await world.until(lambda: world.renewed == world.told.now().generation)


async def test_node_is_published_with_its_lease_and_both_go_with_the_node_object(tmp_path):
    async with publishing(tmp_path, rdma_node=True) as w:
        await published(w)
        assert decode_status(msgspec.json.encode(w.rdma_node["status"])).generation == w.told.now().generation
        uid = w.store.get(NODES, ("", "w1"))["metadata"]["uid"]
        for each in (w.rdma_node, w.lease):
            (owner,) = each["metadata"]["ownerReferences"]
            assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", "w1", uid)
        assert w.lease["spec"]["leaseDurationSeconds"] == 180


async def test_no_report_is_published_before_there_is_a_node_object(tmp_path):
    async with publishing(tmp_path, node=False, rdma_node=True) as w:
        await w.until(lambda: w.asked("GET", "/nodes") > 1)
        assert w.asked("POST", "") == 0
        w.make_node()
        await published(w)


async def test_every_change_is_published_at_most_once_a_second_and_the_latest_wins(tmp_path):
    async with publishing(tmp_path, rdma_node=True) as w:
        await published(w)
        writes = w.asked("PUT", "/status")
        for number in range(5):
            w.told.tell(held={f"u{number}": 100})
        await w.time.advance(0.9)
        assert w.asked("PUT", "/status") == writes
        await w.time.advance(0.1)
        await w.until(lambda: w.generation == w.told.now().generation)
        assert w.asked("PUT", "/status") == writes + 1
        assert [a["pod"]["uid"] for a in w.rdma_node["status"]["allocations"]] == ["u4"]
        await w.time.advance(5)
        w.told.tell()
        await w.until(lambda: w.generation == w.told.now().generation)
        assert "allocations" not in w.rdma_node["status"]


async def test_node_at_rest_writes_its_lease_once_a_minute_and_its_report_every_five(tmp_path):
    async with publishing(tmp_path, rdma_node=True) as w:
        await published(w)
        lease, writes = w.asked("PATCH", "/leases/w1"), w.asked("PUT", "/status")
        await w.time.advance(59.9)
        assert w.asked("PATCH", "/leases/w1") == lease
        for _ in range(60):
            await w.time.advance(10)
        assert (w.asked("PATCH", "/leases/w1"), w.asked("PUT", "/status")) == (lease + 10, writes + 2)


async def test_report_at_rest_changes_only_its_time(tmp_path):
    """`kubectl get rdmanodes` shows by it which agents live."""
    async with publishing(tmp_path, rdma_node=True) as w:
        await published(w)
        first = w.rdma_node["status"]
        for _ in range(31):
            await w.time.advance(10)
        again = w.rdma_node["status"]
    [condition], [before] = again["conditions"], first["conditions"]
    assert condition["lastHeartbeatTime"] > before["lastHeartbeatTime"]
    assert condition | {"lastHeartbeatTime": ""} == before | {"lastHeartbeatTime": ""}
    assert again | {"conditions": []} == first | {"conditions": []}


@pytest.mark.parametrize(("renew_s", "lasts_s"), [(10, 30), (0.2, 1)])
async def test_lease_lasts_for_three_renewals(tmp_path, renew_s, lasts_s):
    async with publishing(tmp_path, rdma_node=True, renew_s=renew_s) as w:
        await published(w)
        assert w.lease["spec"]["leaseDurationSeconds"] == lasts_s


async def test_lease_is_not_renewed_while_the_status_of_now_cannot_be_published(tmp_path):
    async with publishing(tmp_path, rdma_node=True) as w:
        await published(w)
        w.fault = lambda request: refusal(500) if request.method == "PUT" else None
        before = w.lease
        w.told.tell(held={"u": 100})
        await w.time.advance(120)
        assert w.lease == before
        w.fault = None
        await w.time.advance(20)
        await published(w)


async def test_lease_is_renewed_twice_soon_after_a_pod_gave_something_back(tmp_path):
    async with publishing(tmp_path, rdma_node=True) as w:
        await published(w)
        w.told.tell(held={"u": 100})
        await w.time.advance(1)
        w.told.tell()
        await w.time.advance(1)
        before = w.asked("PATCH", "/leases/w1")
        await w.time.advance(3.9)
        assert w.asked("PATCH", "/leases/w1") == before
        await w.time.advance(0.2)
        assert w.asked("PATCH", "/leases/w1") == before + 1
        await w.time.advance(1)
        assert w.asked("PATCH", "/leases/w1") == before + 2


async def test_lease_is_renewed_soon_after_a_pod_without_interfaces_ended(tmp_path):
    async with publishing(tmp_path, rdma_node=True) as w:
        await published(w)
        before = w.asked("PATCH", "/leases/w1")
        w.promises.promise("u", "v")
        await w.time.advance(10)
        assert w.asked("PATCH", "/leases/w1") == before
        w.promises.promise("v")
        await w.time.advance(4.1)
        assert w.asked("PATCH", "/leases/w1") == before + 1
        await w.time.advance(1)
        assert w.asked("PATCH", "/leases/w1") == before + 2
        await w.time.advance(10)
        await w.time.advance(5)
        assert w.asked("PATCH", "/leases/w1") == before + 4


async def test_node_at_rest_reads_its_rdma_node_at_each_renewal_and_no_lease(tmp_path):
    async with publishing(tmp_path, rdma_node=True) as w:
        await published(w)
        asked = w.asked("GET", "/rdmanodes/w1"), w.asked("PATCH", "/leases/w1"), w.asked("GET", "/leases/w1")
        for _ in range(62):
            await w.time.advance(10)
        renewals = w.asked("PATCH", "/leases/w1") - asked[1]
        assert renewals
        assert (w.asked("GET", "/rdmanodes/w1"), w.asked("GET", "/leases/w1")) == (
            asked[0] + renewals,
            asked[2],
        )


async def test_status_changed_by_another_client_is_written_again(tmp_path):
    async with publishing(tmp_path, rdma_node=True) as w:
        await published(w)
        w.store.put(RDMA_NODES, {**w.rdma_node, "spec": {"somebody": "was here"}})
        w.told.tell(held={"u": 100})
        await w.time.advance(3)
        await w.until(lambda: w.generation == w.told.now().generation)


@pytest.mark.parametrize(("resource", "namespace"), [(RDMA_NODES, ""), (LEASES, "k8s-rdma")])
async def test_deleted_object_is_made_again(tmp_path, resource, namespace):
    async with publishing(tmp_path, rdma_node=True) as w:
        await published(w)
        w.remove(resource, namespace)
        await w.time.advance(60)
        await w.time.advance(2)
        await w.until(lambda: None not in (w.lease, w.generation))


async def test_refusal_is_tried_again_with_growing_pauses(tmp_path):
    async with publishing(tmp_path, rdma_node=True) as w:
        w.fault = lambda request: refusal(403) if request.method == "POST" else None
        await w.until(lambda: w.asked("POST", "/rdmanodes") == 1)
        await w.time.advance(60)
        grown = [pause for pause in w.time.pauses if pause in (1, 2, 4, 8, 16)]
        assert grown[:6] == [1, 2, 4, 8, 16, 16]
        w.fault = None
        await w.time.advance(20)
        await published(w)


async def test_late_write_without_an_answer_does_not_undo_a_newer_one(tmp_path):
    async with publishing(tmp_path, rdma_node=True) as w:
        await published(w)
        late = []

        def lose(request):
            if request.method != "PUT" or late:
                return None
            late.append(body(request))
            return refusal(504)

        w.fault = lose
        w.told.tell(held={"lost": 100})
        await w.time.advance(1)
        await w.until(lambda: bool(late))
        w.told.tell(held={"u": 100})
        await w.time.advance(3)
        await w.until(lambda: w.generation == w.told.now().generation)
        assert late[0]["metadata"]["resourceVersion"] != w.rdma_node["metadata"]["resourceVersion"]
        assert w.rdma_node["status"]["allocations"][0]["pod"]["uid"] == "u"


def test_condition_keeps_the_time_of_its_last_change():
    time = World.__dataclass_fields__["time"].default_factory()
    report = World.__dataclass_fields__["told"].default_factory().now()
    first = timed(status_of(report), b"", time.now())
    time.seconds = 100
    again = timed(status_of(report), encode_status(first), time.now())
    assert again.ready().last_transition_time == "2026-03-01T00:00:00Z"
    assert again.ready().last_heartbeat_time == "2026-03-01T00:01:40Z"
    lost = msgspec.structs.replace(report, unreadable=("PF",))
    changed = timed(status_of(lost), encode_status(first), time.now())
    assert changed.ready().last_transition_time == "2026-03-01T00:01:40Z"
    assert timed(status_of(report), b"{", time.now()).ready().last_transition_time == "2026-03-01T00:01:40Z"


async def test_vfs_that_pods_can_have_are_counted_in_the_nodes_capacity(tmp_path):
    async with publishing(tmp_path, vf_resource="k8s-rdma.io/vf") as w:
        await w.until(lambda: w.vfs == "4")
        w.told.tell(with_foreign(1), held={"u": 100})
        await w.time.advance(2)
        await w.until(lambda: w.vfs == "3")
        assert w.rdma_node is None


@pytest.mark.parametrize("written", [None, "0"])
async def test_removed_capacity_is_written_again(tmp_path, written):
    async with publishing(tmp_path, vf_resource="k8s-rdma.io/vf") as w:
        await w.until(lambda: w.vfs == "4")
        await w.time.advance(2)
        w.patch_node(vfs=written)
        await w.time.advance(2)
        await w.until(lambda: w.vfs == "4")


async def test_capacity_stays_while_not_all_hardware_is_seen(tmp_path):
    async with publishing(tmp_path, vf_resource="k8s-rdma.io/vf", rdma_node=True) as w:
        await w.until(lambda: w.vfs == "4")
        w.told.tell(pf(vfs=1), unreadable=("PF enp3s0f1: gone",))
        await w.time.advance(5)
        await w.until(lambda: w.generation == w.told.now().generation)
        assert w.vfs == "4"
        assert w.rdma_node["status"]["conditions"][0]["reason"] == "HardwareUnreadable"


async def test_capacity_is_tried_again_when_the_api_server_refuses(tmp_path):
    async with publishing(tmp_path, vf_resource="k8s-rdma.io/vf") as w:
        w.fault = lambda request: refusal(403) if request.method == "PATCH" else None
        await w.until(lambda: w.asked("PATCH", "/status") == 1)
        w.fault = None
        await w.time.advance(2)
        await w.until(lambda: w.vfs == "4")


@pytest.mark.parametrize(
    ("quantity", "found"),
    [(None, None), ("240", 240), ("1k", 1000), ("1024", 1024), ("x", None), ("1500m", None)],
)
def test_amount_is_read_as_the_api_server_writes_it(quantity, found):
    assert amount(quantity) == found


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"publish": {"rdmaNode": True}}, "publish: needs credentials"),
        ({"publish": {"vfResource": "k8s-rdma.io/vf"}}, "publish: needs credentials"),
        ({"publish": {"vfResource": "vf"}, "inCluster": True}, "vfResource"),
        (
            {"publish": {"vfResource": "x.kubernetes.io/vf"}, "inCluster": True},
            "vfResource: .*other than Kubernetes'",
        ),
        ({"publish": {"rdmaNodes": True}}, "rdmaNodes"),
    ],
)
def test_configuration_that_cannot_be_is_refused_by_name(settings, said):
    with pytest.raises(msgspec.ValidationError, match=said):
        msgspec.convert({"node": "w1", **settings}, AgentConfig)


def test_configuration_without_publishing_needs_no_credentials():
    assert not msgspec.convert({"node": "w1"}, AgentConfig).publish.anything()
