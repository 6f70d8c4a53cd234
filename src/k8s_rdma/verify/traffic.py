"""TCP traffic between interfaces, measured where it arrives.

A receiver waits for all senders, so that they compete from the first byte that counts. Then it counts for a
while and closes the connections, which ends the senders. Every sender proves itself by the run's token,
because others on the network may connect as well. One processor must fill a fast link, so senders send pages
without copying them (sendfile(2) of a memfd), and receivers discard without copying (MSG_TRUNC, tcp(7)).

In pods of `verify cluster` the same runs as a program. Its result is the message with which its container
ends (`terminationMessagePath` of core/v1), because that needs no right to read logs.
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from hmac import compare_digest
from typing import TYPE_CHECKING, Annotated

import msgspec

from k8s_rdma.core.verification import UnmeasuredError
from k8s_rdma.errors import K8sRdmaError, MalformedError
from k8s_rdma.linux.netlink.rtnl import Rtnl
from k8s_rdma.wire.json import decode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

WARM_UP_S = 1.0
"""The time that does not count: TCP grows its window, token buckets spend their burst."""

CONNECT_S = 10.0
"""The time within which an interface that is up reaches another one."""

_HELLO_TIMEOUT_S = 5.0
_SILENCE_MS = 10_000
_CHUNK = 1 << 20
_GO = b"!"
_HEADERS = {socket.AF_INET: 14 + 20 + 20 + 12, socket.AF_INET6: 14 + 40 + 20 + 12}
"""Bytes of a frame besides TCP's payload: Ethernet, IP, TCP with timestamps (RFC 7323)."""

_FLOW_DIGITS = 2
MAX_FLOWS = 10**_FLOW_DIGITS

IFNAME = "verify0"
PORT = 18_777
RESULT_FILE = "/dev/termination-log"

_ADDRESS_S = 30.0

_Mbps = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Terms of one measurement.

    flows: the number of senders, each with as many connections as `streams`.
    wait_s: the time within which all of them connect.
    """

    token: str
    flows: int = 1
    streams: int = 1
    seconds: float = 4.0
    wait_s: float = CONNECT_S

    def hello(self, flow: int) -> bytes:
        """Return the first bytes of a connection."""
        return f"{self.token}{flow:0{_FLOW_DIGITS}}".encode()


def streams_of(link_mbps: int) -> int:
    """Return the number of connections by which one sender fills a link: a processor serves one."""
    return 1 if link_mbps <= 10_000 else 4


def receive(listener: socket.socket, session: Session) -> tuple[float, ...]:
    """Wait for all senders and measure; Mb/s of Ethernet frames by flow.

    UnmeasuredError when one does not come, or stops before the end.
    """
    with ExitStack() as stack:
        connections = [
            (flow, stack.enter_context(connection)) for flow, connection in _accepted(listener, session)
        ]
        counters = [_Counter(flow, connection) for flow, connection in connections]
        for counter in counters:
            counter.start()
        for _, connection in connections:
            connection.sendall(_GO)
        time.sleep(WARM_UP_S)
        begin_s, begin = time.monotonic(), [counter.frames_bits() for counter in counters]
        time.sleep(session.seconds)
        end = [counter.frames_bits() for counter in counters]
        elapsed_s = time.monotonic() - begin_s
        ended = [counter.flow for counter in counters if not counter.is_alive()]
        for _, connection in connections:
            connection.shutdown(socket.SHUT_RDWR)
        for counter in counters:
            counter.join()
    if ended:
        raise UnmeasuredError(f"sender {min(ended)} stopped before the end")
    rates = [0.0] * session.flows
    for counter, first, last in zip(counters, begin, end, strict=True):
        rates[counter.flow] += (last - first) / elapsed_s / 1e6
    return tuple(rates)


def _accepted(listener: socket.socket, session: Session) -> Iterator[tuple[int, socket.socket]]:
    """Accept every flow's connections; those without the token are closed, however many there are."""
    missing = {session.hello(flow): session.streams for flow in range(session.flows)}
    deadline_s = time.monotonic() + session.wait_s
    while any(missing.values()):
        try:
            _limit(listener, deadline_s)
            connection, _ = listener.accept()
        except TimeoutError as error:
            absent = sum(map(bool, missing.values()))
            msg = f"{absent} of {session.flows} senders did not connect within {session.wait_s:g} s"
            raise UnmeasuredError(msg) from error
        hello = _hello(connection, len(session.hello(0)), deadline_s)
        match = next((key for key in missing if compare_digest(key, hello)), None)
        if match is None or not missing[match]:
            connection.close()
            continue
        missing[match] -= 1
        connection.settimeout(None)
        yield int(match[-_FLOW_DIGITS:]), connection


def _hello(connection: socket.socket, length: int, deadline_s: float) -> bytes:
    """Read the first bytes, or those of them that come in time."""
    deadline_s = min(deadline_s, time.monotonic() + _HELLO_TIMEOUT_S)
    received = b""
    with suppress(OSError):
        while len(received) < length:
            _limit(connection, deadline_s)
            part = connection.recv(length - len(received))
            if not part:
                break
            received += part
    return received


def _limit(waiting: socket.socket, deadline_s: float) -> None:
    """Let the next call of a socket take until a deadline (monotonic). TimeoutError when it is over."""
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    waiting.settimeout(left_s)


class _Counter(threading.Thread):
    """Discards the data of a connection, and counts it."""

    def __init__(self, flow: int, connection: socket.socket) -> None:
        super().__init__(name=f"flow-{flow}", daemon=True)
        self.flow = flow
        self._connection = connection
        self._payload = 0

    def frames_bits(self) -> float:
        """Return the bits of all frames up to now, without preamble, check sequence and gap."""
        segment = self._connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
        return 8 * self._payload * (1 + _HEADERS[self._connection.family] / segment)

    def run(self) -> None:
        buffer = bytearray(_CHUNK)
        with suppress(OSError):
            while count := self._connection.recv_into(buffer, _CHUNK, socket.MSG_TRUNC):
                self._payload += count


def send(connections: Sequence[socket.socket], session: Session, flow: int) -> None:
    """Send on all connections until the receiver closes them.

    UnmeasuredError when it does not begin in time.
    """
    for connection in connections:
        connection.sendall(session.hello(flow))
    for connection in connections:
        connection.settimeout(session.wait_s)
        try:
            begun = connection.recv(len(_GO)) == _GO
        except OSError:
            begun = False
        if not begun:
            raise UnmeasuredError("the receiver did not begin: other senders are missing")
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE_MS)
    threads = [threading.Thread(target=_pour, args=(connection,)) for connection in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _pour(connection: socket.socket) -> None:
    pages = os.memfd_create("k8s-rdma-verify")
    try:
        os.truncate(pages, _CHUNK)
        with suppress(OSError):  # the receiver closed it
            while True:
                os.sendfile(connection.fileno(), pages, 0, _CHUNK)
    finally:
        os.close(pages)


def listen(address: str, ifname: str, port: int = 0) -> socket.socket:
    """Listen on an interface's address, and on no other interface; in the calling thread's namespace."""
    listener = _bound(address, ifname, port)
    listener.listen(MAX_FLOWS)
    return listener


def connect(address: str, ifname: str, target: tuple[str, int], wait_s: float = CONNECT_S) -> socket.socket:
    """Connect by an interface alone. UnmeasuredError without an answer within the time."""
    deadline_s = time.monotonic() + wait_s
    while True:
        connection = _bound(address, ifname, 0)
        connection.settimeout(max(0.1, min(_HELLO_TIMEOUT_S, deadline_s - time.monotonic())))
        try:
            connection.connect(target)
        except OSError as error:
            connection.close()
            if time.monotonic() > deadline_s:
                msg = f"no connection between the interfaces: {error.strerror or error}"
                raise UnmeasuredError(msg) from error
            time.sleep(0.1)
        else:
            return connection


def _bound(address: str, ifname: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, ifname.encode())
        scope = (0, socket.if_nametoindex(ifname)) if family is socket.AF_INET6 else ()
        bound.bind((address, port, *scope))
    except OSError as error:
        bound.close()
        raise UnmeasuredError(f"{ifname}: {error.strerror or error}") from error
    return bound


# In the pods of `verify cluster`


class PodResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of a pod: Mb/s by flow that it received, or why it could not."""

    mbps: Annotated[tuple[_Mbps, ...], msgspec.Meta(max_length=MAX_FLOWS)] = ()
    error: Annotated[str, msgspec.Meta(max_length=2048)] = ""


_session = msgspec.json.Decoder(Session)
_decoder = msgspec.json.Decoder(PodResult)


def decode_result(message: str) -> PodResult:
    """Read a container's last message; one that is no result is an error itself."""
    try:
        return decode(message, _decoder, "result")
    except MalformedError:
        return PodResult(error=message.strip()[-200:] or "it ended without a result")


def receive_in_pod(session_text: str, result: Path) -> int:
    """Receive on the pod's interface, and write the figures; the exit status. session_text: JSON."""
    try:
        session = decode(session_text, _session, "JSON")
        with listen(_address(4), IFNAME, PORT) as listener:
            mbps = receive(listener, session)
    except K8sRdmaError as error:
        return _end(result, error)
    result.write_text(json.dumps({"mbps": mbps}))
    return 0


def send_from_pod(session_text: str, flow: int, target: str, result: Path) -> int:
    """Send from the pod's interface until the receiver has enough; the exit status."""
    try:
        session = decode(session_text, _session, "JSON")
        address = _address(ipaddress.ip_address(target).version)
        with ExitStack() as stack:
            connections = [
                stack.enter_context(connect(address, IFNAME, (target, PORT), session.wait_s))
                for _ in range(session.streams)
            ]
            send(connections, session, flow)
    except (K8sRdmaError, ValueError) as error:
        return _end(result, error)
    return 0


def _end(result: Path, error: Exception) -> int:
    result.write_text(json.dumps({"error": str(error)[:1000]}))
    return 1


def _address(version: int) -> str:
    """Return the interface's address of this version of IP, or another one if it has no such address."""
    deadline_s = time.monotonic() + _ADDRESS_S
    while time.monotonic() < deadline_s:
        with Rtnl() as rtnl:
            link = rtnl.link(IFNAME)
            addresses = [address.ip for address in rtnl.addresses(link.index)] if link else []
        usable = [address for address in addresses if not address.is_link_local]
        usable.sort(key=lambda address: address.version != version)
        if usable:
            return str(usable[0])
        time.sleep(0.2)
    raise UnmeasuredError(f"{IFNAME} has no address: verification needs a network with IPAM")
