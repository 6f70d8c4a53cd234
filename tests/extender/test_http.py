"""The extender over HTTP: recorded requests, bodies that are none, being ready, and ending."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from extender.node_server import pf, report
from extender.serving import BIND, FILTER, PRIORITIZE, served
from extender.world import cluster

pytestmark = pytest.mark.anyio

RECORDINGS = Path(__file__).parents[1] / "recordings" / "extender"
NODES = ("node-1", "node-2", "node-3")
FAST = pf(mbps=100_000, vfs=8)


def recorded(pattern: str) -> list[Path]:
    found = sorted(RECORDINGS.glob(pattern))
    assert found
    return found


async def test_recorded_filters_get_the_recorded_answers_when_all_nodes_fit():
    async with cluster(*NODES) as c, served(c) as s:
        for node in c.nodes.values():
            node.report = report(node.name, FAST)
        await s.ready()
        for path in recorded("*-filter.json"):
            recording = json.loads(path.read_text())
            if recording["reply"]["FailedNodes"]:
                continue
            answer = await s.post(FILTER, json.dumps(recording["body"]))
            assert (answer.status_code, answer.json()) == (200, recording["reply"]), path.name


async def test_recorded_mixed_refusal_is_sorted_like_the_recorded_answer():
    recording = json.loads((RECORDINGS / "refusal-mixed-001-filter.json").read_text())
    async with cluster(*NODES) as c, served(c) as s:
        c.nodes["node-1"].report = report("node-1", FAST, held={"other": 90_000})
        c.nodes["node-2"].report = type(report("node-2"))(
            node="node-2", generation="e.1", ledger="ok", pfs=()
        )
        c.nodes["node-3"].report = report("node-3", FAST)
        await s.ready()
        answer = (await s.post(FILTER, json.dumps(recording["body"]))).json()
    for field in ("Nodes", "NodeNames", "Error"):
        assert answer[field] == recording["reply"][field]
    for field in ("FailedNodes", "FailedAndUnresolvableNodes"):
        assert set(answer[field]) == set(recording["reply"][field])


async def test_recorded_prioritizes_get_an_integer_for_every_node():
    async with cluster(*NODES) as c, served(c) as s:
        for node in c.nodes.values():
            node.report = report(node.name, FAST)
        await s.ready()
        for path in recorded("*-prioritize.json"):
            recording = json.loads(path.read_text())
            answer = (await s.post(PRIORITIZE, json.dumps(recording["body"]))).json()
            assert [entry["Host"] for entry in answer] == [entry["Host"] for entry in recording["reply"]]
            assert all(type(entry["Score"]) is int and 0 <= entry["Score"] <= 10 for entry in answer)


async def test_recorded_binds_get_the_recorded_answers():
    async with cluster(*NODES) as c, served(c) as s:
        await s.ready()
        for path in recorded("filter-*-bind.json"):
            recording = json.loads(path.read_text())
            pod = await c.create_pod(recording["body"]["PodName"], 100)
            body = {**recording["body"], "PodUID": pod["metadata"]["uid"]}
            answer = await s.post(BIND, json.dumps(body))
            assert (answer.status_code, answer.json()) == (200, recording["reply"]), path.name
            await c.delete_pod(recording["body"]["PodName"])


async def test_full_nodes_are_asked_at_their_own_addresses_when_the_api_server_shows_none():
    async with cluster("w1") as c, served(c) as s:
        await c.http.delete("/api/v1/nodes/w1")
        await s.ready()
        pod = await c.create_pod("p", 1)
        addresses = [{"type": "InternalIP", "address": c.nodes["w1"].address}]
        node = {"metadata": {"name": "w1", "labels": {"kept": "yes"}}, "status": {"addresses": addresses}}
        body = {"Pod": pod, "Nodes": {"metadata": {}, "items": [node]}, "NodeNames": None}
        answer = (await s.post(FILTER, json.dumps(body))).json()
    assert answer["Nodes"]["items"] == [node]
    assert answer["NodeNames"] is None


POD = {"metadata": {"name": "p", "namespace": "d", "uid": "u"}}


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        (FILTER, "", "extender arguments"),
        (FILTER, "{", "extender arguments"),
        (FILTER, "null", "extender arguments"),
        (FILTER, "[" * 100_000, "extender arguments"),
        (FILTER, b"\xff\xfe{}", "extender arguments"),
        (FILTER, json.dumps({"Pod": POD}), "neither Nodes nor NodeNames"),
        (FILTER, json.dumps({"NodeNames": []}), "Pod"),
        (FILTER, json.dumps({"Pod": {"metadata": {"name": 1}}, "NodeNames": []}), "$.Pod.metadata.name"),
        (FILTER, json.dumps({"Pod": POD, "NodeNames": [1]}), "$.NodeNames[0]"),
        (FILTER, json.dumps({"Pod": POD, "Nodes": {"items": [{}]}}), "Nodes.items[0]"),
        (PRIORITIZE, json.dumps({"Pod": POD, "NodeNames": "w1"}), "$.NodeNames"),
        (BIND, json.dumps({"PodName": "p", "PodNamespace": "d", "PodUID": "u"}), "Node"),
        (BIND, json.dumps({"PodName": "p", "PodNamespace": "d", "PodUID": 7, "Node": "n"}), "$.PodUID"),
    ],
)
async def test_body_that_is_none_is_refused_by_field_and_the_next_is_answered(path, body, named):
    async with cluster("w1") as c, served(c) as s:
        await s.ready()
        refused = await s.post(path, body)
        assert refused.status_code == 400
        assert refused.headers["content-type"] == "application/json"
        assert named in refused.json()["Error"]
        await c.create_pod("p")
        assert (await s.post(FILTER, c.args("p"))).json()["NodeNames"] == ["w1"]


@pytest.mark.parametrize("announced", [True, False])
async def test_body_beyond_the_limit_is_refused_and_the_next_is_answered(announced):
    async with cluster("w1") as c, served(c, max_body_bytes=4096) as s:
        await s.ready()

        async def parts():
            for _ in range(64):
                yield b" " * 65_536

        content = b" " * 64 * 65_536 if announced else parts()
        refused = await s.http.post(FILTER, content=content)
        assert refused.status_code == 400
        assert "filter: body is longer than 4096 bytes" in refused.json()["Error"]
        await c.create_pod("p")
        assert (await s.post(FILTER, c.args("p"))).status_code == 200


async def test_paths_are_those_of_the_configuration():
    async with cluster("w1") as c, served(c, filter_path="/rdma/f", bind_path="/rdma/b") as s:
        await s.ready()
        await c.create_pod("p")
        assert (await s.post("/rdma/f", c.args("p"))).status_code == 200
        assert (await s.post(FILTER, c.args("p"))).status_code == 404
        assert (await s.post("/rdma/b", "{}")).status_code == 400
        assert (await s.http.get("/rdma/f")).status_code == 405


async def test_healthz_says_what_is_missing_until_everything_is_listed():
    async with cluster("w1") as c:
        c.api.watching.clear()
        async with served(c) as s:
            while "nodes" in (starting := await s.http.get("/healthz")).text:
                assert starting.status_code == 503
            assert starting.status_code == 503
            assert "pods" in starting.text
            c.api.watching.set()
            await s.ready()


async def test_metrics_count_requests_by_verb_and_outcome():
    async with cluster("w1") as c, served(c) as s:
        await s.ready()
        await c.create_pod("p", 1)
        await s.post(FILTER, c.args("p"))
        await s.post(FILTER, "{")
        answer = await s.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'k8s_rdma_extender_requests_total{verb="filter",outcome="answered"} 1\n' in answer.text
    assert 'k8s_rdma_extender_requests_total{verb="filter",outcome="refused"} 1\n' in answer.text
    assert "k8s_rdma_extender_node_reports_total 1\n" in answer.text


async def test_bind_under_way_is_finished_when_the_extender_is_stopped():
    async with cluster("w1") as c, served(c) as s:
        await s.ready()
        c.api.writing.clear()
        pod = await c.create_pod("p", 1)
        uid = pod["metadata"]["uid"]
        body = {"PodName": "p", "PodNamespace": "default", "PodUID": uid, "Node": "w1"}
        bind = asyncio.create_task(s.post(BIND, json.dumps(body)))
        await c.api.begun.wait()
        s.stop.set()
        c.api.writing.set()
        assert (await bind).json() == {"Error": ""}
        await s.done
        assert await c.node_of("p") == "w1"
