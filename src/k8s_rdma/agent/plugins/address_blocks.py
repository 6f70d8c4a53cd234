"""The blocks of subnets from which this node's pods get addresses (`ipam.perNode`).

A block is a Lease: the API server makes an object of a name once, so two nodes never have the same block. The
Lease is deleted with the Node object. The API server is asked when a subnet is used first after a start, and
every `VERIFY_S` from then on; while it does not answer, the block of before stands, so that pods start
without it.
"""

from __future__ import annotations

import asyncio
import json
from binascii import crc32
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from k8s_rdma.errors import K8sRdmaError, Reason
from k8s_rdma.kube.errors import API_ERRORS
from k8s_rdma.kube.held_leases import HeldLeases, LeaseHolderApi
from k8s_rdma.kube.informer import REAL_TIME, Time
from k8s_rdma.linux.atomic_file import write_file
from k8s_rdma.wire.address_leases import ADDRESS_LEASES
from k8s_rdma.wire.nesting import load

if TYPE_CHECKING:
    from pathlib import Path

    from k8s_rdma.core.types import NodeName
    from k8s_rdma.wire.plugin_config import AddressSpace

_log = structlog.get_logger()

VERIFY_S = 600.0
"""The time after which a block is verified: somebody may have deleted its Lease."""

API_TIMEOUT_S = 10.0
"""The longest wait for the API server within an ADD; the runtime's own deadline is minutes."""

MAX_PROBES = 4096
"""The largest number of blocks that are tried for a free one, some milliseconds each."""


@dataclass(slots=True)
class _Block:
    index: int
    verify_at: float = float("-inf")


class AddressBlocks:
    """Claims this node's blocks. file: remembers them over restarts."""

    def __init__(
        self, api: LeaseHolderApi, node: NodeName, namespace: str, file: Path, time: Time = REAL_TIME
    ) -> None:
        """Send no request yet."""
        self._leases = HeldLeases(api, node, namespace, int(VERIFY_S))
        self._node = node
        self._namespace = namespace
        self._file = file
        self._time = time
        self._lock = asyncio.Lock()
        self._held_blocks: dict[str, _Block] | None = None

    async def block(self, space: AddressSpace) -> int:
        """Return the index of this node's block; take one if it has none.

        K8sRdmaError (`API_FAILURE`) when that takes the API server, and it does not answer; `IPAM_FAILURE`
        when all blocks are other nodes'.
        """
        async with self._lock:
            if self._held_blocks is None:
                self._held_blocks = await asyncio.to_thread(self._load)
            key = lease_prefix(space)
            former = self._held_blocks.get(key)
            if former is not None and self._time.monotonic() < former.verify_at:
                return former.index
            try:
                async with asyncio.timeout(API_TIMEOUT_S):
                    index = await self._take_block(space, former)
            except (TimeoutError, *API_ERRORS) as error:
                if former is not None and 0 <= former.index < space.blocks:
                    _log.warning("address_block_not_verified", space=str(space), why=str(error))
                    return former.index
                msg = f"addresses: no block of {space} for this node: {_why(error)}"
                raise K8sRdmaError(msg, reason=Reason.API_FAILURE) from error
            if former is None or former.index != index:
                _log.info(
                    "address_block_claimed", space=str(space), index=index, first=space.addresses(index)[0]
                )
            self._held_blocks[key] = _Block(index, self._time.monotonic() + VERIFY_S)
            await asyncio.to_thread(self._save)
            return index

    async def _take_block(self, space: AddressSpace, former: _Block | None) -> int:
        """Probe from the block of before, or from one by the node's name, which is likely to be free."""
        first = former.index if former is not None else crc32(self._node.encode())
        probes = min(space.blocks, MAX_PROBES)
        for index in ((first + probe) % space.blocks for probe in range(probes)):
            if await self._leases.take(f"{lease_prefix(space)}{index}") == self._node:
                return index
        msg = (
            f"addresses: none of {probes} blocks of {space} is free; their holders: kubectl -n "
            f"{self._namespace} get leases | grep {lease_prefix(space)}; a larger range, or fewer addresses "
            "in ipam.perNode, makes more blocks"
        )
        raise K8sRdmaError(msg, reason=Reason.IPAM_FAILURE)

    def _load(self) -> dict[str, _Block]:
        with suppress(FileNotFoundError):
            try:
                found = load(self._file.read_text())
                return {str(key): _Block(int(index)) for key, index in found.items()}
            except (ValueError, TypeError, AttributeError) as error:
                _log.warning("address_blocks_unreadable", file=str(self._file), why=str(error))
        return {}

    def _save(self) -> None:
        indexes = {key: block.index for key, block in (self._held_blocks or {}).items()}
        try:
            write_file(self._file, json.dumps(indexes).encode())
        except OSError as error:
            _log.warning("address_blocks_not_written", file=str(self._file), why=str(error))


def lease_prefix(space: AddressSpace) -> str:
    """The names of a subnet's Leases, without the index: RFC 1123 names have no colon."""
    subnet = space.subnet.network_address.exploded.replace(".", "-").replace(":", "-")
    return f"{ADDRESS_LEASES}{subnet}.{space.subnet.prefixlen}.{space.prefix}."


def _why(error: BaseException) -> str:
    return str(error) or f"no answer from the API server in {API_TIMEOUT_S:g} s"
