"""What is to be done so that kubelet follows a resource: a decision of what is there."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto, unique

from k8s_rdma.deviceplugin.kubelet.sockets import SocketFile

SETTLE_S = 0.1
"""Between the end of kubelet's call and the next registration with the same kubelet. When a call ends,
kubelet forgets whatever endpoint the resource has by then, be it a new one (Kubernetes 1.36, `runClient` in
`pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go`)."""

PATIENCE_S = 10.0
"""For kubelet's call after a registration that it took."""


@unique
class Due(Enum):
    """What to do next."""

    SERVE = auto()
    """Make an endpoint, in place of one that there may be."""
    REGISTER = auto()
    NOTHING = auto()
    """Until something changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Of one resource.

    at_path: the socket at its path, and whether it is this process's or another that is served.
    kubelet: kubelet's socket. registered: that of the kubelet which took the last registration.
    followed: whether kubelet's call goes on; was_followed: whether there was one since that registration.
    since_s: how long ago kubelet's call ended or, if there was none, that registration was.
    """

    ours: bool
    others: bool = False
    kubelet: SocketFile | None = None
    registered: SocketFile | None = None
    followed: bool = False
    was_followed: bool = False
    since_s: float = 0.0

    def due(self) -> Due:
        """What to do."""
        if self.others:
            return Due.NOTHING  # a successor has taken over: two that replaced each other would never end
        if not self.ours:
            return Due.SERVE
        if self.kubelet is None or self.waits_s() > 0:
            return Due.NOTHING
        return Due.NOTHING if self.kubelet == self.registered and self.followed else Due.REGISTER

    def waits_s(self) -> float:
        """How long kubelet is still left alone; 0 where there is none, or time is up."""
        if self.kubelet is None or self.kubelet != self.registered or self.followed:
            return 0.0
        return max(0.0, (SETTLE_S if self.was_followed else PATIENCE_S) - self.since_s)
