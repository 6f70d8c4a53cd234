"""Snapshots without names: all texts of others are written again, from the values that were read.

So a name or an address cannot stay in an unforeseen form, such as a MAC with dashes, in escapes, or in an
annotation that cannot be read.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from k8s_rdma.core.placement import EVERY_NAMESPACE
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.annotation import (
    MEMLOCK_ANNOTATION,
    POLICY_ANNOTATION,
    REQUEST_ANNOTATIONS,
    TOPOLOGY_ANNOTATION,
    format_request,
    read_pod,
    request_name,
)
from k8s_rdma.wire.objects.node import ApiTaint, ApiToleration
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, decode_promise, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from k8s_rdma.core.options import InterfaceOptions
    from k8s_rdma.planning.snapshot import NodeRecord, PodRecord, Snapshot

UNREADABLE_ANNOTATION = "(malformed; left out)"
"""The text for an annotation that cannot be read."""

_MAC = len("00:00:00:00:00:00")
_SETTINGS = (POLICY_ANNOTATION, MEMLOCK_ANNOTATION, TOPOLOGY_ANNOTATION)
"""Annotations of fixed words and quantities, which were read."""
_KUBERNETES = "kubernetes.io"
_PUBLIC_LABELS = (f"{_KUBERNETES}/arch", f"{_KUBERNETES}/os")

TaintOrToleration = TypeVar("TaintOrToleration", ApiTaint, ApiToleration)


class _Aliases:
    """Other names, the same for the same name: `node-1`, `node-2`, ..."""

    def __init__(self, name: Callable[[int], str]) -> None:
        self._name = name
        self._aliases: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        return self._aliases.setdefault(name, self._name(len(self._aliases) + 1))


class _Anonymiser:
    def __init__(self) -> None:
        self.node = _Aliases("node-{}".format)
        self.namespace = _Aliases("namespace-{}".format)
        self.pod = _Aliases("pod-{}".format)
        self.gang = _Aliases("gang-{}".format)
        self.uid = _Aliases("uid-{}".format)
        self._taint_key = _Aliases("taint-{}".format)
        self._taint_value = _Aliases("value-{}".format)
        self._network = _Aliases("network-{}".format)
        self._interface = _Aliases("rdma-{}".format)
        self._mac = _Aliases(lambda number: f"02:{number.to_bytes(5).hex(':')}")
        self._guid = _Aliases(lambda number: f"02:{number.to_bytes(7).hex(':')}")

    def _address(self, address: str) -> str:
        text = address.lower()
        return self._mac(text) if len(text) == _MAC else self._guid(text)

    def _request(self, annotations: Mapping[str, str]) -> dict[str, str]:
        """Write the values of a pod's annotations again, so that no text of its owner stays.

        An annotation that cannot be read is replaced by a text that cannot be read either.
        """
        requested = {key: text for key, text in annotations.items() if key in REQUEST_ANNOTATIONS}
        if not requested:
            return {}
        try:
            request = read_pod(requested, strict=True).request
        except MalformedError:
            return {request_name(requested): UNREADABLE_ANNOTATION}
        interfaces = tuple(
            dataclasses.replace(interface, options=self._options(interface.options))
            for interface in request.interfaces
        )
        settings = {
            key: requested[key].strip() for key in _SETTINGS if request.interfaces and key in requested
        }
        text = format_request(dataclasses.replace(request, interfaces=interfaces))
        return {request_name(requested): text, **settings}

    def _options(self, options: InterfaceOptions) -> InterfaceOptions:
        return dataclasses.replace(
            options,
            mac=options.mac and self._address(options.mac),
            guid=options.guid and self._address(options.guid),
            network=options.network and self._network(options.network),
            name=options.name and self._interface(options.name),
        )

    def _taint(self, entry: TaintOrToleration) -> TaintOrToleration:
        """Replace key and value, except keys of Kubernetes itself; an empty key is of every taint."""
        is_kubernetes = f".{entry.key.partition('/')[0]}".endswith(f".{_KUBERNETES}")
        return replace(
            entry,
            key=self._taint_key(entry.key) if entry.key and not is_kubernetes else entry.key,
            value=self._taint_value(entry.value) if entry.value else "",
        )

    def node_record(self, node: NodeRecord) -> NodeRecord:
        labels = {key: value for key, value in node.labels.items() if key in _PUBLIC_LABELS}
        status = node.status and replace(
            node.status,
            allocations=tuple(
                replace(
                    allocation,
                    pod=replace(
                        allocation.pod,
                        namespace=self.namespace(allocation.pod.namespace),
                        name=self.pod(allocation.pod.name),
                        uid=self.uid(allocation.pod.uid),
                    ),
                    refused=None,
                )
                for allocation in node.status.allocations
            ),
            conditions=tuple(replace(condition, message="") for condition in node.status.conditions),
        )
        why = "its report does not count" if node.why else ""
        taints = tuple(map(self._taint, node.taints))
        return replace(node, name=self.node(node.name), labels=labels, taints=taints, status=status, why=why)

    def pod_record(self, pod: PodRecord) -> PodRecord:
        node, uid = NodeName(self.node(pod.node) if pod.node else ""), PodUid(self.uid(pod.uid))
        annotations = self._request(pod.annotations)
        if text := pod.annotations.get(PLACEMENT_ANNOTATION):
            placement = decode_promise(text, keys=None).placement
            interfaces = tuple(
                dataclasses.replace(interface, options=self._options(interface.options))
                for interface in placement.interfaces
            )
            placement = dataclasses.replace(placement, node=node, interfaces=interfaces)
            annotations[PLACEMENT_ANNOTATION] = encode(placement, uid, None)
        return replace(
            pod,
            namespace=self.namespace(pod.namespace),
            name=self.pod(pod.name),
            uid=uid,
            node=node,
            gang=self.gang(pod.gang) if pod.gang else "",
            annotations=annotations,
            node_selector={},
            node_affinity=None,
            tolerations=tuple(map(self._taint, pod.tolerations)),
        )


def anonymised(snapshot: Snapshot) -> Snapshot:
    """Replace names of nodes, pods, namespaces and gangs, taints, UIDs, MACs and GUIDs, equal ones alike.

    Texts of others are left out, and so are selectors of nodes and their labels, except operating system and
    architecture.
    MalformedError names a placement that cannot be read.
    """
    aliases = _Anonymiser()
    number = len(snapshot.unreadable)
    return replace(
        snapshot,
        limits=tuple(
            replace(
                limit,
                namespace=limit.namespace
                if limit.namespace == EVERY_NAMESPACE
                else aliases.namespace(limit.namespace),
            )
            for limit in snapshot.limits
        ),
        unreadable=(f"objects that cannot be read: {number}",) if number else (),
        nodes=tuple(map(aliases.node_record, snapshot.nodes)),
        pods=tuple(map(aliases.pod_record, snapshot.pods)),
    )
