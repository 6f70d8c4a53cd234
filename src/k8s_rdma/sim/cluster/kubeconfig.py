"""A kubeconfig by which clients find the API server stand-in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from pathlib import Path

    from k8s_rdma.sim.cluster.objects import JsonObject

_NAME = "k8s-rdma-sim"


def kubeconfig(server: str, *, namespace: str = "default", token: str = "") -> JsonObject:
    """A kubeconfig document with one context, without TLS.

    server: e.g. `http://127.0.0.1:8080`. token: whom the API server is to take its user for; empty: nobody.
    """
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": _NAME,
        "clusters": [{"name": _NAME, "cluster": {"server": server}}],
        "users": [{"name": _NAME, "user": {"token": token} if token else {}}],
        "contexts": [{"name": _NAME, "context": {"cluster": _NAME, "user": _NAME, "namespace": namespace}}],
    }


def write_kubeconfig(path: Path, server: str, *, namespace: str = "default", token: str = "") -> Path:
    """Write `kubeconfig(server)` as YAML; returns the path."""
    document = kubeconfig(server, namespace=namespace, token=token)
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path
