"""Changes of device metadata that no call makes, for example after a change of rates."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

import msgspec
import structlog

from k8s_rdma.agent.claim_states import prepared_claims
from k8s_rdma.agent.report import StatePublisher
from k8s_rdma.core.ledger import ClaimUid
from k8s_rdma.errors import K8sRdmaError

if TYPE_CHECKING:
    from k8s_rdma.agent.claim_metadata import ClaimMetadata
    from k8s_rdma.agent.node import Node
    from k8s_rdma.agent.worker import Worker
    from k8s_rdma.wire.claims import PreparedClaim

_log = structlog.get_logger()

RETRY_S = 30.0
"""The time after which files that could not be written are tried again."""

_encoder = msgspec.json.Encoder()


class MetadataUpdates:
    """Keeps the files up to date while claims are prepared, for example after a change of rates.

    publisher: wakes it; call it after each change of the node.
    """

    def __init__(self, node: Node, metadata: ClaimMetadata, worker: Worker) -> None:
        """Write in `run` alone."""
        self._node = node
        self._metadata = metadata
        self._worker = worker
        self._written: dict[str, PreparedClaim] = {}
        self.publisher = StatePublisher(lambda: _encoder.encode(prepared_claims(node)))

    async def run(self) -> NoReturn:
        """Write each change until cancelled."""
        states, problem = None, ""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S if problem else None):
                    states = await self.publisher.wait_for_change(states)
            try:
                await self._worker.run(self._write_changed)
            except K8sRdmaError as error:
                if error.message != problem:
                    _log.warning("device_metadata_not_written", error=error.message)
                problem = error.message
            else:
                problem = ""

    def _write_changed(self) -> None:
        """Write the files of claims that are not as they were last written, on the worker's thread."""
        claims = {claim.claim.uid: claim for claim in prepared_claims(self._node)}
        self._written = {uid: claim for uid, claim in self._written.items() if uid in claims}
        for uid, claim in claims.items():
            if self._written.get(uid) != claim:
                self._metadata.write(self._node.ledger.claims[ClaimUid(uid)])
                self._written[uid] = claim
