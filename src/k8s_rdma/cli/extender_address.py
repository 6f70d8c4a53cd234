"""The address of an extender, from a command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from k8s_rdma.config.addresses import EXTENDER_URL, NAMESPACE
from k8s_rdma.kube.selection import USUAL_KUBECONFIG, KubeconfigSelection
from k8s_rdma.wire.tokens import TOKENS_SECRET

URL_VARIABLE = "K8S_RDMA_EXTENDER"
SERVICE_SCHEME = "service://"
VIEWS = "k8s-rdma-views:views"
VIEWS_URL = f"{SERVICE_SCHEME}{NAMESPACE}/{VIEWS}"
"""The Service that the chart makes for viewers (`viewers.enabled`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderAddress:
    """Address and credentials of the extender.

    token_file: the file with the bearer token that it demands.
    cert_file, key_file: PEM, the certificate that it demands, and its key.
    ca_file: PEM, the authority of its certificate; by default the system's.
    insecure: whether to trust any certificate.
    is_named: whether the user named the address.
    kubeconfig: of the API server whose proxy a URL of `SERVICE_SCHEME` goes through.
    tokens_secret: the Secret with the token for that URL.
    """

    url: str = EXTENDER_URL
    is_named: bool = False
    token_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    ca_file: Path | None = None
    insecure: bool = False
    kubeconfig: KubeconfigSelection = USUAL_KUBECONFIG
    tokens_secret: str = TOKENS_SECRET
