"""`k8s-rdma doctor cluster`: has the cluster looked at by the API server."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from k8s_rdma.cli.doctor import COULD_NOT_LOOK, tell
from k8s_rdma.cli.extender_client import ExtenderClient, NoAnswerError, Where
from k8s_rdma.doctor.cluster.components import ExtenderFacts
from k8s_rdma.doctor.looking.cluster import ClusterLook
from k8s_rdma.doctor.looking.host import Host
from k8s_rdma.doctor.looking.versions import in_metrics, signed_in_metrics
from k8s_rdma.errors import K8sRdmaError, visible
from k8s_rdma.kube.documents import Documents

_CONTROL_PLANE = "kube-system"
"""Where the extender is that was set up beside kube-scheduler (deploy/rbac/extender.yaml)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """What the command line says. scheduler, extender: configuration files. where: the extender itself."""

    kubeconfig: str | None
    namespace: str
    scheduler: Path | None
    extender: Path | None
    host_root: Path
    where: Where | None


def doctor_cluster(options: ClusterOptions, *, as_json: bool, strict: bool) -> int:
    """The exit status: 0, 1, or 2 when the API server cannot be asked."""
    try:
        with Documents(options.kubeconfig) as api:
            look = _look(options, api)
            look.version  # noqa: B018 - whether there is an API server at all
            findings = tuple(look.findings())
    except (K8sRdmaError, OSError) as error:
        sys.stderr.write(f"k8s-rdma: could not look: {visible(str(error))}\n")
        return COULD_NOT_LOOK
    return tell("cluster", findings, as_json=as_json, strict=strict)


def _look(options: ClusterOptions, api: Documents) -> ClusterLook:
    where = options.where
    return ClusterLook(
        api=api,
        host=Host(options.host_root),
        namespaces=tuple(dict.fromkeys((options.namespace, _CONTROL_PLANE))),
        scheduler_file=options.scheduler,
        extender_file=options.extender,
        ask_extender=None if where is None else lambda: ask(where),
    )


def ask(where: Where) -> ExtenderFacts:
    """Whether the extender is ready. MalformedError names an option that cannot be used."""
    with ExtenderClient(where) as extender:
        try:
            ready = extender.get("/readyz", {}).decode()
        except NoAnswerError as error:
            return ExtenderFacts(url=extender.url, why=error.message)
        except K8sRdmaError as error:
            return ExtenderFacts(url=extender.url, refused=error.message)
        warning, metrics = ready.partition("warning: ")[2].strip(), _metrics(extender)
        return ExtenderFacts(
            url=extender.url,
            warning=warning,
            version=in_metrics(metrics),
            signed=signed_in_metrics(metrics) if metrics else None,
        )


def _metrics(extender: ExtenderClient) -> str:
    """Empty where they are not for us."""
    try:
        return extender.get("/metrics", {}).decode()
    except K8sRdmaError:
        return ""
