"""Trials over two nodes: pods with annotations, placed, bound and attached like any others.

The pods send and receive by the same program as on one node. They end by themselves some minutes after
this process, should it be killed; objects that are left over the next run deletes.
"""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import ip_address
from secrets import token_hex
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from k8s_rdma.core.programming import enforcers
from k8s_rdma.core.request import InterfaceRequest
from k8s_rdma.core.types import NodeName
from k8s_rdma.core.verification import Flow, InterfaceRates, PfFacts, Trial, UnmeasuredError
from k8s_rdma.errors import K8sRdmaError, MalformedError
from k8s_rdma.extender.node_source import facts_of_status
from k8s_rdma.kube.chart_objects import node_containers
from k8s_rdma.kube.documents import Documents, segment
from k8s_rdma.kube.errors import API_ERRORS
from k8s_rdma.verify.interruption import undisturbed
from k8s_rdma.verify.traffic import IFNAME, RESULT_FILE, PodResult, Session, decode_result, streams_of
from k8s_rdma.wire.annotation import ANNOTATION
from k8s_rdma.wire.json import decode
from k8s_rdma.wire.network_status import NETWORK_STATUS_ANNOTATION
from k8s_rdma.wire.rdma_node import GROUP, PLURAL, VERSION, RdmaNodeStatus, read_status
from k8s_rdma.wire.verification import pf_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")

_NAME = "app.kubernetes.io/name"
_LABEL = "k8s-rdma-verify"
_HOSTNAME = "kubernetes.io/hostname"
_POLL_S = 0.5
_UNSCHEDULABLE_S = 30.0
"""The time that a refusal of kube-scheduler must last: VFs of the last trial become free meanwhile."""

_START_S, _END_S, _DELETE_S = 180.0, 120.0, 60.0
"""Limits for a pod's start, with the image; for the senders' start and the measurement; for a pod's end."""

_LONGEST_S = 600
"""Kubernetes ends the pods after this time, even if this process is gone."""

_USER = 65_532
_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOptions:
    """Options for the pods.

    image: empty for the image of the sending node's agent.
    sender, receiver: nodes.
    receiver_pf: its name; None for the sending PF's name.
    namespace: of the pods.
    chart_namespace: of the agents.
    scheduler: empty if a policy adds it.
    """

    sender: str
    receiver: str
    receiver_pf: str | None
    namespace: str
    chart_namespace: str
    image: str
    scheduler: str
    seconds: float


class ClusterSite:
    """Two nodes of a cluster."""

    def __init__(self, api: Documents, options: PodOptions) -> None:
        self._api, self._options = api, options
        self._path = f"/api/v1/namespaces/{segment(options.namespace)}/pods"
        self._image = options.image
        self._hostnames: dict[str, str] = {}

    def prepare(self) -> None:
        """Delete the pods of earlier runs. K8sRdmaError while another run is under way."""
        pods = list(self._api.items(self._path, {"labelSelector": f"{_NAME}={_LABEL}"}))
        names = [pod["metadata"]["name"] for pod in pods]
        if any((pod.get("status") or {}).get("phase") not in _ENDED for pod in pods):
            msg = (
                f"pods of another run are there: they end within {_LONGEST_S // 60} minutes, or "
                f"kubectl -n {self._options.namespace} delete pods -l {_NAME}={_LABEL}"
            )
            raise K8sRdmaError(msg)
        self._delete(names)
        for node in (self._options.sender, self._options.receiver):
            self._hostnames[node] = self._hostname(node)
        self._image = self._image or self._agents_image()

    def facts(self) -> tuple[PfFacts, ...]:
        """Return the sending node's PFs. Verbs are left to one node: RdmaNodes do not list RDMA devices."""
        return tuple(pf_facts(self._status(self._options.sender)))

    def receivers(self) -> tuple[PfFacts, ...]:
        """Return the receiving node's PFs."""
        return tuple(pf_facts(self._status(self._options.receiver)))

    def run(self, trial: Trial) -> tuple[Flow, ...]:
        """Create the pods, wait for the receiver's figures, and delete them."""
        options, peer_pf = self._options, self._options.receiver_pf or trial.pf.name
        peer = (options.receiver, peer_pf, InterfaceRates())
        rated = [(options.sender, trial.pf.name, rates) for rates in trial.senders]
        [receiver], senders = ([peer], rated) if not trial.reverse else (rated, [peer])
        session = Session(
            token=token_hex(16),
            flows=len(senders),
            streams=streams_of(trial.pf.link_mbps or 0),
            seconds=options.seconds,
            wait_s=_START_S,
        )
        terms = msgspec.json.encode(session).decode()
        names = [f"{_LABEL}-{token_hex(4)}-{number}" for number in range(1 + len(senders))]
        with undisturbed() as disturbed, ExitStack() as stack, disturbed:
            stack.callback(self._delete, names)
            self._create(names[0], receiver, ("receive", terms))
            address = self._address(names[0])
            for flow, (name, sender) in enumerate(zip(names[1:], senders, strict=True)):
                self._create(name, sender, ("send", terms, str(flow), address))
            mbps = self._figures(names, len(senders))
        return tuple(
            self._flow(figure, trial.pf, rates) for figure, rates in zip(mbps, trial.senders, strict=True)
        )

    def _flow(self, mbps: float, pf: PfFacts, rates: InterfaceRates) -> Flow:
        """Combine a figure with the enforcers of such rates on the PF, as the agent published it."""
        node = NodeName(self._options.sender)
        published = facts_of_status(self._status(self._options.sender), node).inventory.pf(pf.pci)
        if published is None:
            raise UnmeasuredError("the PF is not published any more")
        claims = enforcers(
            published,
            InterfaceRequest(min_tx_rate_mbps=rates.min_mbps, max_tx_rate_mbps=rates.max_mbps),
        )
        return Flow(mbps=mbps, min_by=claims.min, max_by=claims.max)

    # Pods

    def _create(self, name: str, place: tuple[str, str, InterfaceRates], command: Sequence[str]) -> None:
        node, pf, rates = place
        request: dict[str, Any] = {"name": IFNAME, "pf": pf}
        request |= {
            key: mbps
            for key, mbps in (("min_tx_rate", rates.min_mbps), ("max_tx_rate", rates.max_mbps))
            if mbps
        }
        container = {
            "name": "verify",
            "image": self._image,
            "args": ["verify", *command, "--result", RESULT_FILE],
            "terminationMessagePath": RESULT_FILE,
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
                "runAsNonRoot": True,
                "runAsUser": _USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        }
        spec = {
            "nodeSelector": {_HOSTNAME: self._hostnames[node]},
            "restartPolicy": "Never",
            "activeDeadlineSeconds": _LONGEST_S,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "containers": [container],
        }
        if self._options.scheduler:
            spec["schedulerName"] = self._options.scheduler
        metadata = {
            "name": name,
            "labels": {_NAME: _LABEL},
            "annotations": {ANNOTATION: json.dumps([request])},
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        self._api.post(self._path, pod)

    def _address(self, name: str) -> str:
        """Wait for the receiver; return its address, as its node's agent publishes it."""

        def published(pod: dict[str, Any]) -> str | None:
            if (result := result_of(pod)) is not None:
                raise UnmeasuredError(result.error or "the receiver ended before anything was sent")
            annotations = pod["metadata"].get("annotations") or {}
            return published_address(annotations.get(NETWORK_STATUS_ANNOTATION, ""))

        return self._wait(name, published, _START_S)

    def _figures(self, names: Sequence[str], flows: int) -> tuple[float, ...]:
        """Wait for the receiver's end; senders that fail end it early."""

        def ended(pod: dict[str, Any]) -> PodResult | None:
            for name in names[1:]:
                sender = result_of(self._pod(name))
                if sender is not None and sender.error:
                    raise UnmeasuredError(sender.error)
            return result_of(pod)

        result = self._wait(names[0], ended, _START_S + _END_S)
        if result.error:
            raise UnmeasuredError(result.error)
        if len(result.mbps) != flows:
            raise UnmeasuredError(f"the receiver's figures are of {len(result.mbps)} senders, not {flows}")
        return result.mbps

    def _wait(self, name: str, read: Callable[[dict[str, Any]], T | None], timeout_s: float) -> T:
        """Wait until `read` returns a value for a pod. UnmeasuredError with the reason in its status."""
        now_s = scheduled_s = time.monotonic()
        deadline_s = now_s + timeout_s
        while True:
            pod = self._pod(name)
            found = read(pod)
            if found is not None:
                return found
            now_s = time.monotonic()
            if not (refusal := refusal_of(pod)):
                scheduled_s = now_s
            elif now_s > scheduled_s + _UNSCHEDULABLE_S:
                raise UnmeasuredError(f"a pod fits nowhere: {refusal}")
            if now_s > deadline_s:
                raise UnmeasuredError(f"a pod is not there after {timeout_s:g} s: {self._why(pod)}")
            time.sleep(_POLL_S)

    def _pod(self, name: str) -> dict[str, Any]:
        pod = self._api.get_object(f"{self._path}/{segment(name)}")
        if pod is None:
            raise UnmeasuredError("a pod was deleted by somebody else")
        return pod

    def _why(self, pod: dict[str, Any]) -> str:
        """Describe why a pod waits, by its latest warning if events may be read."""
        name = pod["metadata"]["name"]
        path = f"/api/v1/namespaces/{segment(self._options.namespace)}/events"
        try:
            events = list(self._api.items(path, {"fieldSelector": f"involvedObject.name={name}"}))
        except API_ERRORS:
            events = []
        warnings = [str(event.get("message")) for event in events if event.get("type") == "Warning"]
        return (warnings or [refusal_of(pod) or f"phase {(pod.get('status') or {}).get('phase')}"])[-1]

    def _delete(self, names: Sequence[str]) -> None:
        """Delete pods, and wait until their VFs are free. K8sRdmaError if that fails."""
        for name in names:
            self._api.delete(f"{self._path}/{segment(name)}")
        deadline_s = time.monotonic() + _DELETE_S
        for name in names:
            while self._api.get(f"{self._path}/{segment(name)}") is not None:
                if time.monotonic() > deadline_s:
                    raise K8sRdmaError(f"pod {self._options.namespace}/{name} does not end")
                time.sleep(_POLL_S)

    # Nodes

    def _status(self, node: str) -> RdmaNodeStatus:
        document = self._api.get_object(f"/apis/{GROUP}/{VERSION}/{PLURAL}/{segment(node)}")
        if document is None:
            msg = f"node {node}: there is no RdmaNode; agents write them with publish: {{rdmaNode: true}}"
            raise K8sRdmaError(msg)
        status = read_status(document)
        facts_of_status(status, NodeName(node))  # raises for a status without content
        return status

    def _hostname(self, node: str) -> str:
        document = self._api.get_object(f"/api/v1/nodes/{segment(node)}")
        if document is None:
            raise K8sRdmaError(f"node {node} does not exist")
        return str((document["metadata"].get("labels") or {}).get(_HOSTNAME) or node)

    def _agents_image(self) -> str:
        """Return the image of the sending node's agent."""
        namespace, node = self._options.chart_namespace, self._options.sender
        for _, container in node_containers(self._api, namespace, node, "agent"):
            return str(container["image"])
        raise K8sRdmaError(f"namespace {namespace} has no agent on {node}: --image IMAGE")


def result_of(pod: dict[str, Any]) -> PodResult | None:
    """Read how a pod ended, if it has. UnmeasuredError if it will not run."""
    status = pod.get("status") or {}
    for container in status.get("containerStatuses") or ():
        if terminated := (container.get("state") or {}).get("terminated"):
            if not terminated.get("exitCode") and not terminated.get("message"):
                return PodResult()
            return decode_result(str(terminated.get("message") or ""))
    if status.get("phase") == "Failed":
        raise UnmeasuredError(f"a pod failed: {status.get('message') or status.get('reason') or 'no reason'}")
    return None


def refusal_of(pod: dict[str, Any]) -> str:
    """Return why kube-scheduler refuses the pod; empty if it does not."""
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or "")
    return ""


def published_address(text: str) -> str | None:
    """Return the address of the interface for measurements, by an agent's annotation, once it has one.

    UnmeasuredError if it will have no address.
    """
    try:
        entries = decode(text or "[]", _entries_decoder, NETWORK_STATUS_ANNOTATION)
        addresses = [ip_address(ip) for entry in entries if entry.interface == IFNAME for ip in entry.ips]
    except (MalformedError, ValueError):
        return None
    if not addresses and any(entry.interface == IFNAME for entry in entries):
        raise UnmeasuredError("the network gives interfaces no addresses: it needs IPAM")
    return str(min(addresses, key=lambda address: address.version)) if addresses else None


class _Entry(msgspec.Struct):
    interface: str
    ips: tuple[str, ...] = ()


_entries_decoder = msgspec.json.Decoder(list[_Entry])
