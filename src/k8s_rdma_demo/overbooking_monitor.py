"""A monitor that reads every node all the while: no PF is ever promised more than it has."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import httpx2

from k8s_rdma.config.addresses import SERVER_PORT
from k8s_rdma.wire.report import decode_report
from k8s_rdma_demo.plain_http import NO_TLS

if TYPE_CHECKING:
    from types import TracebackType

    from k8s_rdma_demo.network import DemoNode

PERIOD_S = 0.05


class OverbookingMonitor:
    """Reads `/v1/node` of each node twenty times a second while entered.

    peak_mbps: the largest sum of reservations seen on a PF, as a part of its link. overcommitted: every sum
    above the link, in words. reports: how many were looked at.
    """

    def __init__(self, nodes: tuple[DemoNode, ...]) -> None:
        """Watch these nodes."""
        self._nodes = nodes
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="overbooking")
        self.peak_mbps = 0.0
        self.reports = 0
        self.overcommitted: set[str] = set()

    def __enter__(self) -> OverbookingMonitor:
        """Start to watch."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop watching."""
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        with httpx2.Client(timeout=2, trust_env=False, verify=NO_TLS) as client:
            while not self._end.wait(PERIOD_S):
                for node in self._nodes:
                    self._sample(client, node)

    def _sample(self, client: httpx2.Client, node: DemoNode) -> None:
        try:
            reply = client.get(f"http://{node.address}:{SERVER_PORT}/v1/node")
        except httpx2.TransportError:
            return  # the demo kills agents and servers on purpose
        if reply.is_error:
            return
        report = decode_report(reply.content)
        self.reports += 1
        for pf in report.pfs:
            reserved = sum(vf.min_tx_rate for vf in pf.foreign) + sum(
                interface.min_tx_rate
                for allocation in report.allocations
                for interface in allocation.interfaces
                if interface.pf == pf.pci
            )
            link = pf.link_mbps or 0
            self.peak_mbps = max(self.peak_mbps, reserved / max(link, 1))
            if reserved > link:
                self.overcommitted.add(f"{node.name} {pf.name}: {reserved} of {link} Mb/s")
