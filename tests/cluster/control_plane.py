"""The parts of Kubernetes that every scenario needs, whether it is real or stands in."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, Protocol

import yaml

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

Json = dict[str, Any]


class ControlPlane(Protocol):
    """An API server with RBAC, and a way to run schedulers against it.

    url, admin_token, ca_file: how a user reaches it that may do everything; without ca_file by plain HTTP.
    release: of Kubernetes, e.g. (1, 36). directory: for files and logs. computes_budgets: whether somebody
    keeps the status of disruption budgets. restart_api: ends the API server, and runs it again on the
    stored objects; None if these end with it.
    """

    url: str
    admin_token: str
    ca_file: Path | None
    release: tuple[int, int]
    directory: Path
    computes_budgets: bool
    restart_api: Callable[..., Awaitable[None]] | None

    def scheduler(self, configuration: Json) -> AbstractAsyncContextManager[object]:
        """A scheduler with this KubeSchedulerConfiguration for as long as the block lasts."""
        ...

    async def add_crd(self, manifest: Json) -> None:
        """Serve the kind of object that a CustomResourceDefinition describes."""
        ...


def write_kubeconfig(path: Path, plane: ControlPlane, token: str) -> Path:
    """A kubeconfig by which whoever the token belongs to reaches the API server."""
    cluster = {"server": plane.url}
    if plane.ca_file is not None:
        cluster["certificate-authority"] = str(plane.ca_file)
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
