"""An agent that is played on a real `state.sock`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

from k8s_rdma.core.rate_ability import EVERY_RATE
from k8s_rdma.wire.report import (
    Allocation,
    Enforced,
    Interface,
    NodeReport,
    PfReport,
    ReportedPod,
    encode_report,
    rates_of,
)
from k8s_rdma.wire.state_socket import MessageKind, encode_message
from linux.small_machine import PF, vf_pci

if TYPE_CHECKING:
    from pathlib import Path


def report(*given: str, slots: tuple[str, ...] = ()) -> NodeReport:
    """A node whose PF has VFs mlx5_1, mlx5_2 ..., of which a pod has these."""
    pf = PfReport(
        name="eth0",
        pci=PF,
        driver="mlx5_core",
        capacity_vfs=2,
        link_mbps=100_000,
        rates=rates_of(EVERY_RATE),
    )
    interfaces = tuple(
        Interface(
            pf=PF,
            vf=int(name.rpartition("_")[2]) - 1,
            ifname=f"rdma{number}",
            mac="0a:00:00:00:00:00",
            min_tx_rate=0,
            max_tx_rate=0,
            set_min_tx_rate=0,
            set_max_tx_rate=0,
            enforced=Enforced(min=None, max=None),
            pci=vf_pci(int(name.rpartition("_")[2]) - 1),
            rdma_device=name,
        )
        for number, name in enumerate(given)
    )
    pod = ReportedPod(namespace="default", name="p", uid="u1")
    held = Allocation(pod=pod, container_id="c1", phase="attached", interfaces=interfaces, slots=slots)
    return NodeReport(
        node="w1", generation="e.1", ledger="ok", pfs=(pf,), allocations=(held,) if interfaces else ()
    )


class PlayedAgent:
    """Sends its report to each client that connects, and each later report that it is given."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._readers: list[asyncio.StreamWriter] = []
        self.report = report()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self._socket.parent.mkdir(parents=True, exist_ok=True)
        self._server = await asyncio.start_unix_server(self._talk, self._socket)

    async def stop(self) -> None:
        self._server.close()
        for writer in self._readers:
            writer.close()
        self._readers.clear()
        self._socket.unlink(missing_ok=True)

    def tell(self, told: NodeReport) -> None:
        self.report = told
        for writer in self._readers:
            writer.write(encode_message(MessageKind.REPORT, encode_report(told)))

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._readers.append(writer)
        writer.write(encode_message(MessageKind.REPORT, encode_report(self.report)))
        await reader.read()
        writer.close()
