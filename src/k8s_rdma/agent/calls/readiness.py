"""STATUS: whether an ADD could succeed now.

Asked every few seconds (containerd), and the answer makes the node Ready or not: nothing here queries the
kernel, what is known already is enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.errors import K8sRdmaError, Reason

if TYPE_CHECKING:
    from k8s_rdma.agent.calls.means import Means
    from k8s_rdma.agent.node import Node
    from k8s_rdma.agent.plugins.called import CalledPlugins


async def require_ready(means: Means, plugins: CalledPlugins) -> None:
    """K8sRdmaError (`NOT_READY`) when the ledger, the hardware or another plugin lets no ADD succeed."""
    try:
        await means.worker.run(means.node.require_ledger)
        _require_hardware(means.node, delegates=plugins.delegate is not None)
        means.ipam.require(plugins.all_ipams)
        if plugins.delegate is not None:
            await means.delegate.status(plugins.delegate)
    except K8sRdmaError as error:
        raise K8sRdmaError(error.message, reason=Reason.NOT_READY, details=error.details) from error


def _require_hardware(node: Node, *, delegates: bool) -> None:
    """delegates: pods get an interface without any VF, so that a node that has no such card is ready, too."""
    if node.scanner.error:
        msg = f"node {node.name}: its hardware cannot be looked at: {node.scanner.error}"
        raise K8sRdmaError(msg)
    pfs = node.hardware.pfs
    if any(pf.vfs for pf in pfs) or (delegates and not pfs and not node.hardware.unreadable):
        return
    hidden = "; ".join(f"{item.what}: {item.why}" for item in node.hardware.unreadable)
    seen = f"none of PFs {', '.join(pf.name for pf in pfs)} has VFs" if pfs else "there is no SR-IOV PF"
    msg = f"node {node.name}: {seen}; has k8s-rdma init ended well here?"
    raise K8sRdmaError(msg, details=hidden)
