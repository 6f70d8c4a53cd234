"""Multus on a node: its configuration, and the kind of object by which pods name its networks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from e2e.node import Node

STATUS = "k8s.v1.cni.cncf.io/network-status"
NETWORKS = "k8s.v1.cni.cncf.io/networks"
RESOURCE = "k8s.v1.cni.cncf.io/resourceName"

CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "network-attachment-definitions.k8s.cni.cncf.io"},
    "spec": {
        "group": "k8s.cni.cncf.io",
        "scope": "Namespaced",
        "names": {
            "plural": "network-attachment-definitions",
            "singular": "network-attachment-definition",
            "kind": "NetworkAttachmentDefinition",
        },
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {"type": "object", "properties": {"config": {"type": "string"}}}
                        },
                    }
                },
            }
        ],
    },
}
"""As the Multi-Network specification 1.3 has it, section 3.4.1."""


def thin(node: Node, kubeconfig: Path, *plugins: dict[str, Any]) -> dict[str, Any]:
    """Return the network of a node with Multus as an executable; plugins: of the cluster's own network."""
    return {
        "cniVersion": "1.0.0",
        "name": "multus-cni-network",
        "type": "multus",
        "kubeconfig": str(kubeconfig),
        "confDir": str(node.directory / "multus" / "net.d"),
        "cniDir": str(node.directory / "multus" / "cni"),
        "logFile": str(node.directory / "multus.log"),
        "logLevel": "verbose",
        "logToStderr": False,
        "delegates": [{"cniVersion": "1.0.0", "name": "pods", "plugins": list(plugins)}],
    }


def definition(name: str, config: dict[str, Any], resource: str = "") -> dict[str, Any]:
    """A network; resource: whose devices it attaches."""
    return {
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": name, "annotations": {RESOURCE: resource} if resource else {}},
        "spec": {"config": json.dumps(config)},
    }
