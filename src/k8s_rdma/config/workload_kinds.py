"""Kinds of objects that make pods: the places of their pods' templates, and how many pods each makes.

Sources: the API types and defaults of Kubernetes 1.36, JobSet 0.8, LeaderWorkerSet 0.7, Kubeflow's Training
operator 1.9 and MPI operator 0.6, KubeRay 1.4, Volcano 1.12, Argo Workflows 3.7, Knative Serving 1.19,
KServe 0.15, Dynamo 1.0, Kueue 0.14; of gangs Kubernetes 1.37 (`spec.scheduling` of a Job, KEP 5547), JobSet's
KEP 969, Kueue's KEP 12385 and LeaderWorkerSet's KEP 666.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.annotation_values import ANNOTATION, ANNOTATION_ALIAS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Path: TypeAlias = tuple[str | int, ...]
"""Keys and indices from an object's root."""

_GROUPING = ("schedulingPolicy", "schedulingConstraints", "disruptionMode")
"""Fields of a level of a LeaderWorkerSet's `spec.scheduling` that make groups of that level's pods."""

_Reader: TypeAlias = "Callable[[_Fields], Iterator[PodSource]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSource:
    """A place in an object that pods are made from.

    path: of a pod template, that is an object with `metadata` and `spec`; if `pod` is given, of the part that
        stands for one.
    pod: metadata and spec of the pods, if there is no template of them.
    annotations: the places of the pods' annotations, if not in the template's metadata.
    part: distinguishes the pods from others of the same object.
    count: of the pods at a time; None if the object does not determine it.
    why: the reason for None.
    gang: the name of the gang that the object's controller puts these pods in, among gangs of the object,
        if it does.
    gang_size: the number of them in each gang of that name; 0 if all of them are in one.
    """

    path: Path
    count: int | None
    why: str = ""
    part: str = ""
    pod: dict[str, Any] | None = None
    annotations: tuple[Path, ...] = ()
    gang: str | None = None
    gang_size: int = 0


def sources_of(document: dict[str, Any]) -> Iterator[PodSource]:
    """Yield the places that an object of a known kind makes pods from, including absent ones.

    MalformedError names a field that should be a number and is not.
    """
    kind, api = document["kind"], document.get("apiVersion")
    group = api.rpartition("/")[0] if isinstance(api, str) else None
    for (known_group, known_kind), reader in _KINDS.items():
        if kind == known_kind and group in (None, known_group):
            yield from reader(_Fields(document))
            return


@dataclass(frozen=True, slots=True)
class _Fields:
    """Reads fields of an object, with faults by their paths."""

    document: dict[str, Any]

    def get(self, *path: str | int) -> Any:
        """Return the value at a path, if there is one."""
        return value_at(self.document, path)

    def number(self, *path: str | int, default: int = 1) -> int:
        """Return the whole number at a path. MalformedError for any other value."""
        found = self.get(*path)
        if found is None:
            return default
        if isinstance(found, bool) or not isinstance(found, int) or found < 0:
            self.refuse(path, "is no whole number")
        return found

    def mapping(self, *path: str | int) -> dict[str, Any]:
        """Return the object at a path, an empty one if there is none. MalformedError for any other value."""
        found = self.get(*path)
        if found is not None and not isinstance(found, dict):
            self.refuse(path, "is no object")
        return found or {}

    def array(self, *path: str | int) -> list[Any]:
        """Return the array at a path, an empty one if there is none. MalformedError for any other value."""
        found = self.get(*path)
        if found is not None and not isinstance(found, list):
            self.refuse(path, "is no array")
        return found or []

    def refuse(self, path: Path, why: str) -> NoReturn:
        """Raise the MalformedError of a field."""
        raise MalformedError(f"manifest: {self.document['kind']}: {dotted(path)}: {why}")

    def entries(self, *path: str | int) -> Iterator[tuple[Path, str]]:
        """Yield the paths of an array's or object's entries that are objects, each with its name."""
        found = self.get(*path)
        pairs = (
            found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
        )
        for key, entry in pairs:
            if isinstance(entry, dict):
                name = entry.get("name", entry.get("groupName"))
                yield (*path, key), name if isinstance(name, str) else str(key)


def value_at(document: Any, path: Path) -> Any:
    """Return the value at a path in an object, if there is one."""
    found = document
    for key in path:
        if isinstance(key, int):
            found = found[key] if isinstance(found, list) and key < len(found) else None
        else:
            found = found.get(key) if isinstance(found, dict) else None
    return found


def dotted(path: Path) -> str:
    """Return a path as messages have it: `spec.tasks[0].template`."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).removeprefix(".")


# Kubernetes


def _pod(_: _Fields) -> Iterator[PodSource]:
    yield PodSource(path=(), count=1)


def _pod_template(_: _Fields) -> Iterator[PodSource]:
    yield PodSource(path=("template",), count=1)


def _replicated(fields: _Fields) -> Iterator[PodSource]:
    yield PodSource(path=("spec", "template"), count=fields.number("spec", "replicas"))


def _on_each_node(_: _Fields) -> Iterator[PodSource]:
    yield PodSource(path=("spec", "template"), count=None, why="it has a pod on each node that it may be on")


def _job_pods(fields: _Fields, *spec: str | int) -> int:
    """Return a Job's pods at a time, which are never more than are to complete (batch/v1 JobSpec)."""
    parallelism = fields.number(*spec, "parallelism")
    return min(parallelism, fields.number(*spec, "completions", default=parallelism))


def _job(fields: _Fields) -> Iterator[PodSource]:
    policy = ("spec", "scheduling", "schedulingPolicy", "gang")
    count = _job_pods(fields, "spec")
    is_gang = isinstance(fields.get(*policy), dict)
    binds_all = is_gang and fields.number(*policy, "minCount", default=count) >= count
    yield PodSource(path=("spec", "template"), count=count, gang="" if binds_all else None)


def _cron_job(fields: _Fields) -> Iterator[PodSource]:
    spec = ("spec", "jobTemplate", "spec")
    yield PodSource(path=(*spec, "template"), count=_job_pods(fields, *spec))


# Groups of pods


def _job_set(fields: _Fields) -> Iterator[PodSource]:
    for path, name in fields.entries("spec", "replicatedJobs"):
        spec = (*path, "template", "spec")
        jobs = fields.number(*path, "replicas")
        yield PodSource(
            path=(*spec, "template"),
            count=jobs * _job_pods(fields, *spec),
            part=name,
            gang=_job_set_gang(fields, name),
        )


def _job_set_gang(fields: _Fields, job: str) -> str | None:
    """Return the gang of a replicated job; its alpha API has changed the names of its fields since.

    Without policies of their own all jobs are one gang, or each is one if they start in order.
    """
    scheduling = ("spec", "scheduling")
    if not isinstance(fields.get(*scheduling), dict):
        return None
    entries = [
        *fields.array(*scheduling, "replicatedJobs"),
        *fields.array(*scheduling, "replicatedJobPolicies"),
    ]
    own = [entry for entry in entries if isinstance(entry, dict)]
    named = [entry for entry in own if job in _targets(entry)]
    policy = _policy(named[0]) if named else _policy(fields.mapping(*scheduling))
    if "basic" in policy:
        return None
    in_order = fields.get("spec", "startupPolicy", "startupPolicyOrder") == "InOrder"
    return job if own or in_order else ""


def _targets(entry: Mapping[str, Any]) -> Collection[Any]:
    """Return the replicated jobs that an entry of `spec.scheduling` is for."""
    found = entry.get("targetReplicatedJob", entry.get("targetReplicatedJobs", entry.get("name")))
    return found if isinstance(found, list) else (found,)


def _policy(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    found = entry.get("schedulingPolicy", entry.get("policy"))
    return found if isinstance(found, dict) else {}


def _leader_worker_set(fields: _Fields) -> Iterator[PodSource]:
    template = ("spec", "leaderWorkerTemplate")
    groups, size = fields.number("spec", "replicas"), fields.number(*template, "size")
    leads = isinstance(fields.get(*template, "leaderTemplate"), dict)
    workers = max(size - 1, 0) if leads else size
    gang = _leader_worker_gang(fields, size)
    if leads:
        yield PodSource(
            path=(*template, "leaderTemplate"),
            count=groups,
            part="leader",
            gang="" if gang in ("set", "replica") else None,
            gang_size=1 if gang == "replica" else 0,
        )
    yield PodSource(
        path=(*template, "workerTemplate"),
        count=groups * workers,
        part="worker" if leads else "",
        gang=gang and "",
        gang_size=workers if gang in ("replica", "worker") else 0,
    )


def _leader_worker_gang(fields: _Fields, size: int) -> str | None:
    """Return the pods of a LeaderWorkerSet that make a gang: of the `set`, of a `replica`, or its `worker`s.

    None if no policy binds all of them together. A leader without a template of its own counts with the
    workers. MalformedError for groups of several levels, which would be a tree.
    """
    scheduling = ("spec", "scheduling")
    if fields.get(*scheduling) is None:
        return None
    whole, replica = fields.mapping(*scheduling), fields.mapping(*scheduling, "replica")
    has_roles = any(replica.get(role) is not None for role in ("leader", "worker"))
    of_replica = any(replica.get(name) is not None for name in _GROUPING)
    levels = {
        "set": any(whole.get(name) is not None for name in _GROUPING),
        "replica": of_replica or (whole.get("replica") is not None and not has_roles),
        "worker": has_roles,
    }
    if sum(levels.values()) > 1:
        fields.refuse(
            scheduling, "groups pods at several levels, which is a tree of pod groups; keep one level"
        )
    level = next((name for name, is_active in levels.items() if is_active), "replica")
    policies = {
        "set": scheduling,
        "replica": (*scheduling, "replica"),
        "worker": (*scheduling, "replica", "worker"),
    }
    policy = (*policies[level], "schedulingPolicy")
    if fields.get(*policy) is None:
        return "replica" if level == "replica" else None
    members = size - 1 if level == "worker" else 1
    is_gang = isinstance(fields.get(*policy, "gang"), dict)
    binds_all = is_gang and fields.number(*policy, "gang", "minCount", default=members) >= members
    return level if binds_all else None


def _kubeflow(fields: _Fields) -> Iterator[PodSource]:
    """Yield the roles of PyTorchJob, MPIJob and their like, below a key such as `pytorchReplicaSpecs`."""
    api = fields.get("apiVersion")
    for key in fields.mapping("spec"):
        if str(key).endswith(("ReplicaSpecs", "replicaSpecs")):
            for path, name in fields.entries("spec", key):
                default = 0 if name == "Worker" and api == "kubeflow.org/v2beta1" else 1
                replicas = fields.number(*path, "replicas", default=default)
                yield PodSource(path=(*path, "template"), count=replicas, part=name)


def _volcano_job(fields: _Fields) -> Iterator[PodSource]:
    for path, name in fields.entries("spec", "tasks"):
        yield PodSource(
            path=(*path, "template"), count=fields.number(*path, "replicas", default=0), part=name
        )


def _ray_cluster(fields: _Fields, *spec: str | int) -> Iterator[PodSource]:
    yield PodSource(path=(*spec, "headGroupSpec", "template"), count=1, part="head")
    for path, name in fields.entries(*spec, "workerGroupSpecs"):
        least = fields.number(*path, "minReplicas", default=0)
        largest = fields.number(*path, "maxReplicas", default=2**31 - 1)
        replicas = min(max(fields.number(*path, "replicas", default=least), least), largest)
        hosts = fields.number(*path, "numOfHosts")
        suspended = fields.get(*path, "suspend") is True
        yield PodSource(path=(*path, "template"), count=0 if suspended else replicas * hosts, part=name)


def _ray_job(fields: _Fields) -> Iterator[PodSource]:
    yield PodSource(path=("spec", "submitterPodTemplate"), count=1, part="submitter")
    yield from _ray_cluster(fields, "spec", "rayClusterSpec")


def _ray_service(fields: _Fields) -> Iterator[PodSource]:
    key = "rayClusterConfig" if fields.get("spec", "rayClusterConfig") is not None else "rayClusterSpec"
    yield from _ray_cluster(fields, "spec", key)


def _kueue_workload(fields: _Fields) -> Iterator[PodSource]:
    """Yield the sets of pods of Kueue's Workload, which it makes of the object that makes the pods."""
    for path, name in fields.entries("spec", "podSets"):
        yield PodSource(path=(*path, "template"), count=fields.number(*path, "count"), part=name)


# Argo Workflows


def _workflow(*spec: str) -> Callable[[_Fields], Iterator[PodSource]]:
    """Return the reader of workflows whose specification is at a path."""

    def read(fields: _Fields) -> Iterator[PodSource]:
        templates = {name: path for path, name in fields.entries(*spec, "templates")}
        shared = (*spec, "podMetadata", "annotations")
        pods = {name: _workflow_pod(fields, path, spec, shared) for name, path in templates.items()}
        entry = fields.get(*spec, "entrypoint")
        steps = _Steps(
            fields, templates, {name for name, pod in pods.items() if pod and _requests_interfaces(pod)}
        )
        at_once = steps.pods_at_once(entry) if isinstance(entry, str) else None
        for name, path in templates.items():
            pod = pods[name]
            if pod is not None:
                yield PodSource(
                    path=path,
                    count=None if at_once is None else at_once[name],
                    why="how many pods it has at once depends on its steps, on loops or on other templates",
                    part=name if len(templates) > 1 else "",
                    pod=pod,
                    annotations=((*path, "metadata", "annotations"), shared),
                )

    return read


def _workflow_pod(fields: _Fields, path: Path, spec: Path, shared: Path) -> dict[str, Any] | None:
    """Return the pod of a template, if it makes one; `steps`, for example, make no pod."""
    containers = fields.array(*path, "containerSet", "containers") or [
        found for key in ("container", "script") if isinstance(found := fields.get(*path, key), dict)
    ]
    if not containers:
        return None
    chosen = {
        key: fields.get(*path, key) or fields.get(*spec, key)
        for key in ("nodeSelector", "tolerations", "affinity", "priorityClassName", "hostNetwork")
    }
    annotations = {**fields.mapping(*shared), **fields.mapping(*path, "metadata", "annotations")}
    return {
        "metadata": {"labels": fields.mapping(*path, "metadata", "labels"), "annotations": annotations},
        "spec": {
            **{key: value for key, value in chosen.items() if value is not None},
            "containers": [*containers, *fields.array(*path, "sidecars")],
            "initContainers": fields.array(*path, "initContainers"),
        },
    }


def _requests_interfaces(pod: Mapping[str, Any]) -> bool:
    return not {ANNOTATION, ANNOTATION_ALIAS}.isdisjoint(pod["metadata"]["annotations"])


@dataclass(frozen=True, slots=True)
class _Steps:
    """The pods with interfaces that a workflow has at once.

    templates: paths by name.
    requesting: those of pods with interfaces.
    counted: the results so far.
    """

    fields: _Fields
    templates: Mapping[str, Path]
    requesting: Collection[str]
    counted: dict[str, Counter[str] | None] = field(default_factory=dict)

    def pods_at_once(self, name: str, above: tuple[str, ...] = ()) -> Counter[str] | None:
        """Count the pods that a template has at once, by template, if the workflow determines it."""
        if name in above:
            return None
        if name not in self.counted:
            self.counted[name] = self._count(name, above)
        return self.counted[name]

    def _count(self, name: str, above: tuple[str, ...]) -> Counter[str] | None:
        path = self.templates.get(name)
        if path is None:
            return None
        if self.fields.get(*path, "steps") is not None:
            groups = [
                self._together(entries, (*above, name))
                for entries in self.fields.array(*path, "steps")
                if isinstance(entries, list)
            ]
            return _one_after_another(groups)
        tasks = self.fields.get(*path, "dag", "tasks")
        if isinstance(tasks, list):
            ordered = any(
                isinstance(task, dict) and {"dependencies", "depends"} & task.keys() for task in tasks
            )
            return None if ordered else self._together(tasks, (*above, name))
        return Counter({name: 1} if name in self.requesting else {})

    def _together(self, entries: list[Any], above: tuple[str, ...]) -> Counter[str] | None:
        """Add up the pods of steps that begin together."""
        total: Counter[str] = Counter()
        for entry in entries:
            times, template = _times(entry), entry.get("template") if isinstance(entry, dict) else None
            pods = self.pods_at_once(template, above) if isinstance(template, str) else None
            if times is None or pods is None:
                return None
            total.update({name: number * times for name, number in pods.items()})
        return total


def _one_after_another(groups: list[Counter[str] | None]) -> Counter[str] | None:
    """Return the pods of the largest group, unless each of two groups has more of one template."""
    largest: Counter[str] = Counter()
    for group in groups:
        if group is None:
            return None
        largest |= group
    return largest if largest in groups or not largest else None


def _times(step: Any) -> int | None:
    """Return how often a step is run at once, unless that is known at run time only."""
    if not isinstance(step, dict) or {"withParam", "withSequence"} & step.keys():
        return None
    items = step.get("withItems")
    return 1 if items is None else len(items) if isinstance(items, list) else None


# Serving


def _knative_service(fields: _Fields) -> Iterator[PodSource]:
    annotations = fields.mapping("spec", "template", "metadata", "annotations")
    least = annotations.get(
        "autoscaling.knative.dev/min-scale", annotations.get("autoscaling.knative.dev/minScale")
    )
    number = int(least) if isinstance(least, str) and least.isdecimal() else 0
    yield PodSource(
        path=("spec", "template"),
        count=number or None,
        why="it has as many pods as there are requests, and autoscaling.knative.dev/min-scale is not given",
    )


def _inference_service(fields: _Fields) -> Iterator[PodSource]:
    """Yield KServe's components, whose pods have the annotations of the object and of the component."""
    for part in ("predictor", "transformer", "explainer"):
        component = fields.get("spec", part)
        if not isinstance(component, dict):
            continue
        shared, own = ("metadata", "annotations"), ("spec", part, "annotations")
        least = fields.number("spec", part, "minReplicas")
        has_workers = component.get("workerSpec") is not None
        yield PodSource(
            path=("spec", part),
            count=None if has_workers or not least else least,
            why="workerSpec makes further pods" if has_workers else "minReplicas is 0",
            part=part,
            pod={
                "metadata": {"annotations": {**fields.mapping(*shared), **fields.mapping(*own)}},
                "spec": _inference_spec(component),
            },
            annotations=(shared, own),
        )


def _inference_spec(component: Mapping[str, Any]) -> dict[str, Any]:
    model = component.get("model")
    containers = component.get("containers") or ([model] if isinstance(model, dict) else [])
    return {
        **{
            key: component[key]
            for key in ("nodeSelector", "tolerations", "affinity", "priorityClassName", "hostNetwork")
            if key in component
        },
        "containers": containers,
    }


def _dynamo_graph(fields: _Fields) -> Iterator[PodSource]:
    for path, name in fields.entries("spec", "components"):
        nodes = fields.number(*path, "multinode", "nodeCount")
        yield PodSource(
            path=(*path, "podTemplate"), count=fields.number(*path, "replicas") * nodes, part=name
        )
    for path, name in fields.entries("spec", "services"):
        nodes = fields.number(*path, "multinode", "nodeCount")
        own = ((*path, "annotations"), (*path, "extraPodMetadata", "annotations"))
        annotations = {key: text for place in own for key, text in fields.mapping(*place).items()}
        spec = fields.mapping(*path, "extraPodSpec")
        main = spec.get("mainContainer")
        containers = [
            *([main] if isinstance(main, dict) else ()),
            *fields.array(*path, "extraPodSpec", "containers"),
        ]
        yield PodSource(
            path=path,
            count=fields.number(*path, "replicas") * nodes,
            part=name,
            pod={"metadata": {"annotations": annotations}, "spec": {**spec, "containers": containers}},
            annotations=own,
        )


_KINDS: Mapping[tuple[str, str], _Reader] = {
    ("", "Pod"): _pod,
    ("", "PodTemplate"): _pod_template,
    ("", "ReplicationController"): _replicated,
    ("apps", "DaemonSet"): _on_each_node,
    ("apps", "Deployment"): _replicated,
    ("apps", "ReplicaSet"): _replicated,
    ("apps", "StatefulSet"): _replicated,
    ("batch", "CronJob"): _cron_job,
    ("batch", "Job"): _job,
    ("apps.kruise.io", "CloneSet"): _replicated,
    ("apps.kruise.io", "DaemonSet"): _on_each_node,
    ("apps.kruise.io", "StatefulSet"): _replicated,
    ("apps.openshift.io", "DeploymentConfig"): _replicated,
    ("argoproj.io", "CronWorkflow"): _workflow("spec", "workflowSpec"),
    ("argoproj.io", "ClusterWorkflowTemplate"): _workflow("spec"),
    ("argoproj.io", "Rollout"): _replicated,
    ("argoproj.io", "Workflow"): _workflow("spec"),
    ("argoproj.io", "WorkflowTemplate"): _workflow("spec"),
    ("batch.volcano.sh", "Job"): _volcano_job,
    ("jobset.x-k8s.io", "JobSet"): _job_set,
    ("kueue.x-k8s.io", "Workload"): _kueue_workload,
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): _leader_worker_set,
    **{
        ("kubeflow.org", kind): _kubeflow
        for kind in ("JAXJob", "MPIJob", "MXJob", "PaddleJob", "PyTorchJob", "TFJob", "XGBoostJob")
    },
    ("nvidia.com", "DynamoGraphDeployment"): _dynamo_graph,
    ("ray.io", "RayCluster"): lambda fields: _ray_cluster(fields, "spec"),
    ("ray.io", "RayJob"): _ray_job,
    ("ray.io", "RayService"): _ray_service,
    ("serving.knative.dev", "Service"): _knative_service,
    ("serving.kserve.io", "InferenceService"): _inference_service,
}
"""Readers by API group and kind. An object without apiVersion is taken for the first of its kind."""
