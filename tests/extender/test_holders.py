"""The holders of a node and of a namespace: `/v1/holders` and `/v1/namespace`, over HTTP."""

from __future__ import annotations

import pytest

from extender.node_server import PF0, PF1, pf, report
from extender.serving import BIND, FILTER, Served, served
from extender.world import World, cluster
from k8s_rdma.config.extender import NamespaceLimit
from k8s_rdma.core.rate_ability import NO_RATE
from k8s_rdma.wire.report import rates_of
from k8s_rdma.wire.views import HoldersView, Limit, NamespaceView, decode_holders, decode_namespace

pytestmark = pytest.mark.anyio


async def holders(http: Served, node: str) -> HoldersView:
    reply = await http.http.get("/v1/holders", params={"node": node})
    assert reply.status_code == 200, reply.text
    return decode_holders(reply.content)


async def namespace(http: Served, name: str) -> NamespaceView:
    reply = await http.http.get("/v1/namespace", params={"name": name})
    assert reply.status_code == 200, reply.text
    return decode_namespace(reply.content)


async def bind(c: World, http: Served, pod: str, node: str) -> None:
    assert (await http.post(FILTER, c.args(pod))).json()["NodeNames"]
    assert (await http.post(BIND, c.bind_args(pod, node))).json() == {"Error": ""}


async def test_holders_are_pods_that_were_promised_interfaces():
    async with cluster("w1", "w2") as c, served(c) as http:
        await http.ready()
        c.nodes["w1"].report = report("w1", pf(PF0, rates=rates_of(NO_RATE)), pf(PF1, vfs=0))
        annotation = '[{"min_tx_rate": 3000, "max_tx_rate": 4000}, {"min_tx_rate": 1000}]'
        pod = await c.create_pod("p", annotation=annotation)
        await bind(c, http, "p", "w1")
        view = await holders(http, "w1")
        rows = [
            (row.pf, row.namespace, row.pod, row.reserved_mbps, row.cap_mbps, row.min_by, row.max_by)
            for row in view.holders
        ]
        assert sorted(rows) == [
            ("enp3s0f0", "default", "p", 1000, 0, "accounted", "none"),
            ("enp3s0f0", "default", "p", 3000, 4000, "accounted", "accounted"),
        ]
        assert {row.uid for row in view.holders} == {pod["metadata"]["uid"]}
        assert {(row.vf, row.interface, row.sent_mbps) for row in view.holders} == {(None, None, None)}
        assert view.notes == ()
        assert (await holders(http, "w2")).holders == ()


async def test_holders_are_pods_that_a_node_reports():
    async with cluster("w1") as c, served(c) as http:
        await http.ready()
        c.nodes["w1"].holds(**{"of-another-cluster": 6000})
        await c.create_pod("p", 1000)
        assert (await http.post(FILTER, c.args("p"))).json()["NodeNames"]
        view = await holders(http, "w1")
        rows = {row.uid: (row.pod, row.reserved_mbps, row.admitted) for row in view.holders}
        assert rows["of-another-cluster"] == ("", 6000, None), "a pod without a name has a UID"


async def test_holders_of_a_node_that_cannot_be_read_are_promises():
    async with cluster("w1", "w2") as c, served(c) as http:
        await http.ready()
        await c.create_pod("p", 6000)
        await bind(c, http, "p", "w1")
        c.nodes["w1"].raw = b"no HTTP"
        await c.create_pod("q", 1000)
        await http.post(FILTER, c.args("q"))
        view = await holders(http, "w1")
        assert [row.pod for row in view.holders] == ["p"]
        assert view.notes[0].startswith("from placements alone: ")


async def test_namespace_has_no_pods_that_a_node_invents():
    async with cluster("w1") as c, served(c) as http:
        await http.ready()
        made = await c.create_pod("p", 1000)
        await bind(c, http, "p", "w1")
        c.nodes["w1"].holds(**{made["metadata"]["uid"]: 1000, "invented": 6000})
        await c.create_pod("q", 1000)
        await http.post(FILTER, c.args("q"))
        assert {row.uid for row in (await holders(http, "w1")).holders} >= {"invented"}
        view = await namespace(http, "default")
        assert (view.interfaces, view.reserved_mbps) == (1, 1000)
        assert [row.pod for row in view.holders] == ["p"]


async def test_namespace_has_no_pod_of_its_own_that_another_node_reports():
    """A node may name any pod of the cluster, which all nodes can list."""
    async with cluster("w1", "w2") as c, served(c) as http:
        await http.ready()
        made = await c.create_pod("p", 1000)
        await bind(c, http, "p", "w1")
        c.nodes["w2"].holds(**{made["metadata"]["uid"]: 6000})
        await c.create_pod("q", 1000)
        await http.post(FILTER, c.args("q"))
        view = await namespace(http, "default")
        assert [(row.node, row.reserved_mbps) for row in view.holders] == [("w1", 1000)]


async def test_namespace_has_its_sums_and_its_limit():
    limit = NamespaceLimit(namespace="default", reserved_mbps=9000)
    async with cluster("w1", "w2") as c, served(c, limits=(limit,)) as http:
        await http.ready()
        await c.create_pod("p", 6000)
        await bind(c, http, "p", "w1")
        await c.create_pod("q", 2000)
        await bind(c, http, "q", "w2")
        view = await namespace(http, "default")
        assert (view.interfaces, view.reserved_mbps) == (2, 8000)
        assert [(row.node, row.pod) for row in view.holders] == [("w1", "p"), ("w2", "q")]
        assert view.limit == Limit(used_mbps=8000, limit_mbps=9000, used_vfs=2, limit_vfs=None)
        other = await namespace(http, "other")
        assert (other.interfaces, other.holders, other.limit) == (0, (), None)


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/v1/holders", 404, "node: there is no node ''"),
        ("/v1/holders?node=w9%1b", 404, "node: there is no node 'w9\\\\x1b'"),
        ("/v1/namespace", 400, "name: wanted that of a namespace"),
        (f"/v1/namespace?name={'n' * 254}", 400, "name: wanted that of a namespace"),
    ],
)
async def test_question_without_a_subject_is_refused(path: str, status: int, message: str):
    async with cluster("w1") as c, served(c) as http:
        await http.ready()
        reply = await http.http.get(path)
        assert (reply.status_code, reply.json()["error"]["message"]) == (status, message)
