"""Whether this machine's kernel can keep caps by software, as it is said of its PFs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.software_caps import without_software_caps
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.netlink.token_bucket import knows

if TYPE_CHECKING:
    from k8s_rdma.core.kernel import Hardware
    from k8s_rdma.linux.netlink.socket import NetlinkSocket


class CapAbility:
    """Asked for at each look until it is there: somebody may load the module."""

    def __init__(self, socket: NetlinkSocket) -> None:
        """Ask by this socket."""
        self._socket = socket
        self._can = False

    def shown_in(self, hardware: Hardware) -> Hardware:
        """The same, with what the kernel cannot do."""
        if not self._can:
            self._can = _can(self._socket)
        return hardware if self._can else without_software_caps(hardware)


def _can(socket: NetlinkSocket) -> bool:
    """What is not known is not denied: a cap that cannot be set then makes ADD fail, which says why."""
    try:
        return knows(socket)
    except KernelError:
        return True
