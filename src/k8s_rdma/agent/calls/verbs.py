"""The CNI verbs: what each call of the runtime does to the node.

Source: CNI specification 1.1.0, section 2. All calls for one container run one after the other; those of
different containers meet only at the worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.agent.calls.attaching import Attaching
from k8s_rdma.agent.calls.checking import Checking
from k8s_rdma.agent.calls.ending import Ending
from k8s_rdma.agent.calls.readiness import require_ready
from k8s_rdma.agent.plugins.called import called_plugins, plugins_of_now
from k8s_rdma.agent.software_caps import SoftwareCaps
from k8s_rdma.core.ledger import Attachment
from k8s_rdma.wire.netconf import decode_netconf

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from k8s_rdma.agent.calls.attaching import Given
    from k8s_rdma.agent.calls.means import Means
    from k8s_rdma.agent.calls.wanted import Policy
    from k8s_rdma.core.step import NetnsRef
    from k8s_rdma.wire.cni_environment import CniEnvironment


class Verbs:
    """ADD, DEL, CHECK, STATUS and GC on one node, and what must be done without a call."""

    def __init__(self, means: Means, *, policy: Policy, claimed: Callable[[], Awaitable[None]]) -> None:
        """claimed: awaited after a claim is on disk, before the pod gets anything of it."""
        self._means = means
        self._ending = Ending(means)
        self._attaching = Attaching(means, self._ending, policy, claimed)
        self._checking = Checking(means, policy)
        self._caps = SoftwareCaps(means)

    async def add(
        self,
        call: CniEnvironment,
        netns: NetnsRef,
        stdin: bytes,
        still_waiting: Callable[[], bool] = lambda: True,
    ) -> Given | None:
        """See `Attaching.add`."""
        return await self._attaching.add(call, netns, stdin, still_waiting)

    async def delete(self, call: CniEnvironment, network: str, stdin: bytes = b"") -> None:
        """See `Ending.delete`."""
        attachment = Attachment(network, call.container_id, call.ifname)
        await self._ending.delete(attachment, plugins_of_now(stdin, call))

    async def check(self, call: CniEnvironment, stdin: bytes) -> None:
        """See `Checking.check`."""
        await self._checking.check(call, stdin)

    async def collect(self, call: CniEnvironment, stdin: bytes) -> None:
        """See `Ending.collect`.

        GC is not told whether other plugins ran before this one on ADD. If none did, leases are kept under
        the network's own name, and then receipts tell; to guess that name would free what is of others.
        """
        conf = decode_netconf(stdin, strict=False)
        await self._ending.collect(conf, called_plugins(stdin, conf, call, beside_others=True))

    async def status(self, call: CniEnvironment, stdin: bytes) -> None:
        """See `require_ready`."""
        conf = decode_netconf(stdin)
        plugins = called_plugins(stdin, conf, call, beside_others=True)
        await require_ready(self._means, plugins)

    async def reconcile(self) -> bool:
        """See `Ending.reconcile`."""
        return await self._ending.reconcile()

    async def restore_caps(self) -> bool:
        """See `SoftwareCaps.restore`."""
        return await self._caps.restore()

    async def idle(self) -> None:
        """Wait until no attachment is being made or ended: for work that would only hold them up."""
        await self._means.turns.idle()
