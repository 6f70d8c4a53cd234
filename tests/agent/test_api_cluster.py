"""The agent's knowledge of its node's pods, and its questions if the runtime sends no annotations."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace

import pytest

from agent.cluster_world import NODE, URL, refusal, world
from factories import pod as someones_pod
from k8s_rdma.agent.cluster.api_cluster import FIRST_LIST_S, open_client
from k8s_rdma.config.agent import AgentConfig
from k8s_rdma.core.types import PodUid
from k8s_rdma.errors import K8sRdmaError, MalformedError, Reason
from k8s_rdma.wire.claim_caps import CLAIM_CAPS_ANNOTATION, CapsRequest
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION
from k8s_rdma.wire.placement_keys import PlacementKeys
from k8s_rdma_demo.cluster.http_server import Response

pytestmark = pytest.mark.anyio

REQUEST = {"rdma_interfaces_required": '[{"min_tx_rate": 100}]'}


async def test_annotations_are_all_of_the_pods(tmp_path):
    async with world(tmp_path) as w:
        pod = await w.run_pod(annotations={"a.example/b": "x", **REQUEST})
        assert await w.cluster.annotations(pod) == {"a.example/b": "x", **REQUEST}


async def test_annotations_of_a_pod_made_anew_under_the_name_are_refused_with_try_again(tmp_path):
    async with world(tmp_path) as w:
        pod = await w.run_pod(annotations=REQUEST)
        with pytest.raises(K8sRdmaError, match=rf"has UID {pod.uid}, not old; .*try again") as refused:
            await w.cluster.annotations(replace(pod, uid=PodUid("old")))
        assert refused.value.reason is Reason.API_FAILURE


async def test_annotations_of_a_static_pod_are_those_of_the_object_that_mirrors_it(tmp_path):
    async with world(tmp_path) as w:
        mirror = await w.run_pod(annotations={"kubernetes.io/config.mirror": "hash", **REQUEST})
        found = await w.cluster.annotations(replace(mirror, uid=PodUid("hash")))
        assert found["rdma_interfaces_required"] == REQUEST["rdma_interfaces_required"]


async def test_pod_that_the_runtime_names_without_its_uid_is_identified(tmp_path):
    async with world(tmp_path) as w:
        pod = await w.run_pod(annotations=REQUEST)
        unidentified = replace(pod, uid=PodUid("container:c1"))
        assert await w.cluster.identified(unidentified) == pod
        assert await w.cluster.identified(pod) == pod
        elsewhere = replace(await w.run_pod("q", node="w2"), uid=PodUid("container:c2"))
        assert await w.cluster.identified(elsewhere) == elsewhere


@pytest.mark.parametrize(("node", "says"), [("w2", "not on node w1"), ("", "no such pod")])
async def test_annotations_are_refused_of_a_pod_that_is_not_here(tmp_path, node, says):
    async with world(tmp_path) as w:
        pod = await w.run_pod(node=node) if node else someones_pod()
        with pytest.raises(K8sRdmaError, match=says):
            await w.cluster.annotations(pod)


async def test_annotations_are_given_up_when_the_api_server_does_not_answer(tmp_path):
    async with world(tmp_path) as w:
        pod = await w.run_pod()
        w.fault = lambda request: refusal(503, "overloaded") if request.path.endswith("/p") else None
        with pytest.raises(K8sRdmaError, match="get pod default/p: overloaded") as failed:
            await w.cluster.annotations(pod)
        assert failed.value.reason is Reason.API_FAILURE


async def test_claims_are_the_placements_of_bound_unfinished_pods_of_this_node(tmp_path):
    async with world(tmp_path) as w:
        first, other = await w.run_pod("first"), await w.run_pod("other", node="w2")
        promised = await w.promise(first)
        await w.promise(other)
        await w.until(lambda: w.cluster.placements() == {first.uid: promised})
        late = await w.run_pod("late")
        promised_late = await w.promise(late, rate=7)
        await w.until(lambda: w.cluster.placements() == {first.uid: promised, late.uid: promised_late})
        before = w.cluster.placements()
        await w.patch(f"{URL}/first/status", {"status": {"phase": "Succeeded"}})
        await w.until(lambda: w.cluster.placements() == {late.uid: promised_late})
        await w.delete(late)
        await w.until(lambda: w.cluster.placements() == {})
        assert before == {first.uid: promised, late.uid: promised_late}


async def test_forged_placements_do_not_count_if_placements_are_signed(tmp_path):
    async with world(tmp_path) as w:
        forged, honest = await w.run_pod("forged"), await w.run_pod("honest")
        await w.promise(forged, key=PlacementKeys.shared(b"another key"))
        promised = await w.promise(honest)
        await w.until(lambda: w.cluster.placements() == {honest.uid: promised})
        copied = w.pod("honest")["metadata"]["annotations"]
        await w.annotate(forged, copied)
        late = await w.run_pod("late")
        promised_late = await w.promise(late)
        await w.until(lambda: late.uid in w.cluster.placements())
        assert w.cluster.placements() == {honest.uid: promised, late.uid: promised_late}


async def test_unsigned_placements_count_if_they_match_the_request(tmp_path):
    async with world(tmp_path, key=None) as w:
        honest, greedy = (
            await w.run_pod("honest", node="", annotations=REQUEST),
            await w.run_pod("greedy", node="", annotations=REQUEST),
        )
        await w.bind(greedy, rate=900)
        promised = await w.bind(honest, rate=100)
        await w.until(lambda: w.cluster.placements() == {honest.uid: promised})


async def test_placements_written_after_the_binding_do_not_count_if_unsigned(tmp_path):
    async with world(tmp_path, key=None) as w:
        bare = await w.run_pod("bare")
        bound = await w.run_pod("bound", node="", annotations=REQUEST)
        promised = await w.bind(bound, rate=100)
        await w.until(lambda: w.cluster.placements() == {bound.uid: promised})
        for pod in (bare, bound):
            await w.annotate(pod, {"rdma_interfaces_required": '[{"min_tx_rate": 900}]'})
            await w.promise(pod, key=None, rate=900)
        last = await w.run_pod("last", node="", annotations=REQUEST)
        promised_last = await w.bind(last, rate=100)
        await w.until(lambda: last.uid in w.cluster.placements())
        assert w.cluster.placements() == {bound.uid: promised, last.uid: promised_last}


async def test_claim_is_of_the_latest_generation_and_a_replay_of_an_earlier_one_is_reported(tmp_path):
    async with world(tmp_path) as w:
        pod = await w.run_pod()
        first = await w.promise(pod, rate=100)
        await w.until(lambda: w.cluster.placements() == {pod.uid: first})
        waiting = asyncio.ensure_future(w.cluster.wait_for_placements(w.cluster.placements()))
        second = await w.promise(pod, rate=300, generation=2)
        assert await waiting == {pod.uid: second}
        await w.annotate(pod, {PLACEMENT_ANNOTATION: None})
        await w.until(lambda: w.cluster.placements() == {})
        await w.promise(pod, rate=100)
        await w.until(w.events)
        [event] = w.events()
        assert (event["reason"], event["type"]) == ("RdmaRatesRefused", "Warning")
        assert event["message"] == (
            "its placement is of generation 0, and there was generation 2, which stands"
        )
        await w.promise(pod, rate=300, generation=2)
        await w.until(lambda: w.cluster.placements() == {pod.uid: second})


async def test_unsigned_placement_has_no_generation(tmp_path):
    async with world(tmp_path, key=None) as w:
        pod = await w.run_pod(node="", annotations=REQUEST)
        promised = await w.bind(pod, rate=100, generation=5)
        await w.until(lambda: w.cluster.placements() == {pod.uid: replace(promised, generation=0)})


async def test_consumers_are_the_unfinished_pods_of_this_node_with_their_resource_claims(tmp_path):
    named = [{"name": "net", "resourceClaimName": "c"}]
    async with world(tmp_path) as w:

        async def until(expected):
            consumers = None
            while consumers != expected:
                consumers = await w.cluster.wait_for_consumers(consumers)

        first = await w.run_pod("first", claims=named)
        plain = await w.run_pod("plain")
        await w.run_pod("other", node="w2", claims=named)
        expected = {plain.uid: set(), first.uid: {"default/c"}}
        await until(expected)
        extended = {"extendedResourceClaimStatus": {"resourceClaimName": "plain-x", "requestMappings": []}}
        await w.patch(f"{URL}/plain/status", {"status": extended})
        await until(expected := expected | {plain.uid: {"default/plain-x"}})
        templated = await w.run_pod("templated", claims=[{"name": "net"}])
        status = {"resourceClaimStatuses": [{"name": "net", "resourceClaimName": "templated-net-x"}]}
        await w.patch(f"{URL}/templated/status", {"status": status})
        await until(expected := expected | {templated.uid: {"default/templated-net-x"}})
        await w.patch(f"{URL}/first/status", {"status": {"phase": "Succeeded"}})
        del expected[first.uid]
        await until(expected)
        await w.delete(templated)
        del expected[templated.uid]
        await until(expected)


async def test_lasting_pods_are_those_that_neither_finish_nor_are_deleted(tmp_path):
    async with world(tmp_path) as w:
        assert w.cluster.lasting_pods() == set()
        lasting, finished, ending = [await w.run_pod(name) for name in ("lasting", "finished", "ending")]
        await w.run_pod("other", node="w2")
        await w.until(lambda: w.cluster.lasting_pods() == {lasting.uid, finished.uid, ending.uid})
        await w.patch(f"{URL}/finished/status", {"status": {"phase": "Succeeded"}})
        await w.until(lambda: w.cluster.lasting_pods() == {lasting.uid, ending.uid})
        await w.http.delete(f"{URL}/ending")
        await w.until(lambda: w.cluster.lasting_pods() == {lasting.uid})
        assert w.pod("ending")["metadata"]["deletionTimestamp"]


async def test_caps_are_those_of_unfinished_pods_with_claims_and_their_status_is_written(tmp_path):
    named = [{"name": "net", "resourceClaimName": "c"}]
    async with world(tmp_path) as w:

        async def until(expected):
            caps = None
            while caps != expected:
                caps = await w.cluster.wait_for_caps(caps)

        first = await w.run_pod("first", claims=named)
        await w.run_pod("plain")
        await until({first.uid: CapsRequest()})
        text = '{"rdma0": 800}'
        await w.patch(f"{URL}/first", {"metadata": {"annotations": {CLAIM_CAPS_ANNOTATION: text}}})
        await until({first.uid: CapsRequest(text)})
        w.cluster.caps_decided(first, "{}")
        await until({first.uid: CapsRequest(text, "{}")})
        await w.delete(first)
        await until({})


async def test_claim_ends_when_the_placement_is_taken_from_the_pod(tmp_path):
    async with world(tmp_path) as w:
        pod = await w.run_pod()
        await w.promise(pod)
        await w.until(lambda: bool(w.cluster.placements()))
        await w.annotate(pod, {"k8s-rdma.io/placement": None})
        await w.until(lambda: not w.cluster.placements())


async def test_claims_stand_while_the_watch_is_lost_and_are_true_again_afterwards(tmp_path):
    async with world(tmp_path) as w:
        stays, goes = await w.run_pod("stays"), await w.run_pod("goes")
        promised, other = await w.promise(stays), await w.promise(goes)
        await w.until(lambda: w.cluster.placements() == {stays.uid: promised, goes.uid: other})

        def away(request):
            return Response(status=500, body=b"away") if request.path == "/api/v1/pods" else None

        w.fault = away
        w.outrun_watches()
        await w.delete(goes)
        before = w.asked("GET", "/api/v1/pods")
        await w.until(lambda: w.asked("GET", "/api/v1/pods") > before + 3)
        assert w.cluster.placements() == {stays.uid: promised, goes.uid: other}
        assert max(w.clock.paused) > 1
        w.fault = None
        await w.until(lambda: w.cluster.placements() == {stays.uid: promised})


async def test_placements_are_empty_before_the_api_server_answers(tmp_path):
    async with world(tmp_path) as w:
        w.fault = lambda request: refusal(403, "forbidden")
        assert w.cluster.placements() == {}
        await w.until(lambda: w.asked("GET", "/api/v1/pods") > 3)
        w.fault = None
        pod = await w.run_pod()
        promised = await w.promise(pod)
        await w.until(lambda: w.cluster.placements() == {pod.uid: promised})


async def test_placements_are_awaited_until_pods_were_listed_once(tmp_path):
    async with world(tmp_path) as w:
        w.fault = lambda request: refusal(403, "forbidden") if request.method == "GET" else None
        pod = await w.run_pod()
        promised = await w.promise(pod)
        w.fault = None
        await w.cluster.wait_listed()
        assert w.cluster.placements() == {pod.uid: promised}


async def test_placements_are_not_awaited_for_long_while_pods_cannot_be_listed(tmp_path):
    async with world(tmp_path) as w:
        w.fault = lambda request: refusal(403, "forbidden")
        async with asyncio.timeout(1.9 * FIRST_LIST_S):
            await w.cluster.wait_listed()
            await w.cluster.wait_listed()
        assert w.cluster.placements() == {}


async def test_agent_without_credentials_loads_no_client():
    assert open_client(AgentConfig(node="w1")) is None
    script = (
        "import sys, k8s_rdma.agent.main, k8s_rdma.agent.cluster.api_cluster;"
        "print(sorted({'lightkube', 'httpx2', 'k8s_rdma.kube.client'} & set(sys.modules)))"
    )
    shown = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", script], capture_output=True, check=True, text=True
    )
    assert shown.stdout.strip() == "[]"


async def test_credentials_that_are_not_there_are_named(tmp_path):
    with pytest.raises(MalformedError, match=str(tmp_path)):
        open_client(AgentConfig(node=NODE, kubeconfig=str(tmp_path / "absent")))
    with pytest.raises(MalformedError, match="no usable service account"):
        open_client(AgentConfig(node=NODE, in_cluster=True))
