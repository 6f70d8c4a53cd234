"""The extender, and the versions of everything that takes part."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.doctor.finding import Subject
from k8s_rdma.extender.config import ExtenderConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.doctor.finding import Finding

EXTENDER = Subject("extender", "Scheduler extender")
EXTENDER_OK = EXTENDER.ok()
NOT_ASKED = EXTENDER.note("not-asked")
NO_POD = EXTENDER.error("no-pod")
UNREACHABLE = EXTENDER.error("unreachable")
NOT_READY = EXTENDER.error("not-ready")

VERSIONS = Subject("versions", "Versions")
VERSIONS_OK = VERSIONS.ok()
TOO_OLD = VERSIONS.error("too-old")
UNTRIED = VERSIONS.note("untried")
KUBELET_SKEW = VERSIONS.warning("kubelet-skew")
TOUCH_BY = VERSIONS.warning("touch-by-label")
OURS_DIFFER = VERSIONS.warning("ours-differ")

OLDEST, NEWEST = 28, 36
"""Minor versions of Kubernetes 1 that are supported."""
LABEL_ONLY = (28, 29)
"""Whose kube-scheduler heeds no annotation of a node (docs/extender.md, Configuration)."""
KUBELET_BEHIND = 3
"""Minor versions (kubernetes.io, Version Skew Policy)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderFacts:
    """url: where it was asked; empty where nobody said. refused: what it answered, `why`: that it did not.

    pods: names and whether they are ready, of the cluster's extender pods; None where that is not known.
    """

    url: str = ""
    refused: str = ""
    why: str = ""
    pods: tuple[tuple[str, bool], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionFacts:
    """api: the API server's, `v1.36.2`. kubelets: by node. images: of our pods, `namespace/pod`.

    extender: its configuration where that is known.
    """

    api: str
    kubelets: tuple[tuple[str, str], ...]
    images: tuple[tuple[str, str], ...]
    extender: ExtenderConfig | None


def check_extender(facts: ExtenderFacts) -> Iterator[Finding]:
    """Whether it is there, reachable and ready to bind."""
    for name, ready in facts.pods or ():
        if not ready:
            yield NOT_READY(
                "the pod is not ready, so that pods with the annotation wait",
                about=name,
                source="pods",
                wanted="ready; of several replicas the one that holds the Lease",
                fix=f"kubectl -n {name.partition('/')[0]} logs {name.partition('/')[2]}",
            )
        else:
            yield EXTENDER_OK("the pod is ready", about=name, source="pods")
    if facts.pods == () and not facts.url:
        yield NO_POD(
            "no pod of the extender runs in the cluster",
            source="pods with app.kubernetes.io/component=extender",
            wanted="one, or one beside kube-scheduler that --extender names",
            fix="install the chart, or give --extender URL",
        )
    if not facts.url:
        yield NOT_ASKED("was not asked itself; --extender URL has it asked", source="--extender")
    elif facts.why:
        yield UNREACHABLE(
            facts.why,
            about=facts.url,
            source=f"{facts.url}/readyz",
            wanted="an answer",
            fix="the extender runs there, kube-scheduler reaches it, and --extender and its options fit",
        )
    elif facts.refused:
        yield NOT_READY(
            facts.refused,
            about=facts.url,
            source=f"{facts.url}/readyz",
            wanted="ready",
            fix="what the message names; docs/extender.md, Restart and replicas",
        )
    else:
        yield EXTENDER_OK("answers, and is ready", about=facts.url, source=f"{facts.url}/readyz")


def check_versions(facts: VersionFacts) -> Iterator[Finding]:
    """The API server's, kubelets' and our own."""
    api = minor_of(facts.api)
    if api is None or api < OLDEST:
        yield TOO_OLD(
            f"the API server is {facts.api}",
            about="API server",
            source="/version",
            wanted=f"v1.{OLDEST} or newer",
            fix="update the cluster",
        )
    elif api > NEWEST:
        yield UNTRIED(f"the API server is {facts.api}, as yet untried", about="API server", source="/version")
    if api is not None:
        yield from _check_kubelets(facts, api)
        if api in LABEL_ONLY and (facts.extender is None or facts.extender.touch_by != "label"):
            yield TOUCH_BY(
                f"kube-scheduler {facts.api} heeds no annotation of a node: refused pods wait up to 5 "
                "minutes when capacity comes free",
                about="touchBy",
                source="/version; the extender's configuration"
                + ("" if facts.extender else ", which is not seen"),
                wanted="label",
                fix="touchBy: label in the extender's file",
            )
    ours = sorted({version for _, image in facts.images if (version := tag_of(image))})
    if len(ours) > 1:
        yield OURS_DIFFER(
            f"pods of several versions run: {', '.join(ours)}",
            about="k8s-rdma",
            source="; ".join(f"{pod}: {image}" for pod, image in facts.images[:6]),
            wanted="one version, but during an update; the extender first",
            fix="helm upgrade, or kubectl rollout restart; docs/extender.md",
        )
    else:
        said = f", k8s-rdma {ours[0]}" if ours else ""
        yield VERSIONS_OK(
            f"Kubernetes {facts.api}, {len(facts.kubelets)} kubelets{said}", source="/version; nodes"
        )


def _check_kubelets(facts: VersionFacts, api: int) -> Iterator[Finding]:
    for node, version in facts.kubelets:
        minor = minor_of(version)
        if minor is not None and not api - KUBELET_BEHIND <= minor <= api:
            yield KUBELET_SKEW(
                f"kubelet is {version}, and the API server {facts.api}",
                about=node,
                source=f"node {node}, nodeInfo",
                wanted=f"no newer, and at most {KUBELET_BEHIND} minor versions older",
                fix="update kubelet, or the control plane first",
            )


def minor_of(version: str) -> int | None:
    """28 of `v1.28.15-gke.100`; None of what is no version of Kubernetes 1."""
    found = re.match(r"v?1\.(\d+)", version)
    return int(found[1]) if found else None


def tag_of(image: str) -> str:
    """`0.1.0` of `registry.example:5000/k8s-rdma:0.1.0@sha256:...`; a digest alone is its first 12 digits."""
    name, _, digest = image.partition("@")
    _, colon, tag = name.rpartition("/")[2].partition(":")
    return tag if colon else digest.partition(":")[2][:12]
