"""The ledger in memory, on disk, and in files that the CNI executable reads or leaves: changed here alone.

Blocking and confined to one thread (the agent's worker).
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from k8s_rdma.errors import LedgerError

if TYPE_CHECKING:
    from collections.abc import Collection

    from k8s_rdma.agent.left_deletions import LeftDeletions
    from k8s_rdma.agent.markers import Markers
    from k8s_rdma.core.ids import ContainerId
    from k8s_rdma.core.ledger import Attachment, Ledger, Receipt
    from k8s_rdma.linux.receipts import Receipts


class KeptLedger:
    """Markers come before a container's first receipt, or an ADD that may make one, and go after the last.

    A deletion that was left of an attachment goes after its receipt, and before the next one.
    """

    def __init__(self, receipts: Receipts, markers: Markers, left: LeftDeletions) -> None:
        """Load it; what is marked stays as it was until `mark_all`."""
        self._receipts = receipts
        self._markers = markers
        self._left = left
        self._marked_in_vain = False
        self._pending: Counter[ContainerId] = Counter()
        self.ledger: Ledger = receipts.load()

    def mark_all(self) -> None:
        """Have the markers be those of receipts and pending ADDs. LedgerError when they cannot be made so."""
        self._markers.replace_all({key.container for key in self.ledger.receipts} | self._pending.keys())
        self._marked_in_vain = False

    def mend(self) -> None:
        """The same where some went wrong or were taken away, and nothing left of others; as far as can be."""
        self._left.keep_only(self.ledger.receipts)
        if self._marked_in_vain or self._markers.lost:
            with suppress(LedgerError):
                self.mark_all()

    def begin_add(self, container: ContainerId) -> None:
        """Mark a container until `end_add`: we are asked about a DEL that overtakes its ADD. LedgerError."""
        self._markers.add(container)
        self._pending[container] += 1

    def end_add(self, container: ContainerId) -> None:
        """Unmark a container of which nothing is recorded, unless another ADD of it is pending."""
        self._pending[container] -= 1
        if not self._pending[container]:
            del self._pending[container]
        self._unmark(container)

    def claim(self, receipt: Receipt, others: Ledger, inherited: Collection[Attachment]) -> None:
        """Record a claim, the end of what it inherits, and whose slots are its now.

        others: the ledger without what is inherited. LedgerError: all is as before.
        """
        container, losing = receipt.attachment.container, others.losing_slots(receipt)
        ledger = others.with_receipt(receipt)
        for loser in losing:
            ledger = ledger.with_receipt(loser)
        self._left.drop(receipt.attachment)
        self._markers.add(container)
        try:
            self._receipts.put(receipt, *losing, instead_of=inherited)
        except LedgerError:
            self._unmark(container)
            raise
        self.ledger = ledger
        for each in inherited:
            self._unmark(each.container)

    def record(self, receipt: Receipt) -> Receipt:
        """Replace a receipt, but for its slots; as it is now. LedgerError: all is as before."""
        receipt = self._with_its_slots(receipt)
        ledger = self.ledger.with_receipt(receipt)
        self._receipts.put(receipt)
        self.ledger = ledger
        return receipt

    def note(self, receipt: Receipt) -> None:
        """The same, although it may not get on disk, as a full one must not keep VFs in pods.

        Without it a start finds the receipt as it was, and what followed is done once more.
        """
        receipt = self._with_its_slots(receipt)
        self.ledger = self.ledger.with_receipt(receipt)
        with suppress(LedgerError):
            self._receipts.put(receipt)

    def forget(self, attachment: Attachment) -> None:
        """Drop a receipt. LedgerError: all is as before."""
        self._receipts.remove(attachment)
        self.ledger = self.ledger.without(attachment)
        with suppress(LedgerError):  # `mend` will
            self._left.drop(attachment)
        self._unmark(attachment.container)

    def require_writable(self) -> None:
        """LedgerError when nothing could be recorded now."""
        self._receipts.require_writable()
        self._markers.require()

    def _with_its_slots(self, receipt: Receipt) -> Receipt:
        """As the ledger has it: another pod's ADD may have got some since the caller read the receipt."""
        now = self.ledger.receipts.get(receipt.attachment, receipt)
        return replace(receipt, slots=now.slots)

    def _unmark(self, container: ContainerId) -> None:
        """A marker too many makes the executable ask us in vain, no more: it may go later."""
        if container in self._pending or self.ledger.of_container(container):
            return
        try:
            self._markers.discard(container)
        except LedgerError:
            self._marked_in_vain = True
