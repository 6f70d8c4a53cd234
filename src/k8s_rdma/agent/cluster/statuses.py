"""What each pod was given by all of its networks, for the one annotation that tells it."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from k8s_rdma.core.ids import ContainerId
from k8s_rdma.core.ledger import Attachment
from k8s_rdma.wire.network_status import NetworkStatus, encode_network_status

if TYPE_CHECKING:
    from k8s_rdma.core.ids import PodUid
    from k8s_rdma.core.ledger import Receipt

_MOST = 512


@dataclass(slots=True)
class _Given:
    """To one sandbox: a pod that is given another one has nothing of the one before."""

    container: ContainerId
    entries: dict[Attachment, tuple[NetworkStatus, ...]] = field(default_factory=dict)


class Statuses:
    """The annotation's value by pod; the one that was given something longest ago makes room."""

    def __init__(self) -> None:
        """Nobody was given anything."""
        self._given: OrderedDict[PodUid, _Given] = OrderedDict()

    def with_entries(self, receipt: Receipt, entries: tuple[NetworkStatus, ...]) -> str:
        """The value once an attachment has these, after those that were made before it."""
        given = self._given.pop(receipt.pod.uid, None)
        if given is None or given.container != receipt.attachment.container:
            given = _Given(receipt.attachment.container)
        given.entries[receipt.attachment] = entries
        self._given[receipt.pod.uid] = given
        if len(self._given) > _MOST:
            self._given.popitem(last=False)
        return encode_network_status(each for some in given.entries.values() for each in some)

    def forget(self, uid: PodUid) -> None:
        """The pod is gone."""
        self._given.pop(uid, None)
