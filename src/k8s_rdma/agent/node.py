"""The node: its kernel, its ledger, and the only code that changes either.

Blocking and confined to one thread (the agent's worker). What cannot be done in one go (addresses come
from another program) is two calls, `prepare` and `attach`; what lies between them is on disk.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from k8s_rdma.core.allocation import choose_vfs, decide, given, returned
from k8s_rdma.core.ledger import Attachment, Ipam, Phase, Pod, Receipt
from k8s_rdma.core.placement import Rejection
from k8s_rdma.core.plan import plan, undo
from k8s_rdma.core.step import NetnsRef
from k8s_rdma.errors import K8sRdmaError, KernelError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from k8s_rdma.agent.markers import Markers
    from k8s_rdma.core.ids import NodeName
    from k8s_rdma.core.kernel import Hardware, Kernel
    from k8s_rdma.core.ledger import Ledger
    from k8s_rdma.core.placement import Placement
    from k8s_rdma.core.plan import Addressing
    from k8s_rdma.core.request import Request
    from k8s_rdma.core.step import Step
    from k8s_rdma.linux.receipts import Receipts


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """Where interfaces shall go: the attachment that a CNI ADD asks for, and how it wants them.

    ifnames: names in the sandbox, in the request's order.
    """

    attachment: Attachment
    network: str
    pod: Pod
    netns: NetnsRef
    ifnames: tuple[str, ...]
    ipam: Ipam | None


class Node:
    """One node's devices and who holds them."""

    def __init__(
        self, *, name: NodeName, kernel: Kernel, receipts: Receipts, markers: Markers, boot_id: str
    ) -> None:
        """Load the ledger and look at the hardware; changes nothing yet (see `unfinished`)."""
        self.name = name
        self._kernel = kernel
        self._receipts = receipts
        self._markers = markers
        self._boot_id = boot_id
        self.ledger: Ledger = receipts.load()
        self.hardware: Hardware = kernel.observe()
        self._markers.replace_all({key.container for key in self.ledger.receipts})

    def refresh(self) -> bool:
        """Observe the hardware anew; whether anything differs from before."""
        before, self.hardware = self.hardware, self._kernel.observe()
        return before != self.hardware

    def prepare(self, sandbox: Sandbox, request: Request, promised: Placement | None) -> Receipt | Rejection:
        """Choose VFs and record the claim on disk; nothing in the kernel has changed yet."""
        decision = decide(
            node=self.name, request=request, promised=promised, hardware=self.hardware, ledger=self.ledger
        )
        if isinstance(decision, Rejection):
            return decision
        interfaces = choose_vfs(decision, self.hardware, self.ledger, sandbox.ifnames)
        if isinstance(interfaces, Rejection):
            return interfaces
        receipt = Receipt(
            attachment=sandbox.attachment,
            network=sandbox.network,
            pod=sandbox.pod,
            netns=sandbox.netns,
            boot_id=self._boot_id,
            phase=Phase.PREPARED,
            interfaces=interfaces,
            ipam=sandbox.ipam,
        )
        self._markers.add(sandbox.attachment.container)
        self._record(receipt)
        return receipt

    def attach(self, receipt: Receipt, addressing: Mapping[str, Addressing]) -> Receipt:
        """Make the kernel follow the receipt.

        KernelError at the first step that does not hold; what holds by then is `detach`'s to undo.
        """
        for step in plan(receipt, addressing):
            self._kernel.apply(step)
        attached = replace(receipt, phase=Phase.ATTACHED)
        self._record(attached)
        self.hardware = given(self.hardware, attached.interfaces)
        return attached

    def detach(self, receipt: Receipt) -> None:
        """Bring every VF of a receipt home, wherever its ADD stopped; the receipt stays until `forget`.

        Tries everything and raises one KernelError that names all that failed.
        """
        releasing = replace(receipt, phase=Phase.RELEASING)
        self._record(releasing)
        problems = self._apply_all(undo(plan(releasing, {})))
        if problems:
            msg = f"container {receipt.attachment.container}: {len(problems)} of its VFs' changes not undone"
            raise KernelError(msg, details="; ".join(problems))
        self.hardware = returned(self.hardware, receipt.interfaces)

    def forget(self, attachment: Attachment) -> None:
        """Drop the receipt: from here on the VFs may go to others."""
        self._receipts.remove(attachment)
        self.ledger = self.ledger.without(attachment)
        if not self.ledger.of_container(attachment.container):
            self._markers.discard(attachment.container)

    def unfinished(self) -> tuple[Receipt, ...]:
        """Receipts that must be ended: cut short by a crash, of another boot, or whose namespace is gone."""
        return tuple(
            receipt
            for receipt in self.ledger.receipts.values()
            if receipt.phase is not Phase.ATTACHED or self.orphaned(receipt)
        )

    def orphaned(self, receipt: Receipt) -> bool:
        """Whether the sandbox of a receipt no longer exists."""
        return receipt.boot_id != self._boot_id or not self._kernel.namespace_alive(receipt.netns)

    def _record(self, receipt: Receipt) -> None:
        ledger = self.ledger.with_receipt(receipt)
        self._receipts.put(receipt)
        self.ledger = ledger

    def _apply_all(self, steps: Iterable[Step]) -> list[str]:
        problems = []
        for step in steps:
            try:
                self._kernel.apply(step)
            except KernelError as error:
                problems.append(str(error))
        return problems


def rejected(rejection: Rejection, pod: Pod) -> K8sRdmaError:
    """The failure of an ADD that the node cannot serve."""
    message = f"node {rejection.node}: cannot give pod {pod.namespace}/{pod.name} its RDMA interfaces: "

    return K8sRdmaError(message + rejection.message, reason=rejection.reason)
