"""Paths of the project on a guest that is a node, and how a runtime calls its CNI executable."""

from __future__ import annotations

ETC = "/etc/k8s-rdma"
"""Configuration, a file for each process."""
RUN = "/run/k8s-rdma"
MARKERS = f"{RUN}/attachments"
PLUGIN = "/opt/cni/bin/k8s-rdma-cni"
CNI_PATH = "/opt/cni/bin:/usr/lib/cni"
"""The folder of plugins, with Debian's."""
SERVER = "http://127.0.0.1:54005"
ANNOTATIONS = "io.kubernetes.cri.pod-annotations"
"""The runtime's capability by which pods' annotations come."""
ANNOTATION = "rdma_interfaces_required"
"""The annotation with a pod's interfaces."""


def cni_network(
    *, version: str, subnet: dict[str, str], leases: str, asked: str | None = None
) -> dict[str, object]:
    """Return the configuration of our plugin alone, as a runtime completes it for a pod.

    subnet: of host-local's, which keeps its leases in that directory. asked: the text of `ANNOTATION`; unset
    without a pod.
    """
    ipam = {"type": "host-local", "ranges": [[subnet]], "dataDir": leases}
    network: dict[str, object] = {"cniVersion": version, "name": "rdma", "type": "k8s-rdma-cni", "ipam": ipam}
    return network if asked is None else network | {"runtimeConfig": {ANNOTATIONS: {ANNOTATION: asked}}}


def cni_environment(command: str, pod: str, container: str, netns: str) -> dict[str, str]:
    """Return a runtime's variables for a plugin about a pod's sandbox (CNI specification, section 2).

    netns: the namespace's name, as `ip netns` has it.
    """
    arguments = {
        "IgnoreUnknown": "1",
        "K8S_POD_NAMESPACE": "default",
        "K8S_POD_NAME": pod,
        "K8S_POD_UID": f"uid-{pod}",
        "K8S_POD_INFRA_CONTAINER_ID": container,
    }
    return {
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": container,
        "CNI_NETNS": f"/run/netns/{netns}",
        "CNI_IFNAME": "eth0",
        "CNI_PATH": CNI_PATH,
        "CNI_ARGS": ";".join(f"{name}={value}" for name, value in arguments.items()),
    }
