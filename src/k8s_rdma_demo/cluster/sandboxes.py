"""Pod sandboxes: the runtime that makes them, and their files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import msgspec

from k8s_rdma.wire.json import decode
from k8s_rdma_demo.cluster.cni_plugin import CniError
from k8s_rdma_demo.cluster.cni_results import pod_ips
from k8s_rdma_demo.cluster.objects import JsonObject, Key

if TYPE_CHECKING:
    from pathlib import Path

IFNAME = "eth0"
"""The interface that containerd asks for, and whose addresses are the pod's."""


class Runtime(Protocol):
    """A node's container runtime, which fails with CniError in its own words."""

    async def create(self, pod: PodRef) -> Sandbox:
        """Create a pod's sandbox without its network; KernelError."""

    async def attach(self, sandbox: Sandbox) -> Sandbox:
        """The sandbox with its network, possibly under an id that only now is known; AttachError."""

    async def delete(self, sandbox: Sandbox) -> None:
        """End all that runs in it, and its network; may be repeated until it succeeds."""

    async def detach(self, sandbox: Sandbox) -> None:
        """Repeat DEL without a namespace, as follows some time after a pod's end."""

    async def list_dead(self, sandboxes: Sequence[Sandbox]) -> Sequence[Sandbox]:
        """List the sandboxes that do not exist or do not run; empty if the runtime does not answer."""

    async def status(self) -> None:
        """Return if pods can be started; otherwise raise."""


class AttachError(CniError):
    """A sandbox's network could not be set up.

    leftover: the sandbox whose deletion failed too, for `delete`; unset if it is gone.
    kubelet_message: the runtime's message to kubelet.
    """

    def __init__(self, error: CniError, leftover: Sandbox | None, *, kubelet_message: str = "") -> None:
        super().__init__(error.message, code=error.code, details=error.details)
        self.leftover = leftover
        self.kubelet_message = kubelet_message or str(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRef:
    """The pod that a sandbox is for; annotations: all that the runtime gets."""

    namespace: str
    name: str
    uid: str
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """The pod's namespace and name."""
        return self.namespace, self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """A network namespace for a pod. result: of the chain's ADD; unset until that has succeeded."""

    container_id: str
    pod: PodRef
    netns: str
    result: JsonObject | None = None

    @property
    def ips(self) -> list[str]:
        """The pod's addresses."""
        return pod_ips(self.result, IFNAME) if self.result is not None else []


_sandbox_decoder = msgspec.json.Decoder(Sandbox)


class SandboxDirectory:
    """One JSON file a sandbox, `<container id>.json`, for a restarted kubelet and for onlookers."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def save(self, sandbox: Sandbox) -> None:
        """Write a sandbox, whole or not at all."""
        self._directory.mkdir(parents=True, exist_ok=True)
        written = self._directory / f".{sandbox.container_id}.new"
        written.write_bytes(msgspec.json.format(msgspec.json.encode(sandbox)))
        written.replace(self._path(sandbox))

    def remove(self, sandbox: Sandbox) -> None:
        """Forget a sandbox."""
        self._path(sandbox).unlink(missing_ok=True)

    def load(self) -> list[Sandbox]:
        """All sandboxes; MalformedError names a file that is not a sandbox."""
        return [
            decode(path.read_bytes(), _sandbox_decoder, str(path))
            for path in sorted(self._directory.glob("*.json"))
        ]

    def of_pod(self, namespace: str, name: str) -> Sandbox | None:
        """Return the sandbox of a pod, if it is running."""
        found = (s for s in self.load() if s.pod.key == (namespace, name) and s.result is not None)
        return next(found, None)

    def _path(self, sandbox: Sandbox) -> Path:
        return self._directory / f"{sandbox.container_id}.json"
