"""Checks of the needs of ResourceClaims: the API, a DeviceClass, ResourceSlices, and one kube-scheduler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import yaml

from k8s_rdma.doctor.cluster.scheduler import (
    DEFAULT_NAME,
    Profile,
    SchedulerFile,
    duration_s,
    plugin_arguments,
    read_configuration,
)
from k8s_rdma.doctor.finding import Finding, Severity, worst
from k8s_rdma.doctor.subject import Subject
from k8s_rdma.wire.claim_template import DEVICE_CLASS
from k8s_rdma.wire.claims import DRIVER

if TYPE_CHECKING:
    from typing import Any

CLAIMS = Subject(
    "claims",
    "ResourceClaims",
    "Checked if a node has PFs for [claims](dra.md), or a DeviceClass is of our driver. A live node "
    "with an `RdmaNode` should publish its PFs that have free VFs, a link and no problem. Schedulers "
    "are those of bound pods. [Caps](live-rates.md#caps-of-claims) that no agent decides on are found"
    " after two minutes. The feature gate is found if the API server's metrics may be read, the last "
    "two findings if kube-scheduler's configuration is found. Policies for claims are under "
    "[admission policies](#admission-policies).",
)
CLAIMS_OK = CLAIMS.ok()
NO_API = CLAIMS.error("no-api")
GATE_OFF = CLAIMS.error("gate-off")
NO_CLASS = CLAIMS.error("no-class")
CLASS_TAKEN = CLAIMS.warning("class-taken")
RESOURCE_COUNTED = CLAIMS.warning("resource-counted")
SLICE_UNUSED = CLAIMS.error("slice-unused")
NOT_PUBLISHED = CLAIMS.warning("not-published")
UNREAD = CLAIMS.warning("unread")
CAPS_REFUSED = CLAIMS.warning("caps-refused")
CAPS_UNDECIDED = CLAIMS.warning("caps-undecided")
TWO_SCHEDULERS = CLAIMS.warning("two-schedulers")
SCHEDULERS_UNKNOWN = CLAIMS.note("schedulers-unknown")
LEAST_ALLOCATED = CLAIMS.note("least-allocated")
FILTER_TIMEOUT = CLAIMS.note("filter-timeout")

GATE = "DRAConsumableCapacity"
_MOST_SHOWN = 10
_FILTER_TIMEOUT_S = 10.0
"""kube-scheduler's default (`DynamicResourcesArgs`, Kubernetes 1.36)."""
_LONG_FILTER_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CapsFact:
    """A change of a running pod's caps that is not in force.

    refusal: why its node's agent refuses it; empty while the agent has not decided.
    age_s: seconds since the change was written, if that time is known.
    """

    pod: str
    node: str
    refusal: str = ""
    age_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimFacts:
    """Facts about claims in a cluster; PFs by node, each as name by PCI address.

    served: whether the API server has `resource.k8s.io/v1`.
    gate: whether DRAConsumableCapacity is on, if that is known.
    classes: DeviceClasses of our driver.
    taken_by: the other driver, or its selector, if its class has our class's default name; otherwise empty.
    counted: extended resources of our classes that nodes with PFs for claims have, too, with these nodes.
    agents_pfs: PFs that are to be published, by RdmaNodes.
    slices_pfs: PFs by ResourceSlices.
    unused: nodes whose slices kube-scheduler does not use, and why.
    schedulers: names of schedulers, with the number of bound, unfinished pods with claims that name each.
    caps: changes of caps that are not in force.
    unread: ResourceClaims and pods that cannot be read, and why.
    profiles, files: kube-scheduler's configuration, if it can be read.
    """

    served: bool
    gate: bool | None = None
    classes: frozenset[str] = frozenset()
    taken_by: str = ""
    counted: Mapping[str, Sequence[str]] = field(default_factory=dict)
    agents_pfs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    slices_pfs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    unused: Mapping[str, str] = field(default_factory=dict)
    schedulers: Mapping[str, int] = field(default_factory=dict)
    caps: Sequence[CapsFact] = ()
    unread: Sequence[str] = ()
    profiles: Sequence[Profile] = ()
    files: Sequence[SchedulerFile] = ()


@CLAIMS.check(ClaimFacts)
def check_claims(facts: ClaimFacts) -> Iterator[Finding]:
    """Check the cluster if any node has PFs for claims, or any pod uses them."""
    if not (facts.agents_pfs or facts.slices_pfs or facts.unused or facts.schedulers or facts.classes):
        yield CLAIMS_OK("no node has PFs for claims", source="resourceslices; rdmanodes")
        return
    found = (
        *_check_api(facts),
        *_check_resources(facts.counted),
        *_check_slices(facts),
        *_check_unread(facts),
        *_check_caps(facts.caps),
        *_check_schedulers(facts),
    )
    yield from found
    if worst(found).rank <= Severity.NOTE.rank:
        pfs, nodes = sum(map(len, facts.slices_pfs.values())), len(facts.slices_pfs)
        yield CLAIMS_OK(
            f"PFs in ResourceSlices: {pfs}, of {nodes} node{'' if nodes == 1 else 's'}; "
            f"DeviceClass {', '.join(sorted(facts.classes))}",
            source="resourceslices; deviceclasses",
        )


def _check_unread(facts: ClaimFacts) -> Iterator[Finding]:
    for why in facts.unread[:_MOST_SHOWN]:
        yield UNREAD(
            f"not counted: {why}",
            source="resourceclaims; pods",
            expected="objects of the API's schema",
            fix="correct what the message names, or a newer release",
        )


def _check_caps(stuck: Sequence[CapsFact]) -> Iterator[Finding]:
    for caps in stuck[:_MOST_SHOWN]:
        if caps.refusal:
            yield CAPS_REFUSED(
                f"keeps its caps: {caps.refusal}",
                about=caps.pod,
                source="annotation k8s-rdma.io/claim-caps-status",
                expected="caps that its claims, links, drivers and policies allow",
                fix="correct what the message names: the agent tries again",
            )
        else:
            since = "" if caps.age_s is None else f", for {caps.age_s:.0f} s"
            yield CAPS_UNDECIDED(
                f"{caps.node} has not decided on its caps{since}",
                about=caps.pod,
                source="annotations k8s-rdma.io/claim-caps, k8s-rdma.io/claim-caps-status",
                expected="a decision within seconds",
                fix=f"an agent with credentials: docs/live-rates.md; k8s-rdma doctor node on {caps.node}",
            )


def _check_api(facts: ClaimFacts) -> Iterator[Finding]:
    if not facts.served:
        yield NO_API(
            "the API server has no resource.k8s.io/v1: no claim can be made",
            source="/apis/resource.k8s.io/v1",
            expected="Kubernetes 1.36",
            fix="update the cluster; until then hardware.pfs[].use: annotation",
        )
        return
    if facts.gate is False:
        yield GATE_OFF(
            f"{GATE} is off: the driver publishes nothing",
            about="kube-apiserver",
            source="/metrics, kubernetes_feature_enabled",
            expected="on, as by default from Kubernetes 1.36",
            fix=f"--feature-gates={GATE}=true for kube-apiserver, kube-scheduler and kubelet",
        )
    if not facts.classes:
        yield NO_CLASS(
            f"there is none of {DRIVER}: no claim gets a PF",
            about="DeviceClass",
            source="deviceclasses",
            expected=f'one whose selector is device.driver == "{DRIVER}"',
            fix="the chart's dra.enabled: true"
            + (f", with dra.deviceClass: another name than {DEVICE_CLASS}" if facts.taken_by else ""),
        )
    if facts.taken_by:
        ours = " or ".join(sorted(facts.classes)) or "the one of dra.deviceClass"
        yield CLASS_TAKEN(
            f"is of another driver ({facts.taken_by}): claims that name it get nothing of {DRIVER}",
            about=f"DeviceClass {DEVICE_CLASS}",
            source="deviceclasses",
            expected=f"claims that name {ours}",
            fix="deviceClassName in claims and templates; k8s-rdma claim --class NAME",
        )


def _check_resources(counted: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    for resource, nodes in sorted(counted.items()):
        suffix = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
        yield RESOURCE_COUNTED(
            f"is in status.allocatable of {nodes[0]}{suffix}: pods that request it get no claim there",
            about=resource,
            source="nodes, status.allocatable; deviceclasses, extendedResourceName",
            expected="a resource that no device plugin has, and no publish.vfResource",
            fix="another dra.extendedResourceName, or take the resource from the device plugin",
        )


def _check_slices(facts: ClaimFacts) -> Iterator[Finding]:
    for node, why in sorted(facts.unused.items())[:_MOST_SHOWN]:
        yield SLICE_UNUSED(
            f"kube-scheduler does not use its PFs: {why}",
            about=node,
            source="resourceslices",
            expected="all slices of its pool",
            fix="the log of the device plugin there",
        )
    missing = {
        node: [name for pci, name in pfs.items() if pci not in facts.slices_pfs.get(node, {})]
        for node, pfs in sorted(facts.agents_pfs.items())
        if facts.served and node not in facts.unused
    }
    missing = {node: names for node, names in missing.items() if names}
    for node in list(missing)[:_MOST_SHOWN]:
        names = ", ".join(missing[node])
        yield NOT_PUBLISHED(
            f"{names}: for claims, and in no ResourceSlice, so that no pod can have VFs of it",
            about=node,
            source=f"rdmanode {node}; resourceslices",
            expected="every PF with use: claims that has free VFs, a link and no problem",
            fix="claims: {} in the device plugin's file (the chart's dra.enabled: true); its log there",
        )


def _check_schedulers(facts: ClaimFacts) -> Iterator[Finding]:
    locations = {profile.name: profile.location for profile in facts.profiles}
    processes = {locations[name] for name in facts.schedulers if name in locations}
    unknown = facts.schedulers.keys() - locations.keys()  # in another process
    names = ", ".join(f"{name} ({count})" for name, count in sorted(facts.schedulers.items()))
    source = "pods, spec.schedulerName; kube-scheduler's configurations"
    expected = "one kube-scheduler for all pods with claims"
    fix = "one schedulerName, or profiles of one kube-scheduler"
    if len(processes) + bool(unknown) > 1:
        yield TWO_SCHEDULERS(
            f"pods with claims have several schedulers: {names}; two processes give a PF's bandwidth away "
            "twice, and pods stay on nodes that refuse them",
            source=source,
            expected=expected,
            fix=fix,
        )
    elif len(unknown) > 1:
        yield SCHEDULERS_UNKNOWN(
            f"pods with claims have several schedulers: {names}; whether these are profiles of one "
            "kube-scheduler is in a configuration that was not found",
            source=source,
            expected=expected,
            fix=f"{fix}; --scheduler-config FILE",
        )
    for file in facts.files:
        try:
            document = read_configuration(file)
        except (ValueError, yaml.YAMLError):
            continue  # a finding of kube-scheduler's
        for profile in document.get("profiles") or [{}]:
            if isinstance(profile, dict):
                yield from _check_profile(profile, facts, file.location)


def _check_profile(profile: dict[str, Any], facts: ClaimFacts, location: str) -> Iterator[Finding]:
    name = str(profile.get("schedulerName") or DEFAULT_NAME)
    if facts.schedulers and name not in facts.schedulers:
        return
    strategy = plugin_arguments(profile, "NodeResourcesFit").get("scoringStrategy")
    kind = strategy.get("type") if isinstance(strategy, dict) else None
    if kind in (None, "LeastAllocated"):
        yield LEAST_ALLOCATED(
            "pods with claims are spread, and nodes then have no room for pods with many interfaces",
            about=f"{name}, NodeResourcesFit",
            source=location,
            expected="MostAllocated",
            fix="pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated, "
            "resources: [{name: cpu, weight: 1}, {name: memory, weight: 1}]}}}]",
        )
    timeout = plugin_arguments(profile, "DynamicResources").get("filterTimeout")
    if (timeout_s := duration_s(timeout, default=_FILTER_TIMEOUT_S)) == 0 or timeout_s > _LONG_FILTER_S:
        limit = f"for {timeout_s:g} s" if timeout_s else "without an end"
        yield FILTER_TIMEOUT(
            f"one claim of many interfaces may hold up all pods {limit}",
            about=f"{name}, DynamicResources",
            source=location,
            expected=f"filterTimeout: {_LONG_FILTER_S:g}s",
            fix=f"pluginConfig: [{{name: DynamicResources, args: {{filterTimeout: {_LONG_FILTER_S:g}s}}}}]",
        )
