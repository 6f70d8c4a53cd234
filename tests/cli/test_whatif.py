"""`k8s-rdma snapshot` and `whatif`: tables, documents and exit statuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cli.asking import k8s_rdma
from k8s_rdma.planning.snapshot import VERSION
from kube.stored_objects import serving_objects
from planning.test_snapshot import ASKS, configured, lists, node, pod, published

pytestmark = pytest.mark.anyio

RECORDED = str(Path(__file__).parents[1] / "recordings" / "snapshots" / f"{VERSION}.json")
ONE_VF = {"resources": {"limits": {"k8s-rdma.io/vf": "1"}}}
CLASSES = [{"metadata": {"name": "high"}, "value": 7}]
ONE = '[{"min_tx_rate": 1000}]'


def manifest(tmp_path: Path, text: str = ONE) -> str:
    path = tmp_path / "pod.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(("count", "status"), [(2, 0), (64, 1)])
async def test_exit_status_says_whether_pods_fit(count: int, status: int, tmp_path: Path):
    ran = await k8s_rdma(
        *("whatif", "fit", manifest(tmp_path), "--count", str(count), "--from", RECORDED, "--json")
    )
    assert ran.status == status
    answer = json.loads(ran.out)
    assert answer["fits"] == (status == 0)
    assert answer["workloads"][0]["count"] == count


async def test_whatif_without_a_file_is_about_waiting_pods():
    ran = await k8s_rdma("whatif", "fit", "--from", RECORDED)
    assert ran.status == 1
    assert "default/waits" in ran.out
    assert "not modelled: CPU" in ran.out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("headroom",), "Stranded: 34000 Mb/s without VFs"),
        (("without", "--node", "w1"), "6 pods would have to move: 5 fit elsewhere, 1 nowhere."),
        (("with", "--vfs", "32", "--headroom", "5%"), "DIFFERENCE"),
    ],
)
async def test_answers_are_tables(arguments: tuple[str, ...], text: str):
    ran = await k8s_rdma("whatif", *arguments, "--from", RECORDED)
    assert text in ran.out
    assert not ran.err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("without", "--node", "w9", "--from", RECORDED), "node w9: there is none"),
        (("headroom", "--from", "/absent.json"), "--from /absent.json: No such file"),
        (("headroom", "--from", __file__), "no snapshot: line 1"),
        (("with", "--headroom", "200", "--from", RECORDED), "0 to 100"),
        (("with", "--nodes", "2", "--from", RECORDED), "--nodes and --like go together"),
        (("with", "--like", "w1", "--from", RECORDED), "--nodes and --like go together"),
        (("with", "--from", RECORDED), "name a change: --vfs"),
        (("without", "--from", RECORDED), "name what fails: --node"),
        (("headroom",), "kubeconfig"),
    ],
)
async def test_unanswerable_question_has_status_2(arguments: tuple[str, ...], text: str):
    ran = await k8s_rdma("whatif", *arguments)
    assert ran.status == 2
    assert text in ran.err


async def test_evictions_are_shown_with_the_reason_for_no_others(tmp_path: Path):
    path = tmp_path / "cluster.json"
    pods = [pod("low", nodeName="w1", priority=-5, containers=[ONE_VF])]
    pods[0]["metadata"]["uid"] = "a"  # as the node reports it
    answers = lists(rdma_nodes=[published("w1")], nodes=[node("w1")], pods=pods, classes=CLASSES)
    answers = {**answers, **configured(vfResource="k8s-rdma.io/vf")}
    with serving_objects(answers, tmp_path) as config:
        path.write_text((await k8s_rdma("snapshot", "--kubeconfig", config)).out)
    template = {
        "metadata": {"annotations": ASKS},
        "spec": {"priorityClassName": "high", "containers": [ONE_VF]},
    }
    document = {"kind": "Job", "metadata": {"name": "j"}, "spec": {"parallelism": 9, "template": template}}
    file = manifest(tmp_path, json.dumps(document))
    ran = await k8s_rdma("whatif", "fit", file, "--preempt", "--from", str(path), COLUMNS="200")
    assert ran.status == 1
    assert "Not all pods fit: no place for 5 of 9." in ran.out
    assert "1 pod would be evicted: 0 fit elsewhere, 1 nowhere." in ran.out
    assert re.search(r"team/low +w1 +<none> +-5 +default/j +.*VFs", ran.out), ran.out
    assert "No pod is evicted for those that do not fit: evicting pods of lower priority makes no" in ran.out
    ran = await k8s_rdma("whatif", "fit", file, "--preempt", "--from", str(path), "--json")
    answer = json.loads(ran.out)
    assert answer["workloads"][0]["placed"] == 4
    assert [(entry["pod"], entry["priority"], entry["workload"]) for entry in answer["evictions"]] == [
        ("team/low", -5, "default/j")
    ]


async def test_malformed_manifest_has_status_2_and_names_the_field(tmp_path: Path):
    path = manifest(tmp_path, '[{"min_tx_rate": -5}]')
    ran = await k8s_rdma("whatif", "fit", path, "--from", RECORDED)
    assert ran.status == 2
    assert "rdma_interfaces_required[0].min_tx_rate" in ran.err


async def test_workloads_of_any_kind_are_counted_or_named(tmp_path: Path):
    template = {"metadata": {"annotations": ASKS}, "spec": {"containers": [{"name": "a"}]}}
    pod = {"apiVersion": "v1", "kind": "Pod", **template}
    job = {"spec": {"parallelism": 100, "template": template}}
    jobs = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "js"},
        "spec": {"replicatedJobs": [{"name": "w", "replicas": 100, "template": job}]},
    }
    file = manifest(tmp_path, f"{json.dumps(pod)}\n---\n{json.dumps(jobs)}")
    ran = await k8s_rdma("whatif", "fit", file, "--from", RECORDED, "--json")
    assert ran.status == 1
    assert {each["name"]: each["count"] for each in json.loads(ran.out)["workloads"]} == {
        "default/pod": 1,
        "default/js": 10_000,
    }
    daemons = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "d"}, "spec": job["spec"]}
    file = manifest(tmp_path, json.dumps({"kind": "List", "items": [pod, daemons]}))
    ran = await k8s_rdma("whatif", "fit", file, "--from", RECORDED)
    assert (ran.status, ran.out) == (2, "")
    assert "DaemonSet d: spec.template: it has a pod on each node" in ran.err
    for question in (("headroom",), ("with", "--vfs", "64")):
        ran = await k8s_rdma("whatif", *question, file, "--from", RECORDED)
        assert (ran.status, "default/d" in ran.out) == (0, True)


async def test_snapshot_of_a_cluster_answers_as_the_cluster_does(tmp_path: Path):
    answers = lists(rdma_nodes=[published("w1")], nodes=[node("w1")], pods=[pod("a")])
    with serving_objects(answers, tmp_path) as config:
        written = await k8s_rdma("snapshot", "--kubeconfig", config)
        asked = await k8s_rdma("whatif", "headroom", "--kubeconfig", config, "--json")
        anonymous = await k8s_rdma("snapshot", "--anonymous", "--kubeconfig", config)
    assert "ConfigMap k8s-rdma/k8s-rdma-extender: there is none" in written.err
    path = tmp_path / "cluster.json"
    path.write_text(written.out)
    again = await k8s_rdma("whatif", "headroom", "--from", str(path), "--json")
    assert again.out == asked.out
    assert '"w1"' in written.out
    assert '"w1"' not in anonymous.out
