"""Objects that the chart makes, read from the API server: the extender's configuration, placements' keys."""

from __future__ import annotations

from base64 import b64decode
from typing import TYPE_CHECKING, TypeVar

from k8s_rdma.config.files import parse_config
from k8s_rdma.config.placement_keys import keys_of_files
from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.calls import Documents, segment

if TYPE_CHECKING:
    from collections.abc import Iterable

    from k8s_rdma.wire.placement_keys import PlacementKeys

T = TypeVar("T")

EXTENDER_CONFIG = "k8s-rdma-extender"
"""The ConfigMap with the extender's configuration."""

PLACEMENT_KEY = "k8s-rdma-placement-key"
"""The Secret with the keys that verify placements, by the chart's default."""


def read_extender_config(api: Documents, namespaces: Iterable[str], kind: type[T]) -> T | None:
    """Read the extender's configuration of the first namespace that has it; None where none has.

    kind: the model to read it as, which may leave out keys. MalformedError names the ConfigMap and the field;
    ApiRefusedError and the like.
    """
    for namespace in namespaces:
        path = f"/api/v1/namespaces/{segment(namespace)}/configmaps/{EXTENDER_CONFIG}"
        found = api.get(path)
        text = ((found or {}).get("data") or {}).get("extender.yaml")
        if isinstance(text, str):
            return parse_config(kind, text, f"ConfigMap {namespace}/{EXTENDER_CONFIG}: extender.yaml")
    return None


def read_placement_keys(api: Documents, namespace: str) -> PlacementKeys:
    """Read the keys that verify placements.

    MalformedError where they are no keys, or there is no such Secret; ApiRefusedError and the like.
    """
    name = f"Secret {namespace}/{PLACEMENT_KEY}"
    found = api.get(f"/api/v1/namespaces/{segment(namespace)}/secrets/{PLACEMENT_KEY}")
    if found is None:
        msg = f"{name}: there is none"
        raise MalformedError(msg)
    try:
        files = {key: b64decode(text, validate=True) for key, text in (found.get("data") or {}).items()}
    except ValueError as error:
        msg = f"{name}: {error}"
        raise MalformedError(msg) from error
    return keys_of_files(name, files)
