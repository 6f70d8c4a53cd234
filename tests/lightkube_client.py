"""A client of an API server without TLS."""

from __future__ import annotations

from lightkube import AsyncClient, SingleConfig
from lightkube.config.models import Cluster, Context, User


def lightkube_client(url: str) -> AsyncClient:
    """Return a client of the namespace `default`. `insecure` has it load no certificate authorities."""
    config = SingleConfig(
        "", Context(cluster="", namespace="default"), Cluster(server=url, insecure=True), User()
    )
    return AsyncClient(config, trust_env=False)
