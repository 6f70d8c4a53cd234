"""Files of other programs that people give to ours: recognised by their keys, with the page that translates.

Sources: `README.md` of k8snetworkplumbingwg/sriov-network-device-plugin, sriov-network-operator and
Mellanox/k8s-rdma-shared-dev-plugin; CNI specification 1.1.0, section 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from k8s_rdma.wire.json_faults import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

_SRIOV, _SHARED = "docs/migration-sriov.md", "docs/migration-mellanox-shared.md"
_BY_KEY: Mapping[str, str] = {
    "resourcelist": f"is a file of sriov-network-device-plugin; ours has resources: {_SRIOV}",
    "configlist": f"is a file of k8s-rdma-shared-dev-plugin, which the device plugin alone reads: {_SHARED}",
    "pfnetdevices": f"is a file of k8s-rdma-sriov-dev-plugin; ours has resources: {_SHARED}",
    "cniversion": "is a CNI network configuration, for the directory of the container runtime: docs/cni.md",
}
_SCHEDULER = (
    "is kube-scheduler's own configuration, for its --config: docs/extender-configuration.md#registration"
)
_BY_KIND: Mapping[str, str] = {
    "KubeSchedulerConfiguration": _SCHEDULER,
    "Policy": _SCHEDULER,
    "NetworkAttachmentDefinition": "is an object of Multus: docs/cni-install.md",
    **dict.fromkeys(
        ("SriovNetworkNodePolicy", "SriovNetwork", "SriovIBNetwork", "SriovOperatorConfig"),
        f"is an object of sriov-network-operator: {_SRIOV}",
    ),
    **dict.fromkeys(
        ("NicClusterPolicy", "MacvlanNetwork", "HostDeviceNetwork", "IPoIBNetwork"),
        f"is an object of network-operator: {_SHARED}",
    ),
}


def foreign_format(document: object) -> str:
    """Name the program that the file is for, and its translation; empty if it is not recognised."""
    if not isinstance(document, dict):
        return ""
    kind = document.get("kind")
    if isinstance(kind, str) and "apiVersion" in document:
        return _BY_KIND.get(kind) or _object(kind, document)
    keys = {str(key).lower() for key in document}
    return next((text for key, text in _BY_KEY.items() if key in keys), "")


def _object(kind: str, document: dict[Any, Any]) -> str:
    data = document.get("data")
    if kind == "ConfigMap" and isinstance(data, dict) and data:
        keys = ", ".join(shown(str(key)) for key in data)
        return f"is a ConfigMap; give the text of its key ({keys}) as a file of its own"
    return f"is a Kubernetes object of kind {shown(kind)}, and no configuration of this program"
