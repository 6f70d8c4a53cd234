from __future__ import annotations

import asyncio
import json

import pytest

from demo.cluster.fake_extender import (
    bound_to,
    condition_list,
    refused,
    refusing,
    scheduled,
    serving_extender,
)
from k8s_rdma.errors import MalformedError
from k8s_rdma_demo.cluster.command import load_scheduler_config
from k8s_rdma_demo.cluster.extender_client import ExtenderConfig
from k8s_rdma_demo.cluster.scheduler import SchedulerConfig, SchedulingQueue

pytestmark = pytest.mark.anyio

PODS_URL = "/api/v1/namespaces/default/pods"


async def test_pod_is_bound_to_the_first_node_when_there_is_no_extender(cluster, make_pod, make_node):
    async with cluster() as c, scheduled(c):
        await c.create(make_node("node-2"), make_node("node-1"), make_pod())
        await c.pod_when("p1", bound_to("node-1"))


async def test_pod_goes_through_filter_prioritize_and_bind(cluster, make_pod, make_node):
    async with cluster() as c:

        async def bind(asked: dict) -> dict:
            binding = {
                "metadata": {"name": asked["PodName"], "uid": asked["PodUID"], "annotations": {"a": "b"}},
                "target": {"kind": "Node", "name": asked["Node"]},
            }
            answer = await c.http.post(f"{PODS_URL}/{asked['PodName']}/binding", json=binding)
            return {"Error": "" if answer.is_success else answer.text}

        def prioritize(asked: dict) -> list:
            return [{"Host": name, "Score": index} for index, name in enumerate(asked["NodeNames"])]

        answers = {"bind": bind, "prioritize": prioritize, "filter": refusing(node_3="full")}
        async with serving_extender(answers, bind_verb="bind") as extender, scheduled(c, extender):
            await c.create(make_node("node-1"), make_node("node-2"), make_node("node-3"), make_pod())
            pod = await c.pod_when("p1", bound_to("node-2"))
            assert pod["metadata"]["annotations"] == {"a": "b"}
            assert extender.verbs("p1") == ["filter", "prioritize", "bind"]


async def test_scheduled_event_names_the_node_of_the_pod(cluster, make_pod, make_node):
    async with cluster() as c, scheduled(c):
        await c.create(make_node(), make_pod())
        await c.pod_when("p1", bound_to("node-1"))
        async with c.http.stream("GET", "/api/v1/events", params={"watch": "1"}, timeout=None) as answer:
            event = json.loads(await anext(answer.aiter_lines()))["object"]
        assert (event["reason"], event["type"]) == ("Scheduled", "Normal")
        assert event["message"] == "Successfully assigned default/p1 to node-1"
        assert event["source"] == {"component": "default-scheduler"}


async def test_prioritize_is_not_called_when_one_node_is_feasible(cluster, make_pod, make_node):
    async with (
        cluster() as c,
        serving_extender({"filter": refusing(node_1="no")}) as extender,
        scheduled(c, extender),
    ):
        await c.create(make_node("node-1"), make_node("node-2"), make_pod())
        await c.pod_when("p1", bound_to("node-2"))
        assert extender.verbs("p1") == ["filter"]


async def test_full_node_objects_are_sent_as_the_api_has_them(cluster, make_pod, make_node):
    seen: list[dict] = []

    def remember(asked: dict) -> dict:
        seen.append(asked)
        return {"Nodes": asked["Nodes"]}

    async with cluster() as c:
        async with serving_extender({"filter": remember}, node_cache_capable=False) as extender:
            await c.create(make_node(labels={"b": "1", "a": "2"}), make_pod())
            node = (await c.http.get("/api/v1/nodes/node-1")).json()
            pod = (await c.http.get(f"{PODS_URL}/p1")).json()
            async with scheduled(c, extender):
                await c.pod_when("p1", bound_to("node-1"))
        for obj in (node, pod):
            del obj["kind"], obj["apiVersion"]
        assert list(seen[0]) == ["Pod", "Nodes", "NodeNames"]
        assert json.dumps(seen[0]["Pod"]) == json.dumps(pod)
        assert json.dumps(seen[0]["Nodes"]) == json.dumps({"metadata": {}, "items": [node]})
        assert seen[0]["NodeNames"] is None


async def test_second_extender_gets_the_nodes_that_the_first_left(cluster, make_pod, make_node):
    async with (
        cluster() as c,
        serving_extender({"filter": refusing(node_1="a")}) as first,
        serving_extender({"filter": refusing(node_2="b")}) as second,
        scheduled(c, first, second),
    ):
        await c.create(make_node("node-1"), make_node("node-2"), make_node("node-3"), make_pod())
        await c.pod_when("p1", bound_to("node-3"))


async def test_refused_pod_shows_why_as_kube_scheduler_words_it(cluster, make_pod, make_node):
    answer = refusing(node_1="no free VF", node_2="12000 of 100000 Mb/s", node_3="no free VF")
    async with cluster() as c, serving_extender({"filter": answer}) as extender:
        await c.create(*(make_node(f"node-{i}") for i in (1, 2, 3)), make_pod())
        async with scheduled(c, extender):
            pod = await c.pod_when("p1", refused)
        message = (
            "0/3 nodes are available: 1 12000 of 100000 Mb/s, 2 no free VF. no new claims to deallocate, "
            "preemption: 0/3 nodes are available: 3 No preemption victims found for incoming pod."
        )
        condition = condition_list(pod)[0]
        assert (condition["reason"], condition["message"]) == ("Unschedulable", message)
        assert list(condition) == [
            *("type", "observedGeneration", "status", "lastProbeTime", "lastTransitionTime"),
            *("reason", "message"),
        ]
        assert await c.events("p1", "FailedScheduling") == [message]


async def test_refused_pod_waits_until_a_nodes_annotation_changes(cluster, make_pod, make_node):
    answers = {"filter": refusing(node_1="full")}
    async with cluster() as c, serving_extender(answers) as extender, scheduled(c, extender):
        await c.create(make_node(), make_pod("p1"))
        await c.pod_when("p1", refused)
        # Events that do not help: a heartbeat, another pod's coming, the pod's own status.
        heartbeat = {"status": {"images": [{"names": ["x"], "sizeBytes": 1}]}}
        headers = {"Content-Type": "application/merge-patch+json"}
        await c.http.patch("/api/v1/nodes/node-1/status", json=heartbeat, headers=headers)
        await c.create(make_pod("p2"))
        await c.pod_when("p2", refused)
        assert extender.verbs("p1") == ["filter"]
        del answers["filter"]
        extender.answers = answers
        await c.annotate_node("node-1", freed="1")
        await c.pod_when("p1", bound_to("node-1"))
        await c.pod_when("p2", bound_to("node-1"))
        assert extender.verbs("p1") == ["filter", "filter"]


async def test_refused_pod_is_tried_again_when_another_pod_is_gone(cluster, make_pod, make_node):
    async with cluster() as c, serving_extender() as extender, scheduled(c, extender):
        await c.create(make_node(), make_pod("p1"))
        await c.pod_when("p1", bound_to("node-1"))
        extender.answers = {"filter": refusing(node_1="full")}
        await c.create(make_pod("p2"))
        await c.pod_when("p2", refused)
        extender.answers = {}
        await c.http.request("DELETE", f"{PODS_URL}/p1", json={"gracePeriodSeconds": 0})
        await c.pod_when("p2", bound_to("node-1"))


async def test_refused_pod_is_tried_again_when_its_owner_changes_it(cluster, make_pod, make_node):
    def by_annotation(asked: dict) -> dict:
        fine = "fixed" in asked["Pod"]["metadata"].get("annotations", {})
        return {"NodeNames": asked["NodeNames"] if fine else []}

    async with cluster() as c, serving_extender({"filter": by_annotation}) as extender:
        await c.create(make_node(), make_pod())
        async with scheduled(c, extender):
            await c.pod_when("p1", refused)
            headers = {"Content-Type": "application/merge-patch+json"}
            patch = {"metadata": {"annotations": {"fixed": "1"}}}
            await c.http.patch(f"{PODS_URL}/p1", json=patch, headers=headers)
            await c.pod_when("p1", bound_to("node-1"))


async def test_event_during_filter_is_not_lost(cluster, make_pod, make_node):
    async with cluster() as c:

        async def free_while_refusing(asked: dict) -> dict:
            extender.answers = {}
            await c.annotate_node("node-1", freed="1")
            return {"NodeNames": [], "FailedNodes": {"node-1": "full"}}

        async with serving_extender({"filter": free_while_refusing}) as extender, scheduled(c, extender):
            await c.create(make_node(), make_pod())
            await c.pod_when("p1", bound_to("node-1"))
        assert extender.verbs("p1") == ["filter", "filter"]


async def test_pod_waits_for_the_first_node_in_an_empty_cluster(cluster, make_pod, make_node):
    async with cluster() as c, scheduled(c):
        await c.create(make_pod())
        pod = await c.pod_when("p1", refused)
        assert condition_list(pod)[0]["message"] == "no nodes available to schedule pods"
        await c.create(make_node())
        await c.pod_when("p1", bound_to("node-1"))


async def test_failed_filter_is_reported_unchanged_and_repeated(cluster, make_pod, make_node):
    def fail_once(asked: dict) -> int:
        extender.answers = {}
        return 500

    async with cluster() as c, serving_extender({"filter": fail_once}) as extender, scheduled(c, extender):
        await c.create(make_node(), make_pod())
        pod = await c.pod_when("p1", bound_to("node-1"))
        assert extender.verbs("p1") == ["filter", "filter"]
        url = f"{extender.config.url_prefix}/filter"
        told = [f"failed filter with extender at URL {url}, code 500"]
        assert await c.events("p1", "FailedScheduling") == told
        assert [x["status"] for x in condition_list(pod)] == ["True"]


async def test_failed_extender_is_passed_over_when_it_is_ignorable(cluster, make_pod, make_node):
    answers = {"filter": lambda asked: 500, "prioritize": lambda asked: 500, "bind": lambda asked: 500}
    async with cluster() as c:
        async with (
            serving_extender(answers, ignorable=True, bind_verb="bind") as extender,
            scheduled(c, extender),
        ):
            await c.create(make_node("node-1"), make_node("node-2"), make_pod())
            await c.pod_when("p1", bound_to("node-1"))
        assert extender.verbs("p1") == ["filter", "prioritize", "bind"]


async def test_failed_bind_is_reported_and_the_pod_is_scheduled_again(cluster, make_pod, make_node):
    async with cluster() as c:

        def fail_once(asked: dict) -> dict:
            del extender.answers["bind"]
            extender.answers["bind"] = bind_all(c)
            return {"Error": "placement no longer fits"}

        async with (
            serving_extender({"bind": fail_once}, bind_verb="bind") as extender,
            scheduled(c, extender),
        ):
            await c.create(make_node(), make_pod())
            await c.pod_when("p1", bound_to("node-1"))
        assert extender.verbs("p1") == ["filter", "bind", "filter", "bind"]
        assert await c.events("p1", "FailedScheduling") == ["placement no longer fits"]


def bind_all(c):
    async def bind(asked: dict) -> dict:
        binding = {"metadata": {"name": asked["PodName"]}, "target": {"name": asked["Node"]}}
        answer = await c.http.post(f"{PODS_URL}/{asked['PodName']}/binding", json=binding)
        return {"Error": "" if answer.is_success else answer.json()["message"]}

    return bind


async def test_several_binds_are_open_while_later_pods_are_filtered(cluster, make_pod, make_node):
    async with cluster() as c:
        third_is_filtered = asyncio.Event()
        binding = bind_all(c)

        async def bind(asked: dict) -> dict:
            await third_is_filtered.wait()
            return await binding(asked)

        def watch_for_third(asked: dict) -> dict:
            if asked["Pod"]["metadata"]["name"] == "p3":
                third_is_filtered.set()
            return {"NodeNames": asked["NodeNames"]}

        answers = {"bind": bind, "filter": watch_for_third}
        async with serving_extender(answers, bind_verb="bind") as extender:
            await c.create(make_node(), make_pod("p1"), make_pod("p2"), make_pod("p3"))
            async with scheduled(c, extender):
                for name in ("p1", "p2", "p3"):
                    await c.pod_when(name, bound_to("node-1"))
        assert extender.verbs("p1") == ["filter", "bind"]
        assert await c.events("p1", "FailedScheduling") == []


async def test_late_bind_of_a_timed_out_call_ends_the_retries(cluster, make_pod, make_node):
    async with cluster() as c:
        binding = bind_all(c)

        async def slow(asked: dict) -> dict:
            await c.pod_when("p1", refused)  # the scheduler has given the call up
            return await binding(asked)

        async with (
            serving_extender({"bind": slow}, bind_verb="bind", http_timeout_s=0.2) as extender,
            scheduled(c, extender),
        ):
            await c.create(make_node(), make_pod("p1"))
            await c.pod_when("p1", bound_to("node-1"))
            extender.answers = {"bind": binding}
            await c.create(make_pod("p2"))
            await c.pod_when("p2", bound_to("node-1"))
        told = await c.events("p1", "FailedScheduling")
        assert "Client.Timeout exceeded while awaiting headers" in told[0]


async def test_bound_pod_is_not_scheduled_again_when_it_changes_before_its_node_shows(
    cluster, make_pod, make_node
):
    async with cluster() as c:
        done = asyncio.Event()

        async def claim(asked: dict) -> dict:
            done.set()
            return {"Error": ""}  # says bound, and binds only later

        async with serving_extender({"bind": claim}, bind_verb="bind") as extender, scheduled(c, extender):
            await c.create(make_node(), make_pod("p1"))
            await done.wait()
            headers = {"Content-Type": "application/merge-patch+json"}
            patch = {"metadata": {"annotations": {"a": "b"}}}
            await c.http.patch(f"{PODS_URL}/p1", json=patch, headers=headers)
            extender.answers = {"bind": bind_all(c)}
            await c.create(make_pod("p2"))
            await c.pod_when("p2", bound_to("node-1"))
            assert extender.verbs("p1") == ["filter", "bind"]


async def test_pod_without_the_managed_resource_is_bound_without_the_extender(cluster, make_pod, make_node):
    config = {"managed_resources": frozenset({"rdma/hca"}), "bind_verb": "bind"}
    async with cluster() as c, serving_extender(**config) as extender, scheduled(c, extender):
        await c.create(make_node(), make_pod())
        await c.pod_when("p1", bound_to("node-1"))
        assert extender.calls == []


async def test_scores_are_dropped_as_a_whole_when_one_is_a_float(cluster, make_pod, make_node):
    scores = [{"Host": "node-2", "Score": 10}, {"Host": "node-1", "Score": 1.0}]
    async with (
        cluster() as c,
        serving_extender({"prioritize": lambda asked: scores}) as extender,
        scheduled(c, extender),
    ):
        await c.create(make_node("node-1"), make_node("node-2"), make_pod())
        await c.pod_when("p1", bound_to("node-1"))


async def test_equal_nodes_are_drawn_repeatably_when_seeded(cluster, make_pod, make_node):
    async def draw(seed: int) -> list[str]:
        async with cluster() as c:
            await c.create(*(make_node(f"node-{i}") for i in range(4)))
            async with scheduled(c, seed=seed):
                chosen = []
                for i in range(8):
                    await c.create(make_pod(f"p{i}"))
                    pod = await c.pod_when(f"p{i}", lambda pod: "nodeName" in pod["spec"])
                    chosen.append(pod["spec"]["nodeName"])
                return chosen

    first = await draw(7)
    assert len(set(first)) > 1
    assert await draw(7) == first


async def test_pods_of_another_scheduler_or_behind_a_gate_are_left_alone(cluster, make_pod, make_node):
    async with cluster() as c, serving_extender() as extender, scheduled(c, extender):
        gated = make_pod("gated", schedulingGates=[{"name": "g"}])
        await c.create(make_node(), make_pod("other", schedulerName="x"), gated, make_pod("p1"))
        await c.pod_when("p1", bound_to("node-1"))
        assert {name for _, name in extender.calls} == {"p1"}


def queued(uid: str, priority: int = 0) -> dict:
    return {"metadata": {"uid": uid}, "spec": {"priority": priority}}


def test_queue_gives_the_highest_priority_first_then_who_came_first():
    queue = SchedulingQueue()
    for uid, priority in (("a", 0), ("b", 5), ("c", 0)):
        queue.put(queued(uid, priority), worth_retry=True)
    assert [queue.pop(0)["metadata"]["uid"] for _ in range(3)] == ["b", "a", "c"]
    assert queue.pop(0) is None


def test_queue_backs_off_twice_as_long_with_every_failure_in_a_row():
    queue = SchedulingQueue(initial_backoff_s=1, max_backoff_s=3)
    queue.put(queued("a"), worth_retry=True)
    now, waits = 0.0, []
    for _ in range(3):
        assert queue.pop(now) is not None
        queue.fail("a", now)
        due = queue.next_due()
        assert queue.pop(due - 0.001) is None
        waits.append(due - now)
        now = due
    assert waits == [1, 2, 3]
    queue.pop(now)
    queue.refuse("a")
    queue.on_event()
    queue.pop(now)
    queue.fail("a", now)
    assert queue.next_due() == now + 1


def test_queue_forgets_a_pod_that_went_while_in_flight():
    queue = SchedulingQueue()
    queue.put(queued("a"), worth_retry=True)
    queue.pop(0)
    queue.drop("a")
    queue.refuse("a")
    queue.fail("a", 0)
    queue.assume("a")
    queue.on_event()
    assert queue.pop(100) is None
    assert queue.next_due() is None


def test_queue_retries_a_pod_that_changed_while_in_flight():
    queue = SchedulingQueue()
    queue.put(queued("a"), worth_retry=True)
    queue.pop(0)
    queue.put(queued("a", 1), worth_retry=True)
    queue.refuse("a")
    assert queue.pop(0)["spec"]["priority"] == 1


CONFIGURATION = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
podInitialBackoffSeconds: 2
profiles: [{schedulerName: rdma}]
extenders:
- urlPrefix: http://127.0.0.1:8888/scheduler
  filterVerb: rdma_scheduling
  prioritizeVerb: prioritize
  preemptVerb: preempt
  bindVerb: bind
  weight: 5
  nodeCacheCapable: true
  managedResources: [{name: rdma/hca, ignoredByScheduler: true}]
  ignorable: false
  httpTimeout: 1m1500ms
"""


def test_scheduler_configuration_is_read_as_kube_scheduler_reads_it(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(CONFIGURATION)
    extender = ExtenderConfig(
        url_prefix="http://127.0.0.1:8888/scheduler",
        filter_verb="rdma_scheduling",
        prioritize_verb="prioritize",
        preempt_verb="preempt",
        bind_verb="bind",
        weight=5,
        node_cache_capable=True,
        managed_resources=frozenset({"rdma/hca"}),
        ignored_resources=frozenset({"rdma/hca"}),
        http_timeout_s=61.5,
    )
    expected = SchedulerConfig(name="rdma", extenders=(extender,), initial_backoff_s=2, seed=3)
    assert load_scheduler_config(path, seed=3) == expected


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("weight: 5", "weigth: 5", "weigth"),
        ("weight: 5", "weight: x", "weight"),
        ("1m1500ms", "soon", "httpTimeout"),
        ("1m1500ms", "5 s", "httpTimeout"),
        ("http://", "https://", "TLS"),
        ("kind: Kube", "kind: Tube", "kind"),
        ("extenders:", "extenders: {", "config.yaml"),
    ],
)
def test_scheduler_configuration_is_refused_when_something_in_it_is_wrong(tmp_path, old, new, says):
    path = tmp_path / "config.yaml"
    path.write_text(CONFIGURATION.replace(old, new))
    with pytest.raises(MalformedError, match=says):
        load_scheduler_config(path)
