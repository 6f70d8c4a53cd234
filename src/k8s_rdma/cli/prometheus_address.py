"""The address of Prometheus, from a command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from k8s_rdma.kube.selection import USUAL_KUBECONFIG, KubeconfigSelection

URL_VARIABLE = "K8S_RDMA_PROMETHEUS"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusAddress:
    """Address and credentials of Prometheus.

    url: empty without Prometheus; of the scheme `service` by the API server.
    token_file: with a bearer token.
    ca_file: PEM, the authority of its certificate; by default the system's.
    """

    url: str = ""
    token_file: Path | None = None
    ca_file: Path | None = None
    kubeconfig: KubeconfigSelection = USUAL_KUBECONFIG
