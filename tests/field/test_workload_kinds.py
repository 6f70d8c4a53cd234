"""Workloads as projects publish them, with an annotation: their pods are counted, or named as uncounted.

The cases have the shapes of these, reduced to the fields that say how many pods there are:

- github.com/kubernetes-sigs/jobset, examples/simple/exclusive-placement.yaml
- github.com/kubernetes-sigs/lws, config/samples/leaderworkerset_multi_template.yaml and
  config/samples/disaggregatedset_v1_disaggregatedset.yaml
- github.com/kubeflow/mpi-operator, examples/v2beta1/nccl-tests/nccl-tests.yaml
- github.com/volcano-sh/volcano, example/integrations/mpi/mpi-example.yaml and
  example/integrations/argo/20-job-DAG.yaml
- github.com/ray-project/kuberay, ray-operator/config/samples/ray-job.tpu-v6e-16-multihost.yaml
- github.com/argoproj/argo-workflows, examples/steps.yaml, examples/dag-diamond.yaml and examples/loops.yaml
- github.com/ai-dynamo/dynamo, recipes/deepseek-r1/sglang/disagg-16gpu/deploy.yaml (v1alpha1) and
  recipes/deepseek-v4.1-flash/sglang/disagg-gb200/deploy-gke-rdma.yaml (v1beta1)
- github.com/project-codeflare/appwrapper, samples/wrapped-jobset.yaml
- github.com/knative/docs, code-samples/serving/hello-world; github.com/kserve/kserve, docs/samples/v1beta1
- github.com/kubeflow/spark-operator, examples/spark-pi.yaml
- github.com/kubernetes-sigs/kueue, keps/12385-was-podgroups/README.md, and Workloads that it makes of Jobs
- github.com/kubeflow/trainer, manifests/base/runtimes/torch_distributed.yaml
- github.com/kubernetes/enhancements, keps/sig-apps/5547-integrate-workload-with-job
- github.com/kubernetes-sigs/jobset, keps/969: `schedulingPolicy` and `replicatedJobs` were `policy` and
  `replicatedJobPolicies` before
- github.com/kubernetes-sigs/lws, site/content/en/docs/concepts/leaderworkerset/gang-scheduling/_index.md and
  keps/666-gang-scheduling-in-lws/README.md (examples of one level, and of three),
  pkg/schedulerprovider/phase_one.go (levels that exclude each other) and
  docs/examples/sample/gang-scheduling/lws-sample-volcano.yaml
"""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from field.manifests import ASKS, CONTAINERS, PLAIN, POD, Json, counts, lws, thing
from k8s_rdma.config.pod_templates import pod_templates
from k8s_rdma.errors import MalformedError
from k8s_rdma.planning.manifest_workloads import read_workloads


def job_set(jobs: int, **job: int) -> Json:
    replicated = {"name": "workers", "replicas": jobs, "template": {"spec": {**job, "template": POD}}}
    return thing("jobset.x-k8s.io/v1alpha2", "JobSet", {"replicatedJobs": [replicated]})


def argo(*templates: Json, **spec: Any) -> Json:
    return thing(
        "argoproj.io/v1alpha1", "Workflow", {"entrypoint": "main", "templates": list(templates), **spec}
    )


def step(template: str, **more: Any) -> Json:
    return {"name": "s", "template": template, **more}


TRAIN: Json = {"name": "train", "metadata": {"annotations": ASKS}, "container": CONTAINERS[0]}
CLEAN: Json = {"name": "clean", "container": CONTAINERS[0]}

COUNTED: tuple[tuple[str, Json, dict[str, int]], ...] = (
    (
        "workload of kueue",
        thing(
            "kueue.x-k8s.io/v1beta1", "Workload", {"podSets": [{"name": "main", "count": 3, "template": POD}]}
        ),
        {"default/x": 3},
    ),
    ("jobset", job_set(4, parallelism=8, completions=8), {"default/x": 32}),
    ("jobset whose jobs complete", job_set(2, parallelism=50, completions=2), {"default/x": 4}),
    ("jobset of one job", job_set(1), {"default/x": 1}),
    (
        "job",
        thing("batch/v1", "Job", {"completions": 2, "parallelism": 50, "template": POD}),
        {"default/x": 2},
    ),
    ("queue of work", thing("batch/v1", "Job", {"parallelism": 5, "template": POD}), {"default/x": 5}),
    ("job in turn", thing("batch/v1", "Job", {"completions": 5, "template": POD}), {"default/x": 1}),
    (
        "cronjob",
        thing(
            "batch/v1",
            "CronJob",
            {"jobTemplate": {"spec": {"parallelism": 3, "completions": 2, "template": POD}}},
        ),
        {"default/x": 2},
    ),
    (
        "leaderworkerset",
        thing(
            "leaderworkerset.x-k8s.io/v1",
            "LeaderWorkerSet",
            {
                "replicas": 3,
                "leaderWorkerTemplate": {"size": 4, "leaderTemplate": POD, "workerTemplate": POD},
            },
        ),
        {"default/x/leader": 3, "default/x/worker": 9},
    ),
    (
        "leaderworkerset without leaders",
        thing(
            "leaderworkerset.x-k8s.io/v1",
            "LeaderWorkerSet",
            {"replicas": 3, "leaderWorkerTemplate": {"size": 4, "workerTemplate": POD}},
        ),
        {"default/x": 12},
    ),
    (
        "mpijob",
        thing(
            "kubeflow.org/v2beta1",
            "MPIJob",
            {
                "mpiReplicaSpecs": {
                    "Launcher": {"template": PLAIN},
                    "Worker": {"replicas": 2, "template": POD},
                }
            },
        ),
        {"default/x/Worker": 2},
    ),
    (
        "pytorchjob",
        thing(
            "kubeflow.org/v1",
            "PyTorchJob",
            {
                "pytorchReplicaSpecs": {
                    "Master": {"template": POD},
                    "Worker": {"replicas": 7, "template": POD},
                }
            },
        ),
        {"default/x/Master": 1, "default/x/Worker": 7},
    ),
    (
        "volcano",
        thing(
            "batch.volcano.sh/v1alpha1",
            "Job",
            {
                "minAvailable": 3,
                "tasks": [
                    {"replicas": 1, "name": "mpimaster", "template": PLAIN},
                    {"replicas": 2, "name": "mpiworker", "template": POD},
                ],
            },
        ),
        {"default/x/mpiworker": 2},
    ),
    (
        "rayjob of several hosts",
        thing(
            "ray.io/v1",
            "RayJob",
            {
                "rayClusterSpec": {
                    "headGroupSpec": {"template": PLAIN},
                    "workerGroupSpecs": [
                        {"groupName": "tpu", "replicas": 1, "numOfHosts": 4, "template": POD},
                        {"groupName": "cpu", "minReplicas": 2, "maxReplicas": 9, "template": POD},
                    ],
                }
            },
        ),
        {"default/x/tpu": 4, "default/x/cpu": 2},
    ),
    ("argo's only template", argo({**TRAIN, "name": "main"}), {"default/x": 1}),
    (
        "argo's steps",
        argo(
            {"name": "main", "steps": [[step("clean")], [step("train"), step("train")], [step("train")]]},
            TRAIN,
            CLEAN,
        ),
        {"default/x/train": 2},
    ),
    (
        "argo's loop",
        argo({"name": "main", "steps": [[step("train", withItems=[1, 2, 3])]]}, TRAIN),
        {"default/x": 3},
    ),
    (
        "argo's annotation of all pods",
        argo(
            {"name": "main", "steps": [[step("clean"), step("clean")]]},
            CLEAN,
            podMetadata={"annotations": ASKS},
        ),
        {"default/x": 2},
    ),
    (
        "dynamo's services",
        thing(
            "nvidia.com/v1alpha1",
            "DynamoGraphDeployment",
            {
                "services": {
                    "Frontend": {"replicas": 1, "extraPodSpec": {"mainContainer": {"image": "c"}}},
                    "decode": {
                        "replicas": 2,
                        "multinode": {"nodeCount": 2},
                        "extraPodMetadata": {"annotations": ASKS},
                        "extraPodSpec": {"mainContainer": {"image": "c"}},
                    },
                }
            },
        ),
        {"default/x/decode": 4},
    ),
    (
        "dynamo's components",
        thing(
            "nvidia.com/v1beta1",
            "DynamoGraphDeployment",
            {
                "components": [
                    {"name": "Frontend", "replicas": 1, "podTemplate": PLAIN},
                    {"name": "PrefillWorker", "replicas": 3, "podTemplate": POD},
                ]
            },
        ),
        {"default/x/PrefillWorker": 3},
    ),
    (
        "appwrapper",
        thing(
            "workload.codeflare.dev/v1beta2",
            "AppWrapper",
            {"components": [{"template": job_set(2, parallelism=2, completions=2)}]},
        ),
        {"default/x": 4},
    ),
    (
        "knative with pods that stay",
        thing(
            "serving.knative.dev/v1",
            "Service",
            {
                "template": {
                    "metadata": {"annotations": {**ASKS, "autoscaling.knative.dev/min-scale": "3"}},
                    **PLAIN,
                }
            },
        ),
        {"default/x": 3},
    ),
    (
        "kserve",
        thing(
            "serving.kserve.io/v1beta1",
            "InferenceService",
            {"predictor": {"minReplicas": 2, "model": {"modelFormat": {"name": "vllm"}}}},
            annotations=ASKS,
        ),
        {"default/x": 2},
    ),
    ("statefulset", thing("apps/v1", "StatefulSet", {"replicas": 2, "template": POD}), {"default/x": 2}),
    ("rollout", thing("argoproj.io/v1alpha1", "Rollout", {"replicas": 2, "template": POD}), {"default/x": 2}),
)

LWS_ROLE = {"replicas": 2, "leaderWorkerTemplate": {"size": 1, "workerTemplate": POD}}

NAMED: tuple[tuple[str, Json, str], ...] = (
    (
        "a set of sets",
        thing(
            "disaggregatedset.x-k8s.io/v1",
            "DisaggregatedSet",
            {"slices": 2, "roles": [{"name": "prefill", "spec": LWS_ROLE}]},
        ),
        "DisaggregatedSet x: spec.roles[0].spec.leaderWorkerTemplate.workerTemplate: the number of pods that",
    ),
    (
        "a runtime of kubeflow's trainer",
        thing(
            "trainer.kubeflow.org/v1alpha1",
            "ClusterTrainingRuntime",
            {
                "mlPolicy": {"numNodes": 2},
                "template": {
                    "spec": {"replicatedJobs": [{"name": "node", "template": {"spec": {"template": POD}}}]}
                },
            },
        ),
        "ClusterTrainingRuntime x: spec.template.spec.replicatedJobs[0].template.spec.template: the number",
    ),
    (
        "a pod on each node",
        thing("apps/v1", "DaemonSet", {"template": POD}),
        "DaemonSet x: spec.template: it has a pod on each node that it may be on; say it by --count",
    ),
    (
        "pods by requests",
        thing("serving.knative.dev/v1", "Service", {"template": POD}),
        "Service x: spec.template: it has as many pods as there are requests",
    ),
    (
        "a loop over what a step says",
        argo({"name": "main", "steps": [[step("train", withParam="{{x}}")]]}, TRAIN),
        "Workflow x: spec.templates[1]: how many pods it has at once depends on its steps",
    ),
    (
        "pods of two kinds after each other",
        argo(
            {"name": "main", "steps": [[step("train")], [step("evaluate")]]},
            TRAIN,
            {**TRAIN, "name": "evaluate"},
        ),
        "Workflow x: spec.templates[1]: how many pods it has at once depends on its steps",
    ),
    (
        "tasks after each other",
        argo({"name": "main", "dag": {"tasks": [step("train"), step("train", dependencies=["s"])]}}, TRAIN),
        "Workflow x: spec.templates[1]: how many pods it has at once depends on its steps",
    ),
    (
        "a manifest that is a text",
        argo({"name": "main", "resource": {"action": "create", "manifest": yaml.safe_dump(job_set(1))}}),
        "Workflow x: spec.templates[0].resource.manifest: is a text that asks for interfaces",
    ),
    (
        "an operator that is not known",
        thing(
            "sparkoperator.k8s.io/v1beta2",
            "SparkApplication",
            {"executor": {"instances": 2, "annotations": ASKS}},
        ),
        "SparkApplication x: spec.executor.annotations: rdma_interfaces_required asks for interfaces",
    ),
    (
        "the annotation on the deployment",
        thing("apps/v1", "Deployment", {"replicas": 2, "template": PLAIN}, annotations=ASKS),
        "Deployment x: metadata.annotations: rdma_interfaces_required is on the Deployment; its pods have",
    ),
    (
        "the annotation on an unknown kind",
        thing("trainer.kubeflow.org/v1alpha1", "TrainJob", {"trainer": {"numNodes": 2}}, annotations=ASKS),
        "TrainJob x: metadata.annotations: rdma_interfaces_required asks for interfaces",
    ),
    (
        "no number",
        thing("batch.volcano.sh/v1alpha1", "Job", {"tasks": [{"replicas": "2", "template": POD}]}),
        "Job: spec.tasks[0].replicas: is no whole number",
    ),
    (
        "pods in the network of their node",
        thing(
            "apps/v1",
            "Deployment",
            {"template": {**POD, "spec": {"hostNetwork": True, "containers": CONTAINERS}}},
        ),
        "Deployment: spec.hostNetwork: a pod in its node's network gets no interfaces",
    ),
    (
        "pods that name their node",
        thing("batch/v1", "Job", {"template": {**POD, "spec": {"nodeName": "w1", "containers": CONTAINERS}}}),
        "Job: spec.nodeName: a pod that names its node is not placed; use nodeSelector",
    ),
    (
        "no object in a list",
        {"apiVersion": "v1", "kind": "List", "items": [{"kind": "List", "items": [3]}]},
        "List.items[0].items[0]: wanted a Kubernetes object",
    ),
)


@pytest.mark.parametrize(
    ("document", "expected"), [each[1:] for each in COUNTED], ids=[each[0] for each in COUNTED]
)
def test_pods_are_counted(document: Json, expected: dict[str, int]):
    assert counts(document) == expected


@pytest.mark.parametrize(
    ("document", "expected"), [each[1:] for each in COUNTED], ids=[each[0] for each in COUNTED]
)
def test_pods_in_a_list_are_counted(document: Json, expected: dict[str, int]):
    items = {"apiVersion": "v1", "kind": "List", "items": [document]}
    assert counts({"apiVersion": "v1", "kind": "List", "items": [items]}) == expected
    typed = {key: value for key, value in document.items() if key not in ("apiVersion", "kind")}
    listed = {"apiVersion": document["apiVersion"], "kind": f"{document['kind']}List", "items": [typed]}
    assert counts(listed) == expected


@pytest.mark.parametrize(
    ("document", "message"), [each[1:] for each in NAMED], ids=[each[0] for each in NAMED]
)
def test_uncountable_workloads_are_named_beside_counted_ones(document: Json, message: str):
    pod = {"apiVersion": "v1", "kind": "Pod", **POD}
    for documents in ((document,), (pod, document), (document, pod)):
        with pytest.raises(MalformedError) as refused:
            counts(*documents)
        assert refused.value.message.startswith(f"manifest: {message}")


JUNK = st.sampled_from([None, True, -1, 2.5, "x", [], {}, [3], [[3]], {"x": 3}, {3: 3}])


@st.composite
def damaged(draw: st.DrawFn) -> Json:
    """A manifest with another value somewhere."""
    document = copy.deepcopy(draw(st.sampled_from([each[1] for each in COUNTED])))
    place: Any = document
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = draw(st.sampled_from(keys))
        inner = place[key]
        if not (isinstance(inner, dict | list) and inner) or draw(st.booleans()):
            place[key] = draw(JUNK)
            return document
        place = inner


@given(damaged())
def test_fault_in_a_manifest_is_named(document: Json):
    with suppress(MalformedError):
        assert all(each.count >= 0 for each in read_workloads(yaml.safe_dump(document)).workloads)


def of_gang(*jobs: str, **spec: Any) -> Json:
    """A JobSet with these replicated jobs."""
    entries = [{"name": job, "replicas": 1, "template": {"spec": {"template": POD}}} for job in jobs]
    return thing("jobset.x-k8s.io/v1alpha2", "JobSet", {"replicatedJobs": entries, **spec})


GANG, BASIC = {"gang": {}}, {"basic": {}}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (of_gang("a", "b"), 0),
        (of_gang("a", "b", scheduling={}), 1),
        (of_gang("a", "b", scheduling={"schedulingPolicy": GANG}), 1),
        (of_gang("a", "b", scheduling={"policy": BASIC}), 0),
        (of_gang("a", "b", scheduling={}, startupPolicy={"startupPolicyOrder": "InOrder"}), 2),
        (
            of_gang(
                "a",
                "b",
                scheduling={
                    "replicatedJobs": [
                        {"name": "a", "schedulingPolicy": GANG},
                        {"name": "b", "schedulingPolicy": BASIC},
                    ]
                },
            ),
            1,
        ),
        (
            of_gang(
                "a",
                "b",
                scheduling={"replicatedJobPolicies": [{"targetReplicatedJob": "b", "policy": BASIC}]},
            ),
            1,
        ),
    ],
)
def test_jobs_of_a_job_set_are_the_gangs_that_it_makes(document: Json, expected: int):
    found = read_workloads(json.dumps(document)).workloads
    assert len({each.gang for each in found} - {""}) == expected
    assert len(found) == 2


@pytest.mark.parametrize(
    ("gang", "is_gang"), [({}, True), ({"minCount": 4}, True), ({"minCount": 2}, False), (None, False)]
)
def test_job_is_a_gang_if_all_its_pods_are_bound_together(gang: Json | None, *, is_gang: bool):
    scheduling = {"schedulingPolicy": {"basic": {}} if gang is None else {"gang": gang}}
    spec = {"parallelism": 4, "completions": 4, "scheduling": scheduling, "template": POD}
    [found] = read_workloads(json.dumps(thing("batch/v1", "Job", spec))).workloads
    assert bool(found.gang) is is_gang


ZONE = {"topology": [{"key": "topology.kubernetes.io/zone"}]}


@pytest.mark.parametrize(
    ("scheduling", "leaders", "workers"),
    [
        (None, [], []),
        ({}, [1] * 4, [2] * 4),
        ({"replica": {}}, [1] * 4, [2] * 4),
        ({"replica": {"schedulingPolicy": GANG, "disruptionMode": {"all": {}}}}, [1] * 4, [2] * 4),
        ({"replica": {"disruptionMode": {"all": {}}}}, [1] * 4, [2] * 4),
        ({"replica": {"schedulingPolicy": BASIC}}, [], []),
        ({"schedulingPolicy": GANG}, [4], [8]),
        ({"schedulingPolicy": BASIC}, [], []),
        ({"schedulingConstraints": ZONE}, [], []),
        ({"replica": {"leader": {"schedulingPolicy": GANG}}}, [], []),
        ({"replica": {"worker": {"schedulingPolicy": GANG}}}, [], [2] * 4),
        ({"replica": {"worker": {"schedulingPolicy": {"gang": {"minCount": 2}}}}}, [], [2] * 4),
        ({"replica": {"worker": {"schedulingPolicy": {"gang": {"minCount": 1}}}}}, [], []),
    ],
)
def test_pods_of_a_leader_worker_set_are_the_gangs_that_it_makes(
    scheduling: Json | None, leaders: list[int], workers: list[int]
):
    found = {each.name: each for each in read_workloads(json.dumps(lws(scheduling, size=3))).workloads}
    leader, worker = found["default/x/leader"], found["default/x/worker"]
    parts = [[each for each in workload.by_gang() if each.gang] for workload in (leader, worker)]
    assert [[each.count for each in part] for part in parts] == [leaders, workers]
    if leaders and workers:
        assert [each.gang for each in parts[0]] == [each.gang for each in parts[1]]
    assert len({each.gang for each in parts[1]}) == len(workers)
    assert (leader.count, worker.count) == (4, 8)


def test_leader_without_a_template_is_in_the_gang_of_its_replica():
    [found] = read_workloads(json.dumps(lws({}, leads=False, replicas=3, size=4))).workloads
    assert [each.count for each in found.by_gang()] == [4, 4, 4]
    assert len({each.gang for each in found.by_gang()}) == 3


def test_replicas_of_a_size_of_one_have_no_workers():
    found = read_workloads(json.dumps(lws({}, size=1))).workloads
    assert [(each.name, each.count, len(list(each.by_gang()))) for each in found] == [
        ("default/x/leader", 4, 4),
        ("default/x/worker", 0, 1),
    ]


TREE: Json = {
    "schedulingConstraints": ZONE,
    "replica": {"schedulingPolicy": GANG, "worker": {"schedulingPolicy": GANG}},
}


@pytest.mark.parametrize(
    "scheduling",
    [
        TREE,
        {"schedulingPolicy": GANG, "replica": {}},
        {"replica": {"disruptionMode": {"all": {}}, "leader": {}}},
    ],
)
def test_tree_of_pod_groups_is_refused_by_whatif_and_claim(scheduling: Json):
    document = lws(scheduling)
    said = "manifest: LeaderWorkerSet: spec.scheduling: groups pods at several levels, which is a tree"
    for read in (lambda: read_workloads(json.dumps(document)), lambda: pod_templates(document)):
        with pytest.raises(MalformedError) as refused:
            read()
        assert refused.value.message.startswith(said)


@pytest.mark.parametrize(
    ("scheduling", "field"),
    [
        ("gang", "spec.scheduling: is no object"),
        ({"replica": []}, "spec.scheduling.replica: is no object"),
        (
            {"replica": {"worker": {"schedulingPolicy": {"gang": {"minCount": "2"}}}}},
            "spec.scheduling.replica.worker.schedulingPolicy.gang.minCount: is no whole number",
        ),
    ],
)
def test_scheduling_of_another_type_is_named(scheduling: Any, field: str):
    with pytest.raises(MalformedError) as refused:
        read_workloads(json.dumps(lws(scheduling)))
    assert refused.value.message == f"manifest: LeaderWorkerSet: {field}"
