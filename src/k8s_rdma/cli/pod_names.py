"""Pods as a command line names them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.kubeconfig import command_namespace

if TYPE_CHECKING:
    from k8s_rdma.kube.selection import KubeconfigSelection


def namespaced_name(text: str, kubeconfig: KubeconfigSelection) -> tuple[str, str]:
    """Parse `NAMESPACE/NAME` of a command line, or a name in the namespace that kubectl would take.

    MalformedError names the right form.
    """
    namespace, slash, name = text.rpartition("/")
    if not name or bool(namespace) != bool(slash) or "/" in namespace:
        example = text.strip("/").rpartition("/")[2] or "mypod"
        msg = f"{text}: wanted NAMESPACE/NAME, such as default/{example}, or NAME"
        raise MalformedError(msg)
    if namespace and kubeconfig.namespace not in (None, namespace):
        msg = f"{text}: names another namespace than --namespace {kubeconfig.namespace}"
        raise MalformedError(msg)
    return namespace or command_namespace(kubeconfig), name
