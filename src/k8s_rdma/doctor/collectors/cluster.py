"""Collects the facts of a whole cluster: objects, pods with their events, and kube-scheduler's configuration.

kube-scheduler's configuration may be in a file that is named, in the place that kubeadm's manifest names, and
in ConfigMaps; kubeadm's pods show whether they have one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import yaml

from k8s_rdma import __version__
from k8s_rdma.config.bounded_files import read_named_text
from k8s_rdma.config.extender import ExtenderConfig
from k8s_rdma.config.faults import fit
from k8s_rdma.config.files import parse_config
from k8s_rdma.config.namespace_policies import PoliciesFile
from k8s_rdma.core.inventory import CLAIMS_POOL
from k8s_rdma.core.namespace_policy import NO_POLICIES, NamespacePolicies
from k8s_rdma.doctor.checks import collected, run_checks
from k8s_rdma.doctor.cluster.claims import ClaimFacts
from k8s_rdma.doctor.cluster.components import ExtenderFacts, KeyFacts
from k8s_rdma.doctor.cluster.crd import CrdFacts
from k8s_rdma.doctor.cluster.nodes import PublishedNodeFacts
from k8s_rdma.doctor.cluster.pods import PodFacts
from k8s_rdma.doctor.cluster.policies import PolicyFacts
from k8s_rdma.doctor.cluster.rates import RunningRates
from k8s_rdma.doctor.cluster.rights import ACCOUNTS, OPTIONAL, Right, RightsFacts, rights
from k8s_rdma.doctor.cluster.scheduler import (
    DEFAULT_NAME,
    Profile,
    SchedulerFacts,
    SchedulerFile,
    profiles,
)
from k8s_rdma.doctor.cluster.versions import VersionFacts
from k8s_rdma.doctor.cluster.webhook import WebhookFacts
from k8s_rdma.doctor.cluster.workloads import WorkloadFacts
from k8s_rdma.doctor.collectors.annotated_workloads import annotated_workloads
from k8s_rdma.doctor.collectors.asking_pods import asking_pods
from k8s_rdma.doctor.collectors.claims import claim_facts
from k8s_rdma.doctor.collectors.crd import crd_facts
from k8s_rdma.doctor.collectors.host import Host
from k8s_rdma.doctor.collectors.objects import OURS, api_version, full_name, mounts_of, of_images, versions_of
from k8s_rdma.doctor.collectors.published_nodes import PublishedStatus, published_node, published_status
from k8s_rdma.doctor.collectors.webhook import webhook_facts
from k8s_rdma.errors import K8sRdmaError, MalformedError
from k8s_rdma.kube.chart_objects import read_extender_config
from k8s_rdma.kube.documents import Documents
from k8s_rdma.kube.node_liveness import read_liveness
from k8s_rdma.kube.pod_groups import served_versions
from k8s_rdma.wire.node_clock import clock_skew_s
from k8s_rdma.wire.objects.pod import Container, HostPath, KubePod, WholePodSpec
from k8s_rdma.wire.rdma_node import GROUP, PLURAL, VERSION, RdmaNodeStatus
from k8s_rdma.wire.yaml import read_yaml

if TYPE_CHECKING:
    from k8s_rdma.doctor.finding import Finding

MANIFEST = "/etc/kubernetes/manifests/kube-scheduler.yaml"
_OPTION = "--config"
_STATIC_PODS = "/api/v1/namespaces/kube-system/pods"
_OF_KUBEADM = {"labelSelector": "component=kube-scheduler"}
_SCHEDULER_CONFIGURATION = re.compile(r"^kind: *[\"']?KubeSchedulerConfiguration", re.MULTILINE)

POLICIES = frozenset({"k8s-rdma-annotation", "k8s-rdma-own-node"})
"""Policies in deploy/policies that every cluster should have."""

OF_EXTENDERS_ACCOUNT = frozenset({"k8s-rdma-extender"})
"""Policies of a cluster that has the account which they narrow: an extender may run elsewhere."""

OF_CLAIMS = frozenset(f"k8s-rdma-{name}" for name in ("claims", "claim-caps", "one-pod", "slices"))
"""Policies of a cluster whose nodes have PFs for claims."""

OF_A_SECOND_SCHEDULER = frozenset({"k8s-rdma-scheduler-name"})
"""Policies of a cluster whose own scheduler does not ask the extender."""

_COMPONENT = "app.kubernetes.io/component"
_NAMESPACE_POLICIES = "k8s-rdma-policies"
_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"


class _Scheduler(KubePod, frozen=True, kw_only=True):
    spec: WholePodSpec


class _Manifest(_Scheduler, frozen=True, kw_only=True):
    kind: Literal["Pod"]


def seen_files(
    api: Documents, host: Host, *, namespaces: Sequence[str], named: Path | None
) -> Iterator[SchedulerFile]:
    """Yield files of the first scheduler, then those of ConfigMaps in these namespaces.

    The first scheduler's file is the file that is named, else the file of this control-plane node. On other
    machines the pods of kubeadm's schedulers show if they have no file. OSError and K8sRdmaError if the files
    cannot be examined.
    """
    if named is not None:
        yield named_file(named)
    elif (found := of_kubeadm(host)) is not None:
        yield found
    else:
        yield from of_static_pods(api)
    for namespace in namespaces:
        yield from of_config_maps(api, namespace)


def of_static_pods(api: Documents) -> Iterator[SchedulerFile]:
    """Yield kubeadm's schedulers that run without a configuration file; other schedulers cannot be read."""
    for pod in api.items(_STATIC_PODS, _OF_KUBEADM):
        if _config_of(_program(msgspec.convert(pod, _Scheduler).spec)) is None:
            source = f"pod kube-system/{pod['metadata']['name']}"
            yield SchedulerFile(location=source, text=None, unset=True)


def of_config_maps(api: Documents, namespace: str) -> Iterator[SchedulerFile]:
    """Yield the configurations in ConfigMaps, under any key."""
    for config_map in api.items(f"/api/v1/namespaces/{namespace}/configmaps"):
        for key, text in (config_map.get("data") or {}).items():
            if _SCHEDULER_CONFIGURATION.search(text):
                yield SchedulerFile(
                    location=f"ConfigMap {namespace}/{config_map['metadata']['name']}, {key}", text=text
                )


def named_file(path: Path) -> SchedulerFile:
    """Read the file that the command line names. OSError if it cannot be read."""
    return SchedulerFile(location=str(path), text=read_named_text(path))


def of_kubeadm(host: Host) -> SchedulerFile | None:
    """Read the configuration of the scheduler's static pod, if this is a control-plane node with one.

    OSError if the manifest cannot be read.
    """
    text = host.read_if_any(MANIFEST)
    if text is None:
        return None
    try:
        spec = msgspec.convert(read_yaml(text), _Manifest).spec
        program = _program(spec)
    except (msgspec.ValidationError, ValueError, yaml.YAMLError) as error:
        return SchedulerFile(location=MANIFEST, text=None, why=f"no manifest of a pod: {error}")
    path = _config_of(program)
    if path is None:
        return SchedulerFile(location=MANIFEST, text=None, unset=True)
    host_path = _on_the_host(path, program, spec.volumes or ())
    if host_path is None:
        why = f"{_OPTION}={path} is in no volume of the pod: mount it by hostPath"
        return SchedulerFile(location=MANIFEST, text=None, why=why)
    found = host.read_if_any(host_path)
    why = f"{_OPTION}={path} of {MANIFEST}: there is no {host_path} on the host"
    return SchedulerFile(location=host_path, text=found, why=why if found is None else "")


def _program(spec: WholePodSpec) -> Container:
    """Return the first container. ValueError if the pod has no container."""
    if not spec.containers:
        msg = "Expected `array` of length >= 1 - at `$.spec.containers`"
        raise ValueError(msg)
    return spec.containers[0]


def _config_of(container: Container) -> str | None:
    arguments = (*container.command, *container.args)
    for place, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == _OPTION and (equals or place + 1 < len(arguments)):
            return value if equals else arguments[place + 1]
    return None


def _on_the_host(
    path: str, container: Container, volumes: Iterable[Mapping[str, str | HostPath | None]]
) -> str | None:
    """Return the path on the node, by the longest hostPath mount that it is in, if there is one."""
    sources = ((volume.get("name"), volume.get("hostPath")) for volume in volumes)
    paths = {name: source.path for name, source in sources if isinstance(source, HostPath)}
    for mount in sorted(container.volume_mounts, key=lambda candidate: -len(candidate.mount_path)):
        mount_path = mount.mount_path.rstrip("/")
        if (path == mount_path or path.startswith(f"{mount_path}/")) and mount.name in paths:
            inside = f"/{mount.sub_path}" if mount.sub_path else ""
            return f"{paths[mount.name]}{inside}{path.removeprefix(mount_path)}"
    return None


@dataclass(frozen=True, kw_only=True)
class ClusterCollector:
    """Collects the cluster's facts, each at most once.

    namespaces: where our objects may be, the likeliest first.
    host: this machine.
    scheduler_file, extender_file: configurations that the command line names.
    ask_extender: queries the extender, if its address is known.
    """

    api: Documents
    host: Host
    namespaces: tuple[str, ...]
    scheduler_file: Path | None = None
    extender_file: Path | None = None
    ask_extender: Callable[[], ExtenderFacts] | None = None

    @collected
    def _versions(self) -> VersionFacts:
        versions = (("the extender", self._query_extender.version), ("this program", __version__))
        return VersionFacts(
            api=self.version,
            nodes=tuple(map(versions_of, self._cluster_nodes)),
            ours=(*of_images(self._own_pods), *versions),
            requeue_by=self._extender.requeue_by if self._extender else "",
        )

    @collected
    def _scheduler_if_needed(self) -> SchedulerFacts:
        return replace(self._scheduler, needed=self._extender_needed)

    @collected
    def _extender_facts(self) -> ExtenderFacts:
        pods = tuple((full_name(pod), _is_ready(pod)) for pod in self._component("extender"))
        return replace(self._query_extender, pods=pods, needed=self._extender_needed)

    @collected
    def _crd(self) -> CrdFacts:
        return crd_facts(self.api, needed=self._crd_needed)

    @collected
    def _rights(self) -> RightsFacts:
        config = self._extender or ExtenderConfig()
        binder = config.lease_namespace, config.lease_name
        found = []
        for process, account in ACCOUNTS.items():
            namespace = self._namespace_of(account)
            if not namespace and (
                process in OPTIONAL or (process == "extender" and not self._extender_needed)
            ):
                continue
            required = rights(
                process, leases=self._leases, lease_of_binder=binder, crd=self._crd_needed is not False
            )
            missing = tuple(
                right for right in required if namespace and not self._may(namespace, account, right)
            )
            found.append((process, f"{namespace}/{account}" if namespace else "", missing))
        return RightsFacts(processes=tuple(found))

    @collected
    def _policies(self) -> PolicyFacts:
        existing = {_name(item) for item in self.api.items(f"{_ADMISSION}/validatingadmissionpolicies")}
        bound = {
            item.get("spec", {}).get("policyName")
            for item in self.api.items(f"{_ADMISSION}/validatingadmissionpolicybindings")
        }
        extended = {item.name for item in self._profiles() if item.has_extender}
        second = bool(extended) and DEFAULT_NAME not in extended
        expected = POLICIES | OF_A_SECOND_SCHEDULER if second else POLICIES
        if self._namespace_of(ACCOUNTS["extender"]):
            expected |= OF_EXTENDERS_ACCOUNT
        if self._has_claims():
            expected |= OF_CLAIMS
        return PolicyFacts(api=self.version, bound=frozenset(existing & bound), expected=expected)

    @collected
    def _webhook(self) -> WebhookFacts:
        return webhook_facts(self.api, self._component("webhook"))

    @collected
    def _nodes(self) -> PublishedNodeFacts:
        stale_s = (self._extender or ExtenderConfig()).stale_s
        liveness = read_liveness(
            self.api, namespace=self._leases, stale_s=stale_s, extender=self._query_extender.nodes
        )
        if liveness.faults:
            raise MalformedError("; ".join(liveness.faults))
        agents = (str(pod["spec"].get("nodeName", "")) for pod in self._component("node"))
        return PublishedNodeFacts(
            published=tuple(
                published_node(name, published, liveness, self._skews.get(name))
                for name, published in self._published.items()
            ),
            agents=frozenset(agents) - {""},
            lease_namespace=self._leases,
            needed=self._crd_needed is not False,
            mounts=mounts_of(self._cluster_nodes),
        )

    @collected
    def _claims(self) -> ClaimFacts:
        try:
            scheduler = self._scheduler
        except (OSError, K8sRdmaError):
            scheduler = SchedulerFacts(files=(), extender=ExtenderConfig())
        alive = self._alive
        statuses = {node: status for node, status in self._statuses.items() if alive is None or node in alive}
        return claim_facts(self.api, statuses, scheduler)

    @collected
    def _keys(self) -> KeyFacts:
        named = tuple(pod.key for pod in self._pods.pods if pod.node and pod.placed)
        return KeyFacts(named=named, usage=self._query_extender.key_usage)

    @collected
    def _pods(self) -> PodFacts:
        binder = (self._extender or ExtenderConfig()).binder
        policies, failure = self._namespace_policies()
        pods = asking_pods(self.api, self._holding(), policies, self._skews)
        return PodFacts(
            pods=pods,
            schedulers=self._profiles(),
            extender_binds=binder == "extender",
            policies_failure=failure,
            group_versions=served_versions(self.api) if any(pod.group for pod in pods) else None,
        )

    @collected
    def _workloads(self) -> WorkloadFacts:
        return WorkloadFacts(annotated=tuple(annotated_workloads(self.api)))

    @collected
    def _rates(self) -> RunningRates:
        return RunningRates(pods=tuple(pod.rates for pod in self._pods.pods if pod.rates))

    def findings(self) -> Iterator[Finding]:
        """Yield all findings, subject by subject; a part that cannot be read is a finding, too."""
        return run_checks(self)

    @cached_property
    def version(self) -> str:
        """The API server's version. K8sRdmaError if it cannot be queried."""
        return api_version(self.api)

    @cached_property
    def _own_pods(self) -> tuple[dict[str, Any], ...]:
        return tuple(self.api.items("/api/v1/pods", OURS))

    @cached_property
    def _extender(self) -> ExtenderConfig | None:
        """Return the extender's configuration, if it is visible. MalformedError if it cannot be used."""
        if self.extender_file is None:
            return read_extender_config(self.api, self.namespaces, ExtenderConfig)
        return parse_config(ExtenderConfig, read_named_text(self.extender_file), str(self.extender_file))

    @property
    def _leases(self) -> str:
        """The namespace of nodes' Leases."""
        return (self._extender or ExtenderConfig()).node_lease_namespace

    @property
    def _crd_needed(self) -> bool | None:
        """Report whether the extender reads RdmaNodes, if its configuration is known."""
        return None if self._extender is None else self._extender.source == "crd"

    @cached_property
    def _cluster_nodes(self) -> tuple[dict[str, Any], ...]:
        return tuple(self.api.items("/api/v1/nodes"))

    @cached_property
    def _skews(self) -> dict[str, float | None]:
        """Return the differences of nodes' clocks, in seconds; empty if nodes cannot be read."""
        try:
            return {_name(node): clock_skew_s(node) for node in self._cluster_nodes}
        except (OSError, K8sRdmaError):
            return {}

    @cached_property
    def _scheduler(self) -> SchedulerFacts:
        files = seen_files(self.api, self.host, namespaces=self.namespaces, named=self.scheduler_file)
        return SchedulerFacts(files=tuple(files), extender=self._extender or ExtenderConfig())

    def _profiles(self) -> tuple[Profile, ...]:
        """Return the profiles; empty if the configuration cannot be read, which another finding reports."""
        try:
            return tuple(profiles(self._scheduler))
        except (OSError, K8sRdmaError):
            return ()

    @cached_property
    def _query_extender(self) -> ExtenderFacts:
        return self.ask_extender() if self.ask_extender else ExtenderFacts()

    @cached_property
    def _extender_needed(self) -> bool:
        """Report whether pods or PFs are for annotations; also if that is not known."""
        try:
            published = self._published
            with_claims = self._claims.slices_pfs.keys()
            if not with_claims or with_claims - published.keys():
                return True
            if any(isinstance(found, MalformedError) for found in published.values()):
                return True
            return any(map(_has_pf_for_annotations, self._statuses.values())) or bool(self._pods.pods)
        except (OSError, K8sRdmaError):
            return True

    def _namespace_of(self, account: str) -> str:
        """Return the namespace of a service account; empty if our namespaces do not have it."""
        paths = (
            (namespace, f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}")
            for namespace in self.namespaces
        )
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
        return bool(self.api.post(_REVIEWS, review).get("status", {}).get("allowed"))

    def _has_claims(self) -> bool:
        """Report whether nodes publish PFs for claims; if that is not known, another finding says so."""
        try:
            return bool(self._claims.slices_pfs)
        except (OSError, K8sRdmaError):
            return False

    @cached_property
    def _rdma_nodes(self) -> tuple[dict[str, Any], ...]:
        return tuple(self.api.items(f"/apis/{GROUP}/{VERSION}/{PLURAL}"))

    @cached_property
    def _published(self) -> dict[str, PublishedStatus]:
        return {_name(node): published_status(node) for node in self._rdma_nodes}

    @cached_property
    def _statuses(self) -> dict[str, RdmaNodeStatus]:
        """Return the statuses of nodes that can be read, by node; a finding of nodes names the others."""
        return {name: found for name, found in self._published.items() if isinstance(found, RdmaNodeStatus)}

    @cached_property
    def _alive(self) -> frozenset[str] | None:
        """Return the nodes that are alive and see all of their cards, if they are known."""
        try:
            facts = self._nodes
        except (OSError, K8sRdmaError):
            return None
        return frozenset(node.name for node in facts.published if node.is_alive)

    def _holding(self) -> dict[str, dict[str, int]]:
        """Return generations of rates by UID of pods with interfaces, by node, from reports that are true."""
        return {
            node: {allocation.pod.uid: allocation.generation for allocation in status.allocations}
            for node, status in self._statuses.items()
            if node in (self._alive or ())
        }

    def _namespace_policies(self) -> tuple[NamespacePolicies | None, str]:
        """Return the policies in force, if they are known, and the reason why they cannot be used."""
        for namespace in self.namespaces:
            found = self.api.get(f"/api/v1/namespaces/{namespace}/configmaps/{_NAMESPACE_POLICIES}")
            text = ((found or {}).get("data") or {}).get("policies.yaml")
            if text is None:
                continue
            try:
                return fit(PoliciesFile, read_yaml(text) or {}).to_core(), ""
            except (MalformedError, ValueError, yaml.YAMLError) as error:
                return None, str(error)
        no_policy_file = self._extender is not None and self._extender.policy_file is None
        return NO_POLICIES if no_policy_file else None, ""

    def _component(self, name: str) -> Iterator[dict[str, Any]]:
        for pod in self._own_pods:
            if (pod["metadata"].get("labels") or {}).get(_COMPONENT) == name:
                yield pod


def _has_pf_for_annotations(status: RdmaNodeStatus) -> bool:
    return any(pf.capacity_vfs or any(pool.resource != CLAIMS_POOL for pool in pf.pools) for pf in status.pfs)


def _name(obj: dict[str, Any]) -> str:
    return str(obj["metadata"]["name"])


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(
        condition.get("type") == "Ready" and condition.get("status") == "True" for condition in conditions
    )
