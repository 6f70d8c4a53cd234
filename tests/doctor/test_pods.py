"""Findings on pods that ask for interfaces, beside the table of cases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from doctor.cases.pods import NO_AGENT, OLD_KEY, POD, SCHEDULERS_SEEN, SHORT, pod
from k8s_rdma.doctor.cluster.pods import PodFact, PodFacts, check_pods


def test_pod_of_a_scheduler_that_was_seen_to_place_is_not_reported():
    """A configuration that is no longer used does not show who asks."""
    waiting = replace(POD, name="default/b", node="", running=False, placed=False)
    placed = PodFacts(pods=(POD, waiting), schedulers=SCHEDULERS_SEEN)
    assert [each.id for each in check_pods(placed)] == ["pods-waiting"]


def test_pod_of_the_scheduler_that_asks_waits_as_any_other():
    found = pod(SCHEDULERS_SEEN, node="", running=False, placed=False, scheduler="rdma-scheduler")
    assert [each.id for each in found] == ["pods-waiting"]


def test_pod_that_names_an_unseen_scheduler_is_reported_so():
    [found] = pod(SCHEDULERS_SEEN, node="", running=False, placed=False, scheduler="rdma-sheduler")
    assert (found.id, "no scheduler of that name is known" in found.found) == ("pods-waiting", True)


def test_bound_pod_without_a_placement_is_reported_so_whatever_its_node_says():
    [found] = pod(running=False, placed=False, events=(SHORT,))
    assert (found.id, found.found) == (
        "pods-unplaced",
        f"default-scheduler bound it to w1 without a placement; {SHORT[1]}",
    )
    [found] = pod(SCHEDULERS_SEEN[1:], running=False, placed=False)
    assert found.fix.startswith("schedulerName: rdma-scheduler in the pod template")
    [found] = pod(SCHEDULERS_SEEN[1:], running=False, placed=False, scheduler="rdma-scheduler")
    assert "managedResources" in found.fix


@pytest.mark.parametrize("event", [SHORT, NO_AGENT])
def test_pod_of_another_scheduler_is_reported_so_whatever_its_node_says(event):
    [found] = pod(SCHEDULERS_SEEN, running=False, placed=False, events=(event,))
    assert (found.id, found.fix.partition(" in ")[0]) == (
        "pods-other-scheduler",
        "schedulerName: rdma-scheduler",
    )


@pytest.mark.parametrize(
    ("plugin", "id_"),
    [
        ('type="k8s-rdma-cni"', "pods-not-started"),
        ('type="k8s-rdma-cni" name="pods"', "pods-not-started"),
        ('type="rit-k8s-rdma-cni-linux-amd64"', "pods-not-started"),
        ('type="multus" failed (add): [default/a:x]: plugin type="k8s-rdma-cni"', "pods-not-started"),
        ('type="flannel"', "pods-ok"),
    ],
)
def test_pod_whose_sandbox_our_plugin_refuses_is_reported(plugin, id_):
    event = ("FailedCreatePodSandBox", f"Failed to create pod sandbox: plugin {plugin} failed (add): no: x")
    [found] = pod(running=False, events=(event,))
    assert found.id == id_
    assert id_ == "pods-ok" or found.found == "is not started on w1: no: x"


def test_pod_that_got_its_sandbox_since_is_well():
    assert [each.id for each in pod(running=False, events=(NO_AGENT, ("Pulling", "image x")))] == ["pods-ok"]
    assert [each.id for each in pod(running=False, events=(("Pulling", "image x"), NO_AGENT))] == [
        "pods-not-started"
    ]


def test_pod_whose_agent_has_another_key_is_reported_also_by_an_event_of_kubelet_alone():
    event = ("FailedCreatePodSandBox", NO_AGENT[1] + ": " + OLD_KEY[1])
    assert [each.id for each in pod(running=False, events=(event,))] == ["pods-other-key"]


def test_pod_without_a_placement_is_in_order_if_the_scheduler_binds():
    unplaced = PodFacts(pods=(replace(POD, placed=False),), extender_binds=False)
    assert [each.id for each in check_pods(unplaced)] == ["pods-ok"]


def test_pod_that_runs_without_a_placement_is_reported_and_one_with_it_is_not():
    assert [each.id for each in pod(running=True, placed=True)] == ["pods-ok"]
    assert [each.id for each in pod(running=True, placed=False)] == ["pods-unplaced"]


def test_many_stuck_pods_are_reported_in_few_lines():
    waiting = tuple(PodFact(name=f"default/p{n}", node="", placed=False, running=False) for n in range(300))
    found = list(check_pods(PodFacts(pods=waiting)))
    assert len(found) == 21
    assert found[-1].found == "and 280 more pods"
