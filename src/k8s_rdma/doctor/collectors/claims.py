"""Facts of ResourceClaims: classes, slices, feature gates, and pods with claims."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from k8s_rdma.core.inventory import CLAIMS_POOL
from k8s_rdma.doctor.cluster.claims import GATE, CapsFact, ClaimFacts
from k8s_rdma.doctor.cluster.rates import LATE_S
from k8s_rdma.doctor.cluster.scheduler import DEFAULT_NAME, profiles
from k8s_rdma.doctor.collectors.objects import UNFINISHED, age_of_write_s, full_name, offered
from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.errors import ApiRefusedError
from k8s_rdma.wire.claim_caps import CLAIM_CAPS_ANNOTATION, CapsRequest
from k8s_rdma.wire.claim_template import DEVICE_CLASS
from k8s_rdma.wire.cluster_claims import API as CLAIMS_API
from k8s_rdma.wire.cluster_claims import (
    BUS_ID,
    NOTHING_CONSUMED,
    SLICES_QUERY,
    claim_nodes,
    class_names,
    our_classes,
    pod_claims,
)
from k8s_rdma.wire.json_faults import shown
from k8s_rdma.wire.rdma_node import RdmaNodeStatus, in_use

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from k8s_rdma.doctor.cluster.scheduler import SchedulerFacts
    from k8s_rdma.kube.documents import Documents
    from k8s_rdma.wire.rdma_node import PfStatus

_GATES = re.compile(r'^kubernetes_feature_enabled\{name="(\w+)",[^}]*\} ([01])', re.MULTILINE)
"""kube-apiserver's metric of feature gates (k8s.io/component-base/metrics/prometheus/feature)."""

_DRIVER_IS = re.compile(r"""device\.driver\s*==\s*["']([^"']+)["']""")


def _taken_by(device_class: dict[str, Any]) -> str:
    """Return the driver that another driver's class selects; without one, its expressions."""
    selectors = (device_class.get("spec") or {}).get("selectors") or ()
    expressions = [str((selector.get("cel") or {}).get("expression", "")) for selector in selectors]
    drivers = [driver for expression in expressions for driver in _DRIVER_IS.findall(expression)]
    return ", ".join(dict.fromkeys(drivers)) or shown("; ".join(expressions) or "no selector")


def claim_facts(
    api: Documents, statuses: Mapping[str, RdmaNodeStatus], scheduler: SchedulerFacts
) -> ClaimFacts:
    """Collect the facts of ResourceClaims.

    statuses: those of nodes that publish themselves, by node.
    scheduler: its configuration, if it can be read.
    """
    agents_pfs = {node: pfs for node, status in statuses.items() if (pfs := _pfs_for_claims(status))}
    if api.get(f"{CLAIMS_API}/deviceclasses", {"limit": "1"}) is None:
        return ClaimFacts(served=False, agents_pfs=agents_pfs)
    documents = {str(item["metadata"]["name"]): item for item in api.items(f"{CLAIMS_API}/deviceclasses")}
    selectors = our_classes(documents).selectors
    nodes = claim_nodes(api.items(f"{CLAIMS_API}/resourceslices", SLICES_QUERY), NOTHING_CONSUMED)
    facts = ClaimFacts(
        served=True,
        classes=frozenset(name for name, found in selectors.items() if found is not None),
        taken_by=_taken_by(documents[DEVICE_CLASS]) if selectors.get(DEVICE_CLASS, ()) is None else "",
        agents_pfs=agents_pfs,
        slices_pfs={
            node.node: {str(pf.attributes.get(BUS_ID)): pf.name for pf in node.pfs}
            for node in nodes
            if not node.problem
        },
        unused={node.node: node.problem for node in nodes if node.problem},
        profiles=tuple(profiles(scheduler)),
        files=scheduler.files,
    )
    if not (facts.classes or facts.agents_pfs or nodes):
        return facts
    resources = {
        str(resource)
        for name in facts.classes
        if (resource := documents[name].get("spec", {}).get("extendedResourceName"))
    }
    listed = api.items("/api/v1/nodes") if resources and facts.slices_pfs else ()
    with_slices = (node for node in listed if node["metadata"]["name"] in facts.slices_pfs)
    counted = offered(with_slices, resources.__contains__)
    return _with_pods(replace(facts, gate=_gate(api), counted=counted), api)


def _pfs_for_claims(status: RdmaNodeStatus) -> dict[str, str]:
    """Return the PFs of a node that its slice should have: names by PCI address.

    Slices leave out PFs without a free VF for claims or a known link, and PFs with a problem. For example, a
    use may wait for the end of the former one, which another finding reports.
    """
    foreign = in_use(status.pfs).vfs
    return {
        pf.pci: pf.name
        for pf in status.pfs
        if _vfs_for_claims(pf) > foreign[pf.pci, CLAIMS_POOL] and pf.link_mbps is not None and not pf.problems
    }


def _vfs_for_claims(pf: PfStatus) -> int:
    return sum(pool.vfs for pool in pf.pools if pool.resource == CLAIMS_POOL)


def _gate(api: Documents) -> bool | None:
    """Read whether the API server has DRAConsumableCapacity, if it says so."""
    try:
        gates = dict(_GATES.findall(api.text("/metrics")))
    except ApiRefusedError:
        return None
    return gates[GATE] == "1" if GATE in gates else None


def _with_pods(facts: ClaimFacts, api: Documents) -> ClaimFacts:
    """Add the facts of bound, unfinished pods with claims of our classes, and objects that cannot be read.

    A waiting pod does not count, because it may name a scheduler that does not exist.
    """
    ours, names, unread = set(), Counter[str](), []
    caps: list[CapsFact] = []
    for claim in api.items(f"{CLAIMS_API}/resourceclaims"):
        try:
            if not facts.classes.isdisjoint(class_names([claim])):
                ours.add(full_name(claim))
        except MalformedError as error:
            unread.append(error.message)
    for pod in api.items("/api/v1/pods", UNFINISHED) if ours else ():
        namespace, spec = pod["metadata"]["namespace"], pod["spec"]
        try:
            claims = {f"{namespace}/{entry.claim}" for entry in pod_claims(pod)}
        except MalformedError as error:
            unread.append(f"{full_name(pod)}: {error.message}")
            continue
        if spec.get("nodeName") and not ours.isdisjoint(claims):
            names[str(spec.get("schedulerName") or DEFAULT_NAME)] += 1
            caps += _stuck_caps(api, pod)
    return replace(facts, schedulers=dict(names), caps=tuple(caps), unread=tuple(unread))


def _stuck_caps(api: Documents, pod: dict[str, Any]) -> Iterator[CapsFact]:
    """Yield the change of a running pod's caps if its agent refuses it, or takes too long to decide."""
    request = CapsRequest.read(pod["metadata"].get("annotations") or {})
    if not request.text or pod.get("status", {}).get("phase") != "Running":
        return
    status, fact = request.status(), CapsFact(pod=full_name(pod), node=str(pod["spec"]["nodeName"]))
    if status is None:
        age_s = age_of_write_s(api, pod["metadata"], CLAIM_CAPS_ANNOTATION)
        if age_s is None or age_s > LATE_S:
            yield replace(fact, age_s=age_s)
    elif status.state == "refused":
        yield replace(fact, refusal=status.message)
