"""A whole cluster looked at, by the API server and, where it is one, this control-plane node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import yaml

from k8s_rdma.config.yaml_text import read_yaml
from k8s_rdma.doctor.cluster.components import (
    ExtenderFacts,
    VersionFacts,
    check_extender,
    check_versions,
)
from k8s_rdma.doctor.cluster.nodes import (
    NodeFacts,
    PodFact,
    PodFacts,
    PublishedNode,
    check_nodes,
    check_pods,
)
from k8s_rdma.doctor.cluster.objects import (
    CRD_NAME,
    CrdFacts,
    PolicyFacts,
    Right,
    RightsFacts,
    check_crd,
    check_policies,
    check_rights,
)
from k8s_rdma.doctor.cluster.rights import ACCOUNTS, rights
from k8s_rdma.doctor.cluster.scheduler import SchedulerFacts, SchedulerFile, check_scheduler
from k8s_rdma.doctor.looking.host import Host
from k8s_rdma.doctor.looking.node import looked_at
from k8s_rdma.doctor.looking.scheduler import named_file, of_kubeadm
from k8s_rdma.errors import MalformedError
from k8s_rdma.extender.config import ExtenderConfig
from k8s_rdma.kube.documents import Documents
from k8s_rdma.wire.annotation import ANNOTATION
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION
from k8s_rdma.wire.rdma_node import GROUP, PLURAL, VERSION, RdmaNodeStatus

if TYPE_CHECKING:
    from k8s_rdma.doctor.finding import Finding

POLICIES = frozenset({"k8s-rdma-annotation", "k8s-rdma-own-node"})
"""Those of deploy/policies that every cluster should have."""

_OURS = {"labelSelector": "app.kubernetes.io/name=k8s-rdma"}
_COMPONENT = "app.kubernetes.io/component"
_UNFINISHED = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
_CONFIGURATION = "k8s-rdma-extender"
_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_LATER = 50
"""Pods whose events are looked at."""


@dataclass(frozen=True, kw_only=True)
class ClusterLook:
    """What is looked at, each thing at most once.

    namespaces: where our objects may be, the likeliest first. host: this machine.
    scheduler_file, extender_file: configurations that the command line names.
    ask_extender: what came of asking it; None where nobody said where it is.
    """

    api: Documents
    host: Host
    namespaces: tuple[str, ...]
    scheduler_file: Path | None = None
    extender_file: Path | None = None
    ask_extender: Callable[[], ExtenderFacts] | None = None

    def findings(self) -> Iterator[Finding]:
        """All of them, subject by subject; what cannot be looked at is one of them."""
        subjects: tuple[tuple[str, Callable[[], Iterable[Finding]]], ...] = (
            ("versions", lambda: check_versions(self._versions())),
            ("scheduler", lambda: check_scheduler(self._scheduler())),
            ("extender", lambda: check_extender(self._extender_facts())),
            ("crd", lambda: check_crd(self._crd())),
            ("rights", lambda: check_rights(self._rights())),
            ("policies", lambda: check_policies(self._policies())),
            ("nodes", lambda: check_nodes(self._nodes())),
            ("pods", lambda: check_pods(self._pods())),
        )
        for name, look in subjects:
            yield from looked_at(name, look)

    @cached_property
    def version(self) -> str:
        """The API server's. K8sRdmaError where it cannot be asked."""
        return str((self.api.get("/version") or {}).get("gitVersion", "unknown"))

    @cached_property
    def _own_pods(self) -> tuple[dict[str, Any], ...]:
        return tuple(self.api.items("/api/v1/pods", _OURS))

    @cached_property
    def _config_map(self) -> tuple[str, dict[str, str]]:
        """The chart's for the extender: where it is, and what it holds; nothing where there is none."""
        for namespace in self.namespaces:
            path = f"/api/v1/namespaces/{namespace}/configmaps/{_CONFIGURATION}"
            if (found := self.api.get(path)) is not None:
                return f"ConfigMap {namespace}/{_CONFIGURATION}", found.get("data") or {}
        return "", {}

    @cached_property
    def _extender(self) -> ExtenderConfig | None:
        """The extender's configuration, where it is seen. MalformedError where it is none."""
        where, text = self._config_map[0], self._config_map[1].get("extender.yaml")
        if self.extender_file is not None:
            where, text = str(self.extender_file), self.extender_file.read_text(encoding="utf-8")
        if text is None:
            return None
        try:
            return msgspec.convert(read_yaml(text) or {}, ExtenderConfig)
        except (msgspec.ValidationError, ValueError, yaml.YAMLError) as error:
            msg = f"{where}: extender.yaml: {error}"
            raise MalformedError(msg) from error

    @property
    def _leases(self) -> str:
        """The namespace of nodes' Leases."""
        return (self._extender or ExtenderConfig()).node_lease_namespace

    @property
    def _crd_needed(self) -> bool | None:
        """Whether the extender reads RdmaNodes; None where its configuration is not seen."""
        return None if self._extender is None else self._extender.source == "crd"

    def _versions(self) -> VersionFacts:
        kubelets = (
            (_name(node), str(node.get("status", {}).get("nodeInfo", {}).get("kubeletVersion", "")))
            for node in self.api.items("/api/v1/nodes")
        )
        return VersionFacts(
            api=self.version,
            kubelets=tuple(kubelets),
            images=tuple(
                (_full_name(pod), str(container["image"]))
                for pod in self._own_pods
                for container in pod["spec"]["containers"]
                if "k8s-rdma" in str(container["image"]).rpartition("/")[2]
            ),
            extender=self._extender,
        )

    def _scheduler(self) -> SchedulerFacts:
        where, data = self._config_map
        found: list[SchedulerFile | None] = [
            named_file(self.scheduler_file) if self.scheduler_file else of_kubeadm(self.host)
        ]
        if "scheduler.yaml" in data:
            found.append(SchedulerFile(where=f"{where}, scheduler.yaml", text=data["scheduler.yaml"]))
        files = tuple(each for each in found if each is not None)
        if len(files) > 1 and self.scheduler_file is None:  # a second scheduler: the first need not know us
            files = files[1:]
        return SchedulerFacts(files=files, extender=self._extender or ExtenderConfig())

    def _extender_facts(self) -> ExtenderFacts:
        pods = tuple((_full_name(pod), _is_ready(pod)) for pod in self._component("extender"))
        asked = self.ask_extender() if self.ask_extender else ExtenderFacts()
        return ExtenderFacts(url=asked.url, refused=asked.refused, why=asked.why, pods=pods)

    def _crd(self) -> CrdFacts:
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{CRD_NAME}"
        fields = msgspec.structs.fields(RdmaNodeStatus)
        return CrdFacts(
            found=self.api.get(path),
            wanted=frozenset(each.encode_name for each in fields),
            needed=self._crd_needed,
        )

    def _rights(self) -> RightsFacts:
        config = self._extender or ExtenderConfig()
        binder = config.lease_namespace, config.lease_name
        found = []
        for process, account in ACCOUNTS.items():
            namespace = self._namespace_of(account)
            wanted = rights(
                process, leases=self._leases, lease_of_binder=binder, crd=self._crd_needed is not False
            )
            missing = tuple(each for each in wanted if namespace and not self._may(namespace, account, each))
            found.append((process, f"{namespace}/{account}" if namespace else "", missing))
        return RightsFacts(processes=tuple(found))

    def _namespace_of(self, account: str) -> str:
        """Where a service account is; empty where it is in none of our namespaces."""
        paths = ((each, f"/api/v1/namespaces/{each}/serviceaccounts/{account}") for each in self.namespaces)
        return next((namespace for namespace, path in paths if self.api.get(path) is not None), "")

    def _may(self, namespace: str, account: str, right: Right) -> bool:
        resource, _, subresource = right.resource.partition("/")
        attributes = {"verb": right.verb, "group": right.group, "resource": resource}
        attributes |= {"subresource": subresource, "namespace": right.namespace, "name": right.name}
        spec = {
            "user": f"system:serviceaccount:{namespace}:{account}",
            "groups": [
                "system:serviceaccounts",
                f"system:serviceaccounts:{namespace}",
                "system:authenticated",
            ],
            "resourceAttributes": {key: value for key, value in attributes.items() if value},
        }
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        return bool(self.api.ask(_REVIEWS, review).get("status", {}).get("allowed"))

    def _policies(self) -> PolicyFacts:
        there = {_name(each) for each in self.api.items(f"{_ADMISSION}/validatingadmissionpolicies")}
        bound = {
            each.get("spec", {}).get("policyName")
            for each in self.api.items(f"{_ADMISSION}/validatingadmissionpolicybindings")
        }
        return PolicyFacts(api=self.version, bound=frozenset(there & bound), wanted=POLICIES)

    def _nodes(self) -> NodeFacts:
        leases = f"/apis/coordination.k8s.io/v1/namespaces/{self._leases}/leases"
        renewed = {_name(each): each.get("spec", {}).get("renewTime") for each in self.api.items(leases)}
        published = self.api.items(f"/apis/{GROUP}/{VERSION}/{PLURAL}")
        agents = (str(pod["spec"].get("nodeName", "")) for pod in self._component("node"))
        return NodeFacts(
            published=tuple(self._published(each, renewed.get(_name(each))) for each in published),
            agents=frozenset(agents) - {""},
            lease_namespace=self._leases,
            stale_s=(self._extender or ExtenderConfig()).stale_s,
            needed=self._crd_needed is not False,
        )

    def _published(self, node: dict[str, Any], renewed: str | None) -> PublishedNode:
        conditions = (node.get("status") or {}).get("conditions") or ()
        ready: dict[str, Any] = next((each for each in conditions if each.get("type") == "Ready"), {})
        age = None if renewed is None else self.api.now() - datetime.fromisoformat(renewed)
        return PublishedNode(
            name=_name(node),
            ready=str(ready.get("status", "")),
            message=str(ready.get("message", "")),
            lease_age_s=None if age is None else max(0.0, age.total_seconds()),
        )

    def _pods(self) -> PodFacts:
        asking = [
            pod
            for pod in self.api.items("/api/v1/pods", _UNFINISHED)
            if (pod["metadata"].get("annotations") or {}).get(ANNOTATION, "").strip() not in {"", "[]"}
        ]
        facts = [_pod_fact(pod) for pod in asking]
        stuck = [pod for pod, fact in zip(asking, facts, strict=True) if not (fact.running and fact.placed)]
        told = {_full_name(pod): self._events(pod) for pod in stuck[:_LATER]}
        return PodFacts(pods=tuple(replace(each, events=told.get(each.name, ())) for each in facts))

    def _events(self, pod: dict[str, Any]) -> tuple[tuple[str, str], ...]:
        """Reason and message, the latest last."""
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/events"
        found = list(self.api.items(path, {"fieldSelector": f"involvedObject.uid={pod['metadata']['uid']}"}))
        found.sort(key=lambda each: str(each.get("lastTimestamp") or each.get("eventTime") or ""))
        return tuple((str(each.get("reason", "")), str(each.get("message", ""))) for each in found)

    def _component(self, name: str) -> Iterator[dict[str, Any]]:
        for pod in self._own_pods:
            if (pod["metadata"].get("labels") or {}).get(_COMPONENT) == name:
                yield pod


def _name(obj: dict[str, Any]) -> str:
    return str(obj["metadata"]["name"])


def _full_name(obj: dict[str, Any]) -> str:
    return f"{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)


def _pod_fact(pod: dict[str, Any]) -> PodFact:
    return PodFact(
        name=_full_name(pod),
        node=str(pod["spec"].get("nodeName") or ""),
        placed=PLACEMENT_ANNOTATION in (pod["metadata"].get("annotations") or {}),
        running=pod.get("status", {}).get("phase") == "Running",
        scheduler=str(pod["spec"].get("schedulerName") or "default-scheduler"),
    )
