"""The whole plan of an attachment, which the agent applies in two parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.plan import Addressing, configurations, hand_over

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.core.ledger import Receipt
    from k8s_rdma.core.step import Step


def plan(receipt: Receipt, addressing: Mapping[str, Addressing]) -> tuple[Step, ...]:
    """Rates first, settings, then the moves, then addresses: no VF is in a pod before its rates hold.

    addressing: by interface name; an interface that is not in it comes up without addresses.
    """
    return hand_over(receipt) + configurations(receipt, addressing)
