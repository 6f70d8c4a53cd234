"""Traffic that pods send all the time, and its fate: sockets in their namespaces, counters of the kernel."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from k8s_rdma.linux.netns import entered

if TYPE_CHECKING:
    from collections.abc import Iterator

DEADLINE_S = 120
END = 0xFFFFFFFF
PAUSE_S = 0.004
LARGE = 1400
"""Bytes, as are all sizes here."""


@dataclass(frozen=True)
class Passed:
    """Counters of a class or queueing discipline since it was made, and the time at which they were read."""

    handle: str
    sent: int
    dropped: int
    at_s: float

    def within(self, before: Passed, *, mbps: int, burst: int) -> bool:
        """Whether it is the one of before, and no more passed since than a cap of so much allows.

        However late it is read, time is on the cap's side: a late read lets more through.
        """
        allowed = burst + LARGE + mbps * 125_000 * (self.at_s - before.at_s)
        return self.handle == before.handle and 0 <= self.sent - before.sent <= allowed


@dataclass(frozen=True)
class Endpoint:
    """An interface of a pod. netns: the file of its namespace."""

    netns: str
    ifname: str
    address: str

    def socket(self) -> socket.socket:
        """For datagrams, by this interface alone."""
        namespace = os.open(self.netns, os.O_RDONLY)
        try:
            with entered(namespace):
                made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        finally:
            os.close(namespace)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, self.ifname.encode())
        made.settimeout(DEADLINE_S)
        return made


class Stream:
    """Numbered datagrams, one every few milliseconds: far below any cap, so that each must arrive."""

    def __init__(self, sender: Endpoint, receiver: Endpoint) -> None:
        self._out, self._in = sender.socket(), receiver.socket()
        self._in.bind((receiver.address, 0))
        self._to = self._in.getsockname()
        self._stop = threading.Event()
        self._sending = threading.Thread(target=self._send)
        self._receiving = threading.Thread(target=self._receive)
        self.sent, self.received = 0, list[int]()

    def __enter__(self) -> Self:
        for each in (self._receiving, self._sending):
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        """The last one is there, or will not come, when this returns."""
        self._stop.set()
        for each in (self._sending, self._receiving):
            each.join()
        self._out.close()
        self._in.close()

    def lost(self) -> list[int]:
        """Numbers that did not arrive, the last one among them; after the end of it."""
        return sorted({*range(self.sent), END} - {*self.received})

    def _send(self) -> None:
        while not self._stop.wait(PAUSE_S):
            self._send_one(self.sent)
            self.sent += 1
        self._send_one(END)

    def _send_one(self, number: int) -> None:
        with suppress(OSError):  # it is lost then
            self._out.sendto(number.to_bytes(4, "big").ljust(256, b"."), self._to)

    def _receive(self) -> None:
        with suppress(TimeoutError):  # the last one is lost then
            while END not in self.received[-1:]:
                self.received.append(int.from_bytes(self._in.recv(2048)[:4], "big"))


@contextmanager
def flood(sender: Endpoint, receiver: Endpoint) -> Iterator[None]:
    """As much as the sender's queue takes: a cap holds it back."""
    out, sink = sender.socket(), receiver.socket()
    sink.bind((receiver.address, 0))
    to = sink.getsockname()
    stop = threading.Event()

    def send() -> None:
        while not stop.is_set():
            out.sendto(bytes(LARGE), to)

    sending = threading.Thread(target=send)
    sending.start()
    try:
        yield
    finally:
        stop.set()
        sending.join()
        out.close()
        sink.close()


def passed_vf(pf: str, index: int) -> Passed:
    """By the class that all that a VF sends has to pass."""
    return _passed(rf"class htb (1:{0x10 + index:x}) ", ["class", "show", "dev", f"{pf}-tx"])


def passed_interface(endpoint: Endpoint) -> Passed:
    """By the queueing discipline of a cap in software."""
    shown = ["qdisc", "show", "dev", endpoint.ifname]
    return _passed(r"qdisc tbf ([0-9a-f]+:) root ", shown, f"--net={endpoint.netns}")


def _passed(begins: str, arguments: list[str], *inside: str) -> Passed:
    enter = ["nsenter", *inside] if inside else []
    shown = subprocess.run(
        [*enter, "tc", "-statistics", *arguments], capture_output=True, text=True, check=True
    ).stdout
    found = re.search(rf"{begins}.*?Sent (\d+) bytes.*?dropped (\d+),", shown, re.DOTALL)
    assert found, shown
    return Passed(found[1], int(found[2]), int(found[3]), time.monotonic())
