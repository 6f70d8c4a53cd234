"""Objects that the chart makes: the extender's configuration, its keys, and pods of nodes."""

from __future__ import annotations

from base64 import b64decode
from typing import TYPE_CHECKING, Any, TypeVar

from k8s_rdma.config.files import parse_config
from k8s_rdma.config.placement_keys import keys_of_files
from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.documents import segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from k8s_rdma.kube.documents import Documents
    from k8s_rdma.wire.placement_keys import PlacementKeys

T = TypeVar("T")

EXTENDER_CONFIG = "k8s-rdma-extender"
"""The ConfigMap in which the chart has the extender's configuration."""

PLACEMENT_KEY = "k8s-rdma-placement-key"
"""The Secret with the keys that verify placements, by the chart's default."""

_NODE_PODS = "app.kubernetes.io/name=k8s-rdma,app.kubernetes.io/component=node"


def read_extender_config(api: Documents, namespaces: Iterable[str], kind: type[T]) -> T | None:
    """Read the extender's configuration of the first namespace that has it, if one has.

    MalformedError names the ConfigMap and the field; ApiRefusedError and the like.

    kind: the model to read it as, which may leave out keys.
    """
    for namespace in namespaces:
        found = api.get(f"/api/v1/namespaces/{segment(namespace)}/configmaps/{EXTENDER_CONFIG}")
        text = ((found or {}).get("data") or {}).get("extender.yaml")
        if isinstance(text, str):
            return parse_config(kind, text, f"ConfigMap {namespace}/{EXTENDER_CONFIG}: extender.yaml")
    return None


def read_placement_keys(api: Documents, namespace: str) -> PlacementKeys:
    """Read the keys that verify placements.

    MalformedError if they are no keys, or there is no such Secret; ApiRefusedError and the like.
    """
    name = f"Secret {namespace}/{PLACEMENT_KEY}"
    found = api.get(f"/api/v1/namespaces/{segment(namespace)}/secrets/{PLACEMENT_KEY}")
    if found is None:
        raise MalformedError(f"{name}: there is none")
    try:
        files = {key: b64decode(text, validate=True) for key, text in (found.get("data") or {}).items()}
    except ValueError as error:
        raise MalformedError(f"{name}: {error}") from error
    return keys_of_files(name, files)


def node_containers(
    api: Documents, namespace: str, node: str, name: str
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """List the containers of a name in the pods of the chart's DaemonSet on a node, each with its pod.

    namespace: the chart's.
    """
    path = f"/api/v1/namespaces/{segment(namespace)}/pods"
    query = {"labelSelector": _NODE_PODS, "fieldSelector": f"spec.nodeName={node}"}
    for pod in api.items(path, query):
        for container in (pod.get("spec") or {}).get("containers") or ():
            if container.get("name") == name:
                yield pod, container
