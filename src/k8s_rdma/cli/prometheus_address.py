"""The address of Prometheus, as a command line says it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from k8s_rdma.kube.selection import USUAL_KUBECONFIG, KubeconfigSelection

URL_VARIABLE = "K8S_RDMA_PROMETHEUS"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusAddress:
    """Address and credentials of Prometheus. url: empty for none; of the scheme `service` by the API server.

    token_file: with a bearer token. ca_file: PEM, whom its certificate is from; None for the system's.
    """

    url: str = ""
    token_file: Path | None = None
    ca_file: Path | None = None
    kubeconfig: KubeconfigSelection = USUAL_KUBECONFIG
