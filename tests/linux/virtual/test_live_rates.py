"""Rates of pods that send meanwhile: no packet is lost, whatever changes."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from contract.lab import give
from contract.linux_lab import needs_namespaces
from contract.virtual_lab import VirtualLab
from factories import interface, receipt
from k8s_rdma.core.ledger import RateChange
from k8s_rdma.core.reprogramming import changing
from k8s_rdma.core.step import CapInterface, ConfigureInterface, SetRates, VfRate, VfRef
from k8s_rdma.linux.netns import entered

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from k8s_rdma.core.ledger import AllocatedInterface, Receipt
    from k8s_rdma.core.step import NetnsRef

pytestmark = needs_namespaces

CHANGES = 100
DEADLINE_S = 120
RCVBUFFORCE = 33
ADDRESSES = ("10.9.0.1", "10.9.0.2")
PAYLOAD_BYTES = 1400
PACE_S = 0.0006
"""Between two datagrams: 19 Mb/s at most, half of the lowest cap."""

RATES = {
    "reservation and cap": ((30, 40, 0), (50, 80, 0)),
    "cap": ((0, 40, 0), (0, 80, 0)),
    "reservation of who had none": ((0, 40, 0), (30, 80, 0)),
    "cap in software": ((0, 0, 40), (0, 0, 80)),
}
"""Reservation and cap of the VF, and cap of its netdev, before and after each second change; Mb/s."""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[VirtualLab]:
    made = VirtualLab(tmp_path, 3)
    yield made
    made.close()


class Stream:
    """Numbered datagrams from one pod to another, sent all the time."""

    def __init__(self, lab: VirtualLab) -> None:
        self.namespaces = [lab.namespace() for _ in ADDRESSES]
        with ExitStack() as stack:
            self._sockets = []
            for index, netns in enumerate(self.namespaces):
                lab.kernel.apply(give(lab, VfRef(lab.pcis[0], index), netns))
                addresses = (f"{ADDRESSES[index]}/24",)
                lab.kernel.apply(ConfigureInterface(netns=netns, ifname="rdma0", addresses=addresses))
                with lab.namespaces.existing(netns) as namespace, entered(namespace):
                    opened = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                opened.bind((ADDRESSES[index], 9))
                opened.settimeout(DEADLINE_S)
                self._sockets.append(opened)
            self._open = stack.pop_all()
        self._sockets[1].setsockopt(socket.SOL_SOCKET, RCVBUFFORCE, 64 << 20)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self.sent = 0

    def __enter__(self) -> Stream:
        """Begin when the first one has come: neighbours know each other, and the bridge its ports."""
        deadline = time.monotonic() + DEADLINE_S
        self._sockets[1].settimeout(0.1)
        while True:
            self._sockets[0].sendto(b"first", (ADDRESSES[1], 9))
            try:
                self._sockets[1].recv(64)
            except TimeoutError:
                assert time.monotonic() < deadline
            else:
                break
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._open.close()

    def lost(self) -> int:
        """Stop, and count the packets that did not come before a later one."""
        self._stop.set()
        self._thread.join()
        self._sockets[0].sendto(b"last", (ADDRESSES[1], 9))
        self._sockets[1].settimeout(DEADLINE_S)
        received = 0
        while (data := self._sockets[1].recv(2048)) != b"last":
            received += len(data) == PAYLOAD_BYTES
        return self.sent - received

    def _send(self) -> None:
        while not self._stop.is_set():
            self._sockets[0].sendto(bytes(PAYLOAD_BYTES), (ADDRESSES[1], 9))
            self.sent += 1
            time.sleep(PACE_S)


def rated(lab: VirtualLab, rates: tuple[int, int, int]) -> AllocatedInterface:
    least, most, software = rates
    return replace(
        interface(lab.pcis[0], 0),
        pci=lab.pfs[0].vf_pci(0),
        min_tx_rate_mbps=least,
        max_tx_rate_mbps=most or software,
        set_min_tx_rate_mbps=least,
        set_max_tx_rate_mbps=most,
        software_max_tx_rate_mbps=software,
    )


def begin(lab: VirtualLab, netns: NetnsRef, rates: tuple[int, int, int]) -> Receipt:
    least, most, software = rates
    lab.kernel.apply(SetRates(pf=lab.pcis[0], rates=(VfRate(0, least, most),), previous=(VfRate(0),)))
    lab.kernel.apply(CapInterface(netns=netns, ifname="rdma0", max_tx_rate_mbps=software))
    return receipt("c1", rated(lab, rates), netns=netns)


@pytest.mark.parametrize("rates", RATES.values(), ids=RATES)
def test_no_packet_is_lost_while_rates_change_a_hundred_times(
    lab: VirtualLab, rates: tuple[tuple[int, int, int], tuple[int, int, int]]
) -> None:
    with Stream(lab) as stream:
        attached = begin(lab, stream.namespaces[0], rates[0])
        for generation in range(1, CHANGES + 1):
            target = (rated(lab, rates[generation % 2]),)
            change = RateChange(generation=generation, interfaces=target)
            changed = replace(attached, change=change)
            for step in changing([changed], lab.kernel.located(attached.netns)):
                lab.kernel.apply(step)
            attached = changed.completed()
            time.sleep(PACE_S)
        assert stream.sent > CHANGES
        assert stream.lost() == 0
