"""A user's kubectl commands (apply, wait, describe, delete) as calls to the API server."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx2

from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.wire.annotation import ANNOTATION
from k8s_rdma.wire.rates_status import RATES_STATUS_ANNOTATION, RatesStatus, decode_rates_status, digest
from k8s_rdma.wire.rdma_node import LIST_PATH, read_status
from k8s_rdma_demo.cluster.objects import BUILT_IN
from k8s_rdma_demo.plain_http import NO_TLS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Kubectl:
    """Pods of the namespace `default`, and other objects."""

    client: httpx2.Client

    @classmethod
    def for_server(cls, server: str) -> Kubectl:
        """Make a client for the API server at this URL."""
        return cls(httpx2.Client(base_url=server, timeout=10, trust_env=False, verify=NO_TLS))

    def apply(self, manifest: Mapping[str, Any], *, name: str | None = None, node: str | None = None) -> str:
        """Create a pod, with another name or on a given node if requested; return its name."""
        pod = json.loads(json.dumps(manifest))
        pod["metadata"]["name"] = name or pod["metadata"]["name"]
        if node is not None:
            pod["spec"]["nodeName"] = node
        self._call("POST", "/api/v1/namespaces/default/pods", pod)
        return str(pod["metadata"]["name"])

    def annotate(self, name: str, key: str, value: str) -> None:
        """Set an annotation of a pod."""
        patch = {"metadata": {"annotations": {key: value}}}
        headers = {"Content-Type": "application/merge-patch+json"}
        path = f"/api/v1/namespaces/default/pods/{name}"
        self._checked(self.client.patch(path, json=patch, headers=headers))

    def rates_status(self, name: str, state: str, *, timeout_s: float) -> RatesStatus:
        """Wait until the latest change of the pod's rates has come to a state."""

        def reached(pod: dict[str, Any] | None) -> bool:
            status = _rates_status(pod)
            return status is not None and status.state == state

        return _rates_status(self._wait_until(name, reached, timeout_s)) or RatesStatus(state="refused")

    def create(self, document: Mapping[str, Any]) -> None:
        """Create an object of any kind."""
        resource = next(resource for resource in BUILT_IN if resource.kind == document["kind"])
        namespace = document["metadata"].get("namespace", "default")
        self._call("POST", resource.path(namespace=namespace), document)

    def items(self, plural: str) -> list[dict[str, Any]]:
        """List all objects of a kind."""
        resource = next(resource for resource in BUILT_IN if resource.plural == plural)
        return list(self._call("GET", resource.path())["items"])

    def pods_of_rdma_nodes(self) -> frozenset[str]:
        """Return the pods that hold interfaces, as the nodes have published it."""
        statuses = [read_status(rdma_node) for rdma_node in self._call("GET", LIST_PATH)["items"]]
        return frozenset(holder.pod.name for status in statuses for holder in status.allocations)

    def leftovers(self, plural: str, *, timeout_s: float) -> list[str]:
        """Wait until no object of a kind is there; return the names of those that stay."""
        end = time.monotonic() + timeout_s
        while (items := self.items(plural)) and time.monotonic() < end:
            time.sleep(POLL_S)
        return [item["metadata"]["name"] for item in items]

    def pod(self, name: str) -> dict[str, Any] | None:
        """Return the pod as it is now, if it exists."""
        reply = self.client.get(f"/api/v1/namespaces/default/pods/{name}")
        return None if reply.status_code == httpx2.codes.NOT_FOUND else self._checked(reply)

    def pods(self) -> list[dict[str, Any]]:
        """List all pods."""
        return list(self._call("GET", "/api/v1/namespaces/default/pods")["items"])

    def running(self, name: str, *, timeout_s: float) -> dict[str, Any]:
        """Wait until the pod runs; K8sRdmaError, with details as of `kubectl describe`, if it does not."""
        return self._wait_until(
            name, lambda pod: pod is not None and pod["status"].get("phase") == "Running", timeout_s
        )

    def refused(self, name: str, *, timeout_s: float) -> str:
        """Wait until the scheduler found no node for the pod; return the reason, in its words."""
        return unschedulable(self._wait_until(name, lambda pod: bool(pod and unschedulable(pod)), timeout_s))

    def delete(self, *names: str, timeout_s: float) -> None:
        """Delete pods and wait until they are gone; one that is gone already is."""
        for name in names:
            reply = self.client.delete(f"/api/v1/namespaces/default/pods/{name}")
            if reply.status_code != httpx2.codes.NOT_FOUND:
                self._checked(reply)
        for name in names:
            self._wait_until(name, lambda pod: pod is None, timeout_s)

    def events(self, name: str) -> list[str]:
        """Return the events of a pod, oldest first: `reason: message`."""
        items = self._call("GET", "/api/v1/namespaces/default/events")["items"]
        return [
            f"{item['reason']}: {item['message']}" for item in items if item["involvedObject"]["name"] == name
        ]

    def _wait_until(
        self, name: str, condition: Callable[[dict[str, Any] | None], bool], timeout_s: float
    ) -> dict[str, Any]:
        end = time.monotonic() + timeout_s
        while not condition(pod := self.pod(name)):
            if time.monotonic() > end:
                msg = f"pod {name}: not there after {timeout_s:g} s"
                raise K8sRdmaError(msg, details="\n  ".join([*_status(pod), *self.events(name)[-3:]]))
            time.sleep(POLL_S)
        return pod or {}

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return self._checked(self.client.request(method, path, json=body))

    def _checked(self, reply: httpx2.Response) -> dict[str, Any]:
        if reply.is_error:
            msg = f"{reply.request.method} {reply.request.url.path}: {reply.status_code} {reply.text}"
            raise K8sRdmaError(msg)
        return dict(reply.json())


def unschedulable(pod: Mapping[str, Any]) -> str:
    """Return the scheduler's message; empty if it has not refused the pod."""
    for condition in pod["status"].get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message", ""))
    return ""


def _rates_status(pod: Mapping[str, Any] | None) -> RatesStatus | None:
    """Return the status of a change of rates, if it is about the annotation as it is now."""
    annotations = pod["metadata"].get("annotations", {}) if pod else {}
    text = annotations.get(RATES_STATUS_ANNOTATION)
    status = decode_rates_status(text) if text else None
    return status if status and status.request == digest(annotations[ANNOTATION]) else None


def _status(pod: Mapping[str, Any] | None) -> Iterable[str]:
    if pod is None:
        return ["there is no such pod"]
    return [f"phase {pod['status'].get('phase')} on node {pod['spec'].get('nodeName')} {unschedulable(pod)}"]
