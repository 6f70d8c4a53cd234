"""What a kubelet has of its container runtime: sandboxes with a network, and their end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from k8s_rdma.sim.cluster.cni_plugin import CniError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from k8s_rdma.sim.cluster.sandbox import PodRef, Sandbox


class AttachError(CniError):
    """A sandbox's network could not be set up.

    left: what could not be taken back either, for `delete`; None when nothing is left of it.
    told: what the runtime says of it to kubelet.
    """

    def __init__(self, error: CniError, left: Sandbox | None, *, told: str = "") -> None:
        super().__init__(error.message, code=error.code, details=error.details)
        self.left = left
        self.told = told or str(self)


class Runtime(Protocol):
    """Fails with CniError in the runtime's own words."""

    async def create(self, pod: PodRef) -> Sandbox:
        """What can be noted of a pod's sandbox before there is a network; KernelError."""

    async def attach(self, sandbox: Sandbox) -> Sandbox:
        """The sandbox with its network, perhaps under an id that only now is known; AttachError."""

    async def delete(self, sandbox: Sandbox) -> None:
        """End what runs in it, and its network; may be repeated until it succeeds."""

    async def detach(self, sandbox: Sandbox) -> None:
        """What follows a pod's end later: DEL once more, without a namespace."""

    async def lost(self, sandboxes: Sequence[Sandbox]) -> Sequence[Sandbox]:
        """Which of these are there no more, or do not run; none where that cannot be asked."""

    async def status(self) -> None:
        """Nothing, if pods can be started."""
