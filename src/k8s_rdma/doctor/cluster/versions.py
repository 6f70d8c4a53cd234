"""Checks that versions of all components are compatible, by docs/compatibility-versions.md."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.doctor.finding import Finding, Severity, worst
from k8s_rdma.doctor.node.runtime import OLDEST as OLDEST_RUNTIMES
from k8s_rdma.doctor.node.runtime import delivers_annotations, version_of
from k8s_rdma.doctor.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


VERSIONS = Subject(
    "versions",
    "Versions",
    "[Versions that go together](compatibility-versions.md): of Kubernetes, runtimes, our pods (image"
    " tags), the extender (`--extender URL`), this program.",
)
OK = VERSIONS.ok()
NOT_COMPARED = VERSIONS.note("not-compared")
NO_NODE = VERSIONS.warning("no-node")
TOO_OLD = VERSIONS.error("too-old")
UNSUPPORTED = VERSIONS.warning("unsupported")
UNTRIED = VERSIONS.warning("untried")
KUBELET_SKEW = VERSIONS.warning("kubelet-skew")
RUNTIME = VERSIONS.warning("runtime")
NO_ANNOTATIONS = VERSIONS.warning("no-annotations")
TOUCH_BY = VERSIONS.warning("touch-by-label")
OURS_DIFFER = VERSIONS.warning("ours-differ")

OLDEST = 28
"""The oldest minor version of Kubernetes 1 that anything was run with."""
SUPPORTED = 31, 37
"""The first and last minor version that is supported (docs/adr/0031-kubernetes-1.31-to-1.37.md)."""
_RANGE = "v1.{} to v1.{}".format(*SUPPORTED)
LABEL_ONLY = (28, 29)
"""Versions of kube-scheduler that ignore annotations of nodes (docs/extender-configuration.md)."""
KUBELET_BEHIND = 3
"""Minor versions (kubernetes.io, Version Skew Policy)."""
_NUMBERED = re.compile(r"v?(\d+\.\d+\.\d+.*)")
_RUNTIMES = {"containerd": "containerd", "cri-o": "crio"}
"""Names of runtimes' programs, by the scheme of a Node's `containerRuntimeVersion`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeVersions:
    """Versions in a Node object: kubelet's, `v1.36.2`, and the runtime's, `containerd://2.2.1`."""

    node: str
    kubelet: str
    runtime: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionFacts:
    """Versions of a cluster's components.

    api: the API server's, `v1.36.2`; None without credentials.
    nodes: all nodes, or the node `node`, if the API server has it.
    node: the agent's; empty if all nodes are checked.
    ours: our processes, each as its name and its version. The version is the process's answer, or the tag of
        its pod's image, which may be any text.
    requeue_by: the extender's; empty if its configuration is not seen, None if it is of no concern.
    """

    api: str | None
    nodes: tuple[NodeVersions, ...] = ()
    ours: tuple[tuple[str, str], ...] = ()
    node: str = ""
    requeue_by: str | None = None


@VERSIONS.check(VersionFacts)
def check_versions(facts: VersionFacts) -> Iterator[Finding]:
    """Check the versions of the API server, kubelets, their runtimes and our processes."""
    if facts.api is None:
        yield NOT_COMPARED(
            "the agent has no credentials",
            source="kubeconfig and inCluster of the agent's file",
            fix="--kubeconfig FILE",
        )
        return
    if facts.node and not facts.nodes:
        yield NO_NODE(
            f"the API server has no node {facts.node}",
            about=facts.node,
            source="nodes",
            expected="the node's name in Kubernetes",
            fix="--node NAME, as in the agent's file",
        )
    found = (*_check_kubernetes(facts, facts.api), *_check_runtimes(facts.nodes), *_check_ours(facts.ours))
    yield from found
    if worst(found).rank <= Severity.NOTE.rank:
        ours = next((f", k8s-rdma {version}" for _, version in facts.ours if version), "")
        kubelets = f"{len(facts.nodes)} kubelet{'' if len(facts.nodes) == 1 else 's'}"
        yield OK(f"Kubernetes {facts.api}, {kubelets}{ours}", source="/version; nodes; pods")
    if facts.requeue_by is not None:
        yield from _check_requeue_by(facts.api, facts.requeue_by)


def _check_requeue_by(api: str, requeue_by: str) -> Iterator[Finding]:
    """Check that this kube-scheduler supports the extender's way to requeue waiting pods."""
    if minor_of(api) in LABEL_ONLY and requeue_by != "label":
        yield TOUCH_BY(
            f"kube-scheduler {api} ignores node annotations: refused pods wait up to 5 minutes",
            about="requeueBy",
            source="/version; the extender's configuration" + ("" if requeue_by else ", which is not seen"),
            expected="label",
            fix="the extender's requeueBy: label",
        )


def _check_kubernetes(facts: VersionFacts, version: str) -> Iterator[Finding]:
    api = minor_of(version)
    if api is None or api < OLDEST:
        yield _too_old("API server", f"the API server is {version}", "/version")
    elif api < SUPPORTED[0]:
        yield UNSUPPORTED(
            f"the API server is {version}, which the chart refuses and tests no longer cover",
            about="API server",
            source="/version",
            expected=_RANGE,
            fix="update the cluster",
        )
    elif api > SUPPORTED[1]:
        yield UNTRIED(
            f"the API server is {version}, newer than all that this release was tested with",
            about="API server",
            source="/version",
            expected=_RANGE,
            fix="a newer k8s-rdma; docs/compatibility-versions.md",
        )
    for node in facts.nodes:
        minor = minor_of(node.kubelet)
        if minor is not None and minor < OLDEST:
            yield _too_old(node.node, f"kubelet is {node.kubelet}", f"node {node.node}, nodeInfo")
        elif minor is not None and api is not None and not api - KUBELET_BEHIND <= minor <= api:
            yield KUBELET_SKEW(
                f"kubelet is {node.kubelet}, the API server {version}",
                about=node.node,
                source=f"node {node.node}, nodeInfo",
                expected=f"no newer, and at most {KUBELET_BEHIND} minor versions older",
                fix="update kubelet, or the control plane first",
            )


def _too_old(about: str, found: str, source: str) -> Finding:
    return TOO_OLD(
        found, about=about, source=source, expected=f"v1.{OLDEST} or newer", fix="update the cluster"
    )


def _check_runtimes(nodes: Iterable[NodeVersions]) -> Iterator[Finding]:
    for node in nodes:
        scheme, _, version = node.runtime.partition("://")
        name = _RUNTIMES.get(scheme, "")
        oldest = OLDEST_RUNTIMES.get(name)
        numbers = version_of(version)
        if node.runtime and (oldest is None or numbers is None or numbers < oldest):
            yield RUNTIME(
                f"runtime {node.runtime}",
                about=node.node,
                source=f"node {node.node}, nodeInfo",
                expected="containerd 1.6 or CRI-O 1.28, or newer; docs/compatibility-versions.md",
                fix="update the runtime",
            )
        elif numbers is not None and oldest is not None and not delivers_annotations(name, numbers):
            yield NO_ANNOTATIONS(
                f"runtime {node.runtime} passes no pod annotations: every pod waits for the agent, "
                "which queries the API server",
                about=node.node,
                source=f"node {node.node}, nodeInfo",
                expected="CRI-O 1.29 or newer; docs/compatibility-versions.md",
                fix="update the runtime; until then give the agent inCluster: true or kubeconfig: FILE",
            )


def _check_ours(ours: tuple[tuple[str, str], ...]) -> Iterator[Finding]:
    """Compare numbers with numbers, because a tag such as `stable` is no version."""
    numbered: dict[str, str] = {}
    different: dict[str, str] = {}
    for component, version in ours:
        if found := _NUMBERED.fullmatch(version):
            numbered.setdefault(found[1], component)
        elif version:
            different.setdefault(version, component)
    for versions in (numbered, different):
        if len(versions) > 1:
            yield OURS_DIFFER(
                f"several versions: {', '.join(f'{key} ({source})' for key, source in versions.items())}",
                about="k8s-rdma",
                source="pods' images, and what processes say of themselves",
                expected="one version, except during an update; the extender first",
                fix="helm upgrade, or kubectl rollout restart",
            )


def minor_of(version: str) -> int | None:
    """Return 28 of `v1.28.15-gke.100`, if it is a version of Kubernetes 1."""
    found = re.match(r"v?1\.(\d+)", version)
    return int(found[1]) if found else None


def tag_of(image: str) -> str:
    """Return the tag of an image; for a digest alone, its first 12 digits.

    For example, it is `0.1.0` of `registry.example:5000/k8s-rdma:0.1.0@sha256:...`.
    """
    name, _, digest = image.partition("@")
    _, colon, tag = name.rpartition("/")[2].partition(":")
    return tag if colon else digest.partition(":")[2][:12]
