"""Facts of our processes, the ledger, the definition of RdmaNode, ResourceClaims, and running pods' rates."""

from __future__ import annotations

import os
import re
import shutil
import socket
import ssl
import tempfile
from base64 import b64decode
from collections import Counter
from contextlib import closing, suppress
from dataclasses import replace
from math import floor, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from k8s_rdma import __version__
from k8s_rdma.agent.ledger_store import DIRECTORY, deferred_deletes_in
from k8s_rdma.config.devices import MOUNT_RESOURCE
from k8s_rdma.core.inventory import CLAIMS_POOL
from k8s_rdma.core.ledger import Phase
from k8s_rdma.doctor.cluster.claims import GATE, CapsFact, ClaimFacts
from k8s_rdma.doctor.cluster.components import KeyUsage
from k8s_rdma.doctor.cluster.objects import CRD_NAME, WEBHOOK_NAME, CrdFacts, WebhookFacts
from k8s_rdma.doctor.cluster.rates import LATE_S, RatesFact
from k8s_rdma.doctor.cluster.scheduler import DEFAULT_NAME, profiles
from k8s_rdma.doctor.cluster.versions import NodeVersions, tag_of
from k8s_rdma.doctor.node.processes import Answer, LedgerFacts, ProcessFacts
from k8s_rdma.errors import LedgerError, MalformedError
from k8s_rdma.kube.errors import ApiRefusedError
from k8s_rdma.linux.receipts import NewerLedgerError, Receipts
from k8s_rdma.wire.annotation import request_name, request_text
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
from k8s_rdma.wire.nesting import load
from k8s_rdma.wire.objects.meta import ManagedFieldsEntry
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, decode_promise, generation_in
from k8s_rdma.wire.rates_status import RATES_STATUS_ANNOTATION, decode_rates_status, digest
from k8s_rdma.wire.rdma_node import GROUP, KIND, VERSION, RdmaNodeStatus, in_use
from k8s_rdma.wire.report import NodeReport, decode_report
from k8s_rdma.wire.state_socket import HEADER, Kind, decode_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime

    from prometheus_client.core import Sample

    from k8s_rdma.core.placement import PlacedInterface
    from k8s_rdma.core.request import InterfaceRequest, Request
    from k8s_rdma.doctor.cluster.scheduler import SchedulerFacts
    from k8s_rdma.kube.calls import Documents
    from k8s_rdma.wire.rdma_node import PfStatus

_OBJECT = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{CRD_NAME}"
_SCHEMAS = f"/openapi/v3/apis/{GROUP}/{VERSION}"
_GROUP_VERSION_KIND = "x-kubernetes-group-version-kind"
_FORBIDDEN = 403
_DAY_S = 86_400
_EXPIRED = 10
"""`X509_V_ERR_CERT_HAS_EXPIRED` (OpenSSL, x509_vfy.h)."""


def crd_facts(api: Documents, *, needed: bool | None) -> CrdFacts:
    """Read the CRD object; without access to it, the API server's schemas, which everyone may read."""
    expected = frozenset(field.encode_name for field in msgspec.structs.fields(RdmaNodeStatus))
    try:
        found = api.get(_OBJECT)
    except ApiRefusedError as refused:
        if refused.status != _FORBIDDEN:
            raise
        found = _as_object(api.get(_SCHEMAS))
    return CrdFacts(found=found, expected=expected, needed=needed)


_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_MADE_BY_CHART = "k8s-rdma-webhook"
_FLIGHTS = 8
"""More than any TLS handshake has."""


def webhook_facts(api: Documents, pods: Iterable[Mapping[str, Any]]) -> WebhookFacts:
    """Collect the facts of the webhook's certificate, as the API server verifies it. pods: the webhook's."""
    configuration = api.get(f"{_CONFIGURATIONS}/{WEBHOOK_NAME}")
    if configuration is None:
        return WebhookFacts(configured=False)
    client = next((entry.get("clientConfig") or {} for entry in configuration.get("webhooks") or ()), {})
    service, bundle = client.get("service"), client.get("caBundle") or ""
    if not service:
        return WebhookFacts()
    secrets = (
        (volume.get("secret") or {}).get("secretName")
        for pod in pods
        for volume in pod["spec"].get("volumes") or ()
        if volume.get("name") == "tls"
    )
    namespace, secret = service["namespace"], next(filter(None, secrets), _MADE_BY_CHART)
    facts = WebhookFacts(location=f"{namespace}/{secret}", ca_bundle=bool(bundle))
    try:
        found = api.get(f"/api/v1/namespaces/{namespace}/secrets/{secret}")
    except ApiRefusedError as refused:
        if refused.status != _FORBIDDEN:
            raise
        return replace(facts, denied=True)
    data = (found or {}).get("data") or {}
    if not (data.get("tls.crt") and data.get("tls.key")):
        return replace(facts, unusable="has no tls.crt and tls.key" if found else "there is no such Secret")
    return _verified(facts, data, bundle, f"{service['name']}.{namespace}.svc", api.now())


def _verified(
    facts: WebhookFacts, data: Mapping[str, str], bundle: str, name: str, now: datetime
) -> WebhookFacts:
    """Complete the facts by a Secret's data and the bundle, both in base64. name: the Service's."""
    certificate, key = data["tls.crt"], data["tls.key"]
    end_s = 0.0
    try:
        end_s = ssl.cert_time_to_seconds(str(_accept(certificate, key, trusted=certificate)["notAfter"]))
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        if getattr(error, "verify_code", 0) != _EXPIRED:
            return replace(facts, unusable=f"cannot be used: {error}")
    try:
        _accept(certificate, key, trusted=bundle, name=name)
    except (OSError, ValueError) as error:
        facts = replace(facts, refused=getattr(error, "verify_message", "") or str(error))
    return replace(facts, days=floor((end_s - now.timestamp()) / _DAY_S))


def _accept(certificate: str, key: str, *, trusted: str, name: str | None = None) -> Mapping[str, Any]:
    """Verify a certificate in a handshake in memory, as a client that trusts these certificates alone.

    The handshake is necessary because Python has no other way to verify a certificate. The certificate's
    fields are returned. OSError (SSLCertVerificationError) says why it is refused, or that `trusted` has no
    certificate.

    certificate, key, trusted: in base64.
    name: the name that the certificate must be for; by default any.
    """
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(cadata=b64decode(trusted).decode("ascii", "ignore"))
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as Go: any of a chain may be trusted
    client.hostname_checks_common_name, client.check_hostname = False, name is not None
    with os.fdopen(os.memfd_create("tls"), "wb", buffering=0) as file:  # the key is never on a disk
        file.write(b64decode(certificate) + b"\n" + b64decode(key))
        server.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password=lambda: b"")
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(_FLIGHTS):
        for end in ends:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    return ends[0].getpeercert() or {}


def _as_object(schemas: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the part of the definition that the schemas of the served version show."""
    for schema in ((schemas or {}).get("components") or {}).get("schemas", {}).values():
        if any(entry.get("kind") == KIND for entry in schema.get(_GROUP_VERSION_KIND) or ()):
            version = {"name": VERSION, "served": True, "schema": {"openAPIV3Schema": schema}}
            return {"spec": {"versions": [version]}}
    return None


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
        age_s = _age_s(api, pod["metadata"], CLAIM_CAPS_ANNOTATION)
        if age_s is None or age_s > LATE_S:
            yield replace(fact, age_s=age_s)
    elif status.state == "refused":
        yield replace(fact, refusal=status.message)


def full_name(obj: Mapping[str, Any]) -> str:
    """Return `namespace/name` of an object."""
    return f"{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"


UNFINISHED = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
"""Pods that are no leftovers; for example, kubelet leaves the objects of evicted pods."""
OURS = {"labelSelector": "app.kubernetes.io/name=k8s-rdma", **UNFINISHED}
"""Query for the chart's pods that have not finished."""
_IMAGE = "k8s-rdma"
_MOUNTS = f"{MOUNT_RESOURCE.partition('/')[0]}/"
"""The resource's two names; `rdma-sriov/vf` is the older one."""


def api_version(api: Documents) -> str:
    """Return the API server's version. K8sRdmaError if it cannot be queried."""
    return str((api.get("/version") or {}).get("gitVersion", "unknown"))


def nodes_of(api: Documents, name: str = "") -> tuple[NodeVersions, ...]:
    """Return the versions of all nodes, or of one; empty if the node does not exist.

    Nodes are listed in either case, because agents may list nodes and not get them.
    """
    query = {"fieldSelector": f"metadata.name={name}"} if name else {}
    return tuple(map(versions_of, api.items("/api/v1/nodes", query)))


def of_images(pods: Iterable[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the tags of our image in pods, by `namespace/pod`."""
    for pod in pods:
        for container in pod["spec"]["containers"]:
            if _IMAGE in (image := str(container["image"])).rpartition("/")[2]:
                yield full_name(pod), tag_of(image)


def in_metrics(text: str) -> str:
    """Return the version in a process's metrics; empty for older processes without it."""
    infos = (sample for sample in _samples(text) if sample.name.endswith("_build_info"))
    return next((sample.labels.get("version", "") for sample in infos), "")


def key_usage_in_metrics(text: str) -> tuple[KeyUsage, ...]:
    """Return bound pods by the key that signed their placements, in the extender's metrics."""
    return tuple(
        KeyUsage(int(sample.value), *(sample.labels.get(name, "") for name in ("key", "algorithm", "use")))
        for sample in _samples(text)
        if sample.name == "k8s_rdma_extender_pods_signed" and isfinite(sample.value)
    )


def _samples(text: str) -> list[Sample]:
    """Return the samples of an exposition; empty if the text is no exposition."""
    try:
        return [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    except ValueError:
        return []


def mounts_of(nodes: Iterable[dict[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Return resources of RIT's device plugin, all of `/dev/infiniband`, with the Nodes that offer them."""
    return offered(nodes, lambda resource: resource.startswith(_MOUNTS))


def offered(nodes: Iterable[dict[str, Any]], selects: Callable[[str], bool]) -> dict[str, tuple[str, ...]]:
    """Return the selected resources that Nodes have, with the names of these."""
    found: dict[str, tuple[str, ...]] = {}
    for node in nodes:
        for resource, count in ((node.get("status") or {}).get("allocatable") or {}).items():
            if selects(resource) and str(count) != "0":
                found[resource] = (*found.get(resource, ()), str(node["metadata"]["name"]))
    return found


def versions_of(node: dict[str, Any]) -> NodeVersions:
    """Return the versions of kubelet and runtime in a Node's status."""
    info = (node.get("status") or {}).get("nodeInfo") or {}
    return NodeVersions(
        node=str(node["metadata"]["name"]),
        kubelet=str(info.get("kubeletVersion", "")),
        runtime=str(info.get("containerRuntimeVersion", "")),
    )


def rates_fact(
    api: Documents, pod: dict[str, Any], request: Request | None, reported: Mapping[str, Mapping[str, int]]
) -> RatesFact | None:
    """Collect the facts of a running pod's rates, if it runs and has a placement.

    request: its request, unless its annotation is malformed.
    reported: the generations that nodes report, by UID.
    """
    annotations: dict[str, str] = pod["metadata"].get("annotations") or {}
    placement, node = annotations.get(PLACEMENT_ANNOTATION), str(pod["spec"].get("nodeName") or "")
    if placement is None or not node or pod.get("status", {}).get("phase") != "Running":
        return None
    try:
        status = decode_rates_status(annotations.get(RATES_STATUS_ANNOTATION, ""))
    except MalformedError:
        status = None
    generation = generation_in(placement)
    programmed = reported.get(node, {}).get(str(pod["metadata"]["uid"]))
    if programmed is None:
        is_programmed = status is None or status.state not in ("admitted", "waiting")
    else:
        is_programmed = programmed >= generation
    if status is None:
        is_decided = _has_rates(placement, request)
    else:
        is_decided = status.request == _request_digest(annotations)
    written = PLACEMENT_ANNOTATION if is_decided or not is_programmed else request_name(annotations)
    return RatesFact(
        pod=full_name(pod),
        node=node,
        generation=generation,
        is_programmed=is_programmed,
        is_decided=is_decided,
        refusal=status.message if status and is_decided and status.state == "refused" else "",
        age_s=_age_s(api, pod["metadata"], written),
    )


def _request_digest(annotations: Mapping[str, str]) -> str:
    """Return the digest as the extender makes it: empty if the two annotations differ."""
    try:
        return digest(request_text(annotations) or "")
    except MalformedError:
        return ""


def _has_rates(placement: str, request: Request | None) -> bool:
    """Report whether a placement has the request's rates, each at least once; unverified."""
    try:
        placed = decode_promise(placement, keys=None).placement.interfaces
    except MalformedError:
        return True  # which the agent refuses
    return request is not None and _rates(placed) == _rates(request.interfaces)


def _rates(interfaces: Iterable[PlacedInterface | InterfaceRequest]) -> set[tuple[int, int]]:
    return {(interface.min_tx_rate_mbps, interface.max_tx_rate_mbps) for interface in interfaces}


def _age_s(api: Documents, metadata: Mapping[str, Any], annotation: str) -> float | None:
    """Return the seconds since the writer of an annotation last wrote to the pod, if the API shows it."""
    try:
        entries = msgspec.convert(metadata.get("managedFields") or (), tuple[ManagedFieldsEntry, ...])
    except msgspec.ValidationError:
        return None
    times = [
        entry.time
        for entry in entries
        if entry.time and f"f:{annotation}" in entry.fields_v1.get("f:metadata", {}).get("f:annotations", {})
    ]
    return (api.now() - max(times)).total_seconds() if times else None


_TIMEOUT_S = 5.0
_LEDGER_FILES = ("", "-wal")


def process_facts(state_socket: Path, *, server: str | None, plugin: str | None) -> ProcessFacts:
    """Query the agent and the two URLs. A process without a URL should not run."""
    report, why = ask_agent(state_socket)
    deletions = state_socket.with_name(DIRECTORY)
    return ProcessFacts(
        socket=str(state_socket),
        report=report,
        why=why,
        server=_fetch(server, version_at="/openapi.json", read=_in_openapi) if server else None,
        plugin=_fetch(plugin, version_at="/metrics", read=in_metrics) if plugin else None,
        version=__version__,
        leftovers=tuple(sorted(deferred_deletes_in(deletions))),
        left_in=str(deletions),
    )


def ledger_facts(path: Path, *, agent_socket: str) -> LedgerFacts:
    """Read a copy of the ledger. OSError if it cannot be read.

    A copy is read because the doctor must not lock the ledger, nor upgrade an older program's file.

    agent_socket: the agent that has it open; empty if no agent answers.
    """
    if agent_socket or not path.exists():
        return LedgerFacts(path=str(path), exists=bool(agent_socket), source=agent_socket)
    with tempfile.TemporaryDirectory(prefix="k8s-rdma-") as directory:
        copy = Path(directory) / path.name
        for suffix in _LEDGER_FILES:
            if (file := path.with_name(path.name + suffix)).exists():
                shutil.copyfile(file, copy.with_name(copy.name + suffix))
        try:
            with closing(Receipts(copy)) as receipts:
                found = tuple(receipts.load().receipts.values())
        except LedgerError as error:
            return LedgerFacts(
                path=str(path),
                exists=True,
                fault=str(error).replace(str(copy), str(path)),
                newer=isinstance(error, NewerLedgerError),
            )
    unfinished = (receipt for receipt in found if receipt.phase is not Phase.ATTACHED)
    return LedgerFacts(
        path=str(path),
        exists=True,
        receipts=len(found),
        unfinished=tuple(
            f"{receipt.pod.namespace}/{receipt.pod.name} ({receipt.phase})" for receipt in unfinished
        ),
    )


def ask_agent(path: Path) -> tuple[NodeReport | None, str]:
    """Return the agent's first report at its `state.sock`, or the reason if there is no report."""
    try:
        with socket.socket(socket.AF_UNIX) as reader:
            reader.settimeout(_TIMEOUT_S)
            reader.connect(str(path))
            kind, length = decode_header(_receive(reader, HEADER.size))
            body = _receive(reader, length)
        return (decode_report(body), "") if kind is Kind.REPORT else (None, f"it says {kind.name} first")
    except OSError as error:
        return None, f"{path}: {error.strerror or error}"
    except MalformedError as error:
        return None, f"{path}: {error}; is it of another version?"


def _receive(reader: socket.socket, count: int) -> bytes:
    data = reader.recv(count, socket.MSG_WAITALL)
    if len(data) != count:
        msg = "closed before the report was whole"
        raise OSError(msg)
    return data


def _fetch(url: str, *, version_at: str, read: Callable[[str], str]) -> Answer:
    """Probe a process over HTTP; read its version if that is allowed.

    Its certificate is not verified, because the process is on this node and receives no secret. A process
    that ends a TLS connection after accepting it demands a client certificate, and is alive.
    """
    try:
        with httpx2.Client(base_url=url, timeout=_TIMEOUT_S, trust_env=False, verify=False) as client:
            alive = client.get("/healthz")
            response = client.get(version_at)
    except (httpx2.HTTPError, OSError) as error:
        demanding = url.startswith("https:") and isinstance(
            error, httpx2.RemoteProtocolError | httpx2.ReadError
        )
        return Answer(url=f"{url}/healthz", why="" if demanding else str(error) or type(error).__name__)
    return Answer(
        url=f"{url}/healthz",
        version=read(response.text) if response.status_code == httpx2.codes.OK else "",
        why="" if alive.status_code == httpx2.codes.OK else f"HTTP {alive.status_code}",
    )


def _in_openapi(text: str) -> str:
    """Return the version in an OpenAPI document; empty for other documents."""
    try:
        return str(load(text)["info"]["version"])
    except (ValueError, LookupError, TypeError):
        return ""
