"""A node whose kubelet is silent or not ready: its condition, its taints, and the end of its pods."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from k8s_rdma_demo.cluster.api import ApiConfig
from k8s_rdma_demo.cluster.controller_manager import ManagerConfig, managing
from k8s_rdma_demo.cluster.node_lifecycle import (
    NODE_LEASES,
    NOT_READY,
    UNREACHABLE,
    Eviction,
    ZoneState,
    due_taints,
    eviction_rates,
    eviction_time,
    not_ready_status,
    silent_condition,
    zone_state,
)

NOW = "2026-01-01T00:00:10Z"
NOW_MICRO = "2026-01-01T00:00:10.000000Z"
ADDED = datetime(2026, 1, 1, tzinfo=UTC)


def node(ready: str, *taints: dict[str, str]) -> dict[str, Any]:
    return {
        "metadata": {"name": "w1"},
        "spec": {"taints": list(taints)} if taints else {},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


def taint(key: str, effect: str = "NoExecute") -> dict[str, str]:
    return {"key": key, "effect": effect, "timeAdded": "2026-01-01T00:00:00Z"}


def pod(*tolerations: dict[str, Any], **meta: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p", **meta}, "spec": {"nodeName": "w1", "tolerations": list(tolerations)}}


def tolerated(key: str = "", seconds: int | None = None, **more: str) -> dict[str, Any]:
    toleration: dict[str, Any] = {"operator": "Exists", **more} | ({"key": key} if key else {})
    return toleration if seconds is None else toleration | {"tolerationSeconds": seconds}


@pytest.mark.parametrize(("ready", "key"), [("Unknown", UNREACHABLE), ("False", NOT_READY)])
def test_node_is_tainted_for_new_and_for_running_pods(ready: str, key: str) -> None:
    assert due_taints(node(ready), NOW, Eviction.DUE) == [
        {"key": key, "effect": "NoSchedule", "timeAdded": NOW},
        {"key": key, "effect": "NoExecute", "timeAdded": NOW},
    ]


def test_taints_stay_as_they_are_beside_those_of_others() -> None:
    alien = taint("dedicated", "NoSchedule")
    ours = (taint(UNREACHABLE, "NoSchedule"), taint(UNREACHABLE))
    assert due_taints(node("Unknown", alien, *ours), NOW, Eviction.DUE) is None
    assert due_taints(node("True", alien, *ours), NOW, Eviction.DUE) == [alien]
    assert due_taints(node("True"), NOW, Eviction.DUE) is None
    replaced = due_taints(node("False", *ours), NOW, Eviction.DUE) or []
    assert {entry["key"] for entry in replaced} == {NOT_READY}


def test_taint_that_ends_pods_comes_when_it_is_due_and_is_swapped_at_once() -> None:
    """Source: `processTaintBaseEviction`, `markNodeForTainting`."""
    for_new_pods = {"key": UNREACHABLE, "effect": "NoSchedule", "timeAdded": NOW}
    assert due_taints(node("Unknown"), NOW, Eviction.DEFERRED) == [for_new_pods]
    swapped = due_taints(node("Unknown", taint(NOT_READY)), NOW, Eviction.DEFERRED)
    assert swapped == [for_new_pods, {"key": UNREACHABLE, "effect": "NoExecute", "timeAdded": NOW}]
    assert due_taints(node("Unknown", taint(UNREACHABLE)), NOW, Eviction.STOPPED) == [for_new_pods]


def test_node_that_no_kubelet_has_reported_yet_has_no_taints() -> None:
    """Source: `doNoScheduleTaintingPass` goes through the conditions that there are."""
    assert due_taints({"metadata": {"name": "w1"}}, NOW, Eviction.DUE) is None


@pytest.mark.parametrize(
    ("ready", "lost", "state"),
    [
        (0, 0, ZoneState.NORMAL),
        (0, 1, ZoneState.FULL_DISRUPTION),
        (1, 1, ZoneState.NORMAL),
        (1, 2, ZoneState.NORMAL),
        (1, 3, ZoneState.PARTIAL_DISRUPTION),
        (3, 3, ZoneState.NORMAL),
        (9, 11, ZoneState.PARTIAL_DISRUPTION),
    ],
)
def test_zone_is_disrupted_from_three_lost_nodes_and_55_percent_on(
    ready: int, lost: int, state: ZoneState
) -> None:
    """Source: `ComputeZoneState`, and the defaults of `--unhealthy-zone-threshold`."""
    assert zone_state(ready, lost) is state


def zone(name: str, *ready: str, **labels: str) -> list[dict[str, Any]]:
    labels = {"topology.kubernetes.io/zone": name, **labels} if name else labels
    return [each | {"metadata": {"name": "n", "labels": labels}} for each in map(node, ready)]


LOST, LIVE = ("Unknown",), ("True",)


@pytest.mark.parametrize(
    ("nodes", "rates"),
    [
        ([], {}),
        (zone("", *LIVE, *LOST), {"": 0.1}),
        (zone("", "Unknown", "False"), None),
        (zone("a", *LOST) + zone("b", *LOST), None),
        (zone("a", *LOST) + zone("b", *LIVE), {"a": 0.1, "b": 0.1}),
        (zone("a", *LIVE, *LOST * 3), {"a": 0.0}),
        (zone("a", *LIVE * 20, *LOST * 31), {"a": 0.01}),
        (
            zone("", *LIVE, *LOST) + zone("", *LOST * 2, **{"node.kubernetes.io/exclude-disruption": ""}),
            {"": 0.1},
        ),
    ],
    ids=["none", "normal", "the-only-zone", "all-zones", "one-of-two", "partial", "large", "excluded"],
)
def test_no_pod_is_ended_while_no_node_anywhere_is_ready(nodes: Any, rates: Any) -> None:
    """Source: `handleDisruption`, `ReducedQPSFunc`, and the defaults of kube-controller-manager's options."""
    assert eviction_rates(nodes) == rates


def test_pods_of_daemonsets_stay_on_a_lost_node() -> None:
    """Source: `AddOrUpdateDaemonPodTolerations`, pkg/controller/daemon/util/daemonset_util.go."""
    own = [tolerated(key, effect="NoExecute") for key in (NOT_READY, UNREACHABLE)]
    assert eviction_time(pod(*own), node("Unknown", taint(UNREACHABLE))) is None


def test_silent_node_is_unknown_once() -> None:
    condition = silent_condition(node("True"), NOW)
    assert condition is not None
    assert (condition["status"], condition["reason"]) == ("Unknown", "NodeStatusUnknown")
    assert silent_condition(node("Unknown"), NOW) is None


@pytest.mark.parametrize(
    ("tolerations", "seconds"),
    [
        ((), 0),
        ((tolerated(UNREACHABLE, 5),), 5),
        ((tolerated(UNREACHABLE, 5, effect="NoExecute"), tolerated(NOT_READY, 1)), 5),
        ((tolerated(UNREACHABLE, 9), tolerated("", 3)), 3),
        ((tolerated(UNREACHABLE, -1),), 0),
        ((tolerated(UNREACHABLE),), None),
        ((tolerated(),), None),
        ((tolerated(NOT_READY, 5),), 0),
        ((tolerated(UNREACHABLE, effect="NoSchedule"),), 0),
    ],
    ids=lambda value: "none" if value is None else str(len(value) if isinstance(value, tuple) else value),
)
def test_pod_ends_after_the_shortest_time_that_it_tolerates(tolerations: Any, seconds: int | None) -> None:
    found = eviction_time(pod(*tolerations), node("Unknown", taint(UNREACHABLE)))
    assert found == (None if seconds is None else ADDED + timedelta(seconds=seconds))


def test_pod_that_is_ending_already_is_not_ended_again() -> None:
    ending = pod(deletionTimestamp="2026-01-01T00:00:00Z")
    assert eviction_time(ending, node("Unknown", taint(UNREACHABLE))) is None


def test_pod_of_a_lost_node_is_not_ready() -> None:
    running = pod() | {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    status = not_ready_status(running, ADDED)
    assert status is not None
    [condition] = status["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", "NodeNotReady")
    assert not_ready_status(running | {"status": status}, ADDED) is None
    assert not_ready_status(pod(), ADDED) is None


@pytest.mark.anyio
async def test_pods_of_a_silent_node_are_ended_and_those_of_another_stay(
    cluster: Any, make_node: Any, make_pod: Any
) -> None:
    lease = {"metadata": {"name": "w1", "namespace": NODE_LEASES}, "spec": {"renewTime": NOW_MICRO}}
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{NODE_LEASES}/leases"
    at_once = [tolerated(UNREACHABLE, 0)]
    async with cluster() as c:
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        await c.create(make_node("w1") | ready, make_node("w2") | ready)
        await c.create(make_pod("lost", nodeName="w1", tolerations=at_once))
        await c.create(make_pod("stays", nodeName="w2", tolerations=at_once))
        assert (await c.http.post(leases, json=lease)).status_code == 201
        async with managing(c.api.url, ManagerConfig(grace_s=0.2)):
            await c.pod_when("lost", lambda obj: "deletionTimestamp" in obj["metadata"])
            lost = (await c.http.get("/api/v1/nodes/w1")).json()
            assert lost["status"]["conditions"][0]["status"] == "Unknown"
            assert {entry["key"] for entry in lost["spec"]["taints"]} == {UNREACHABLE}
            [message] = await c.events("lost", "TaintManagerEviction")
            assert message == "Marking for deletion Pod default/lost"
            stays = (await c.http.get("/api/v1/namespaces/default/pods/stays")).json()
            assert "deletionTimestamp" not in stays["metadata"]
            assert "spec" not in (await c.http.get("/api/v1/nodes/w2")).json()


@pytest.mark.anyio
async def test_pods_of_lost_nodes_stay_until_a_node_is_ready(
    cluster: Any, make_node: Any, make_pod: Any
) -> None:
    """Source: `handleDisruption`: in full disruption of all zones evictions are stopped."""
    lost = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}

    def effects(obj: Any) -> set[str]:
        return {entry["effect"] for entry in obj.get("spec", {}).get("taints", ())}

    async with cluster() as c:
        await c.create(make_node("w1") | lost, make_node("w2") | lost)
        await c.create(make_pod("stays", nodeName="w1", tolerations=[tolerated(UNREACHABLE, 3600)]))
        async with managing(c.api.url, ManagerConfig()):
            for name in ("w1", "w2"):
                await c.when("/api/v1/nodes", name, lambda obj: effects(obj) == {"NoSchedule"})
            live = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
            patch = {"Content-Type": "application/strategic-merge-patch+json"}
            answer = await c.http.patch("/api/v1/nodes/w2/status", json=live, headers=patch)
            assert answer.is_success, answer.text
            await c.when("/api/v1/nodes", "w1", lambda obj: effects(obj) == {"NoSchedule", "NoExecute"})
            await c.when("/api/v1/nodes", "w2", lambda obj: not effects(obj))
            stays = (await c.http.get("/api/v1/namespaces/default/pods/stays")).json()
            assert "deletionTimestamp" not in stays["metadata"]


@pytest.mark.anyio
async def test_node_that_is_ready_again_has_no_taints(cluster: Any, make_node: Any) -> None:
    async with cluster() as c:
        lost = {"spec": {"taints": [taint(NOT_READY), taint("dedicated")]}}
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        await c.create(make_node("w1") | lost | ready)
        async with managing(c.api.url, ManagerConfig()):
            found = await c.when("/api/v1/nodes", "w1", lambda obj: len(obj["spec"]["taints"]) == 1)
            assert found["spec"]["taints"][0]["key"] == "dedicated"


@pytest.mark.anyio
async def test_pods_tolerate_a_lost_node_for_as_long_as_the_api_server_says(
    make_pod: Any, cluster: Any
) -> None:
    async with cluster(ApiConfig(tolerated_s=5)) as c:
        created = await c.create(make_pod("p"))
        assert [(entry["key"], entry["tolerationSeconds"]) for entry in created["spec"]["tolerations"]] == [
            (NOT_READY, 5),
            (UNREACHABLE, 5),
        ]
