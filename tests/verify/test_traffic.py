"""Traffic of `verify` over loopback: real sockets, with strangers among them."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from k8s_rdma.core.verification import Flow, TrafficKind, UnmeasuredError
from k8s_rdma.verify.node import TrafficEndpoint, flow_of, frames_written
from k8s_rdma.verify.traffic import Session, connect, listen, receive, send
from k8s_rdma.wire.report import Enforced, Interface

HERE = "127.0.0.1"
SESSION = Session(token="t" * 32, flows=2, streams=2, seconds=0.2, wait_s=5.0)


def send_flow(port: int, session: Session, flow: int) -> None:
    with ExitStack() as stack:
        send(
            [stack.enter_context(connect(HERE, "lo", (HERE, port))) for _ in range(session.streams)],
            session,
            flow,
        )


@pytest.fixture
def listener():
    with closing(listen(HERE, "lo")) as listener:
        yield listener


def port_of(listener: socket.socket) -> int:
    return listener.getsockname()[1]


def test_receiver_counts_each_flow(listener):
    with ThreadPoolExecutor(2) as pool:
        sending = [pool.submit(send_flow, port_of(listener), SESSION, flow) for flow in range(2)]
        rates = receive(listener, SESSION)
    assert [future.result() for future in sending] == [None, None]
    assert len(rates) == 2
    assert min(rates) > 1


@pytest.mark.parametrize(
    "hello", [b"", b"x" * 34, b"GET / HTTP/1.1\r\n\r\n" * 4], ids=["none", "wrong", "http"]
)
def test_connection_without_the_token_is_closed_and_does_not_count(listener, hello):
    stranger = connect(HERE, "lo", (HERE, port_of(listener)))
    stranger.sendall(hello)
    if not hello:
        stranger.shutdown(socket.SHUT_WR)
    with stranger, ThreadPoolExecutor(2) as pool:
        for flow in range(2):
            pool.submit(send_flow, port_of(listener), SESSION, flow)
        assert len(receive(listener, SESSION)) == 2
        with suppress(ConnectionResetError):  # its bytes were not read
            assert stranger.recv(1) == b""


def test_receiver_does_not_wait_for_ever(listener):
    session = Session(token="t" * 32, flows=3, seconds=0.2, wait_s=0.3)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send_flow, port_of(listener), session, 1)
        with pytest.raises(UnmeasuredError, match=r"2 of 3 senders did not connect within 0\.3 s"):
            receive(listener, session)
        with pytest.raises(UnmeasuredError, match="other senders are missing"):
            sending.result()


def test_strangers_do_not_hold_up_the_end_of_the_wait(listener):
    """Neither one that sends a byte now and then, for ever, nor many that stay silent."""
    session = Session(token="t" * 100_000, seconds=0.2, wait_s=0.5)
    over = threading.Event()

    def trickle(stranger: socket.socket) -> None:
        with suppress(OSError):
            while not over.wait(0.2):
                stranger.sendall(b"t")

    with ExitStack() as stack:
        strangers = [stack.enter_context(connect(HERE, "lo", (HERE, port_of(listener)))) for _ in range(8)]
        trickling = threading.Thread(target=trickle, args=(strangers[0],))
        trickling.start()
        stack.callback(trickling.join)
        stack.callback(over.set)
        with pytest.raises(UnmeasuredError, match="1 of 1 senders did not connect"):
            receive(listener, session)
        last = strangers[-1]
        last.setblocking(False)
        with pytest.raises(BlockingIOError):  # open: its turn never came
            last.recv(1)


def test_sender_that_stops_early_is_no_measurement(listener):
    session = Session(token="t" * 32, seconds=1.0)

    def stop_early() -> None:
        with connect(HERE, "lo", (HERE, port_of(listener))) as connection:
            connection.sendall(session.hello(0))
            connection.recv(1)
            connection.sendall(b"x" * 1000)

    sender = threading.Thread(target=stop_early)
    sender.start()
    with pytest.raises(UnmeasuredError, match="sender 0 stopped before the end"):
        receive(listener, session)
    sender.join()


def test_connect_reports_that_the_peer_is_silent():
    with closing(listen(HERE, "lo")) as listener:
        port = port_of(listener)
    with pytest.raises(UnmeasuredError, match="no connection between the interfaces"):
        connect(HERE, "lo", (HERE, port), wait_s=0.2)


def test_interface_that_is_not_there_is_named():
    with pytest.raises(UnmeasuredError, match="nothere: "):
        listen(HERE, "nothere")


@pytest.mark.parametrize(
    ("traffic", "rdma", "by"),
    [
        (TrafficKind.TCP, "mlx5_2", "software"),
        (TrafficKind.VERBS, "mlx5_2", None),
        (TrafficKind.VERBS, "rxe_0", "software"),
    ],
)
def test_software_enforces_no_rate_of_the_verbs_of_a_card(traffic, rdma, by):
    interface = Interface(
        pf="0000:01:00.0",
        vf=0,
        ifname="rdma0",
        mac="02:00:00:00:00:01",
        min_tx_rate=0,
        max_tx_rate=9,
        set_min_tx_rate=0,
        set_max_tx_rate=0,
        enforced=Enforced(min=None, max="software"),
        software_max_tx_rate=9,
        rdma_device="mlx5_2",
    )
    endpoint = TrafficEndpoint(netns=Path("n"), address=HERE, interface=interface, rdma=rdma)
    assert flow_of(1.0, endpoint, traffic) == Flow(mbps=1.0, max_by=by, cap_mbps=9)


PERFTEST = """
 Mtu             : 1024[B]
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 16384      1000             0.00               11.25              0.000720
"""


def test_rdma_writes_count_as_frames():
    # 16 packets of 58 bytes of headers, 16 more in the first.
    assert frames_written(PERFTEST) == pytest.approx(11.25 * 2**20 * 8 / 1e6 * (16384 + 16 + 16 * 58) / 16384)


def test_perftest_without_a_result_is_no_measurement():
    with pytest.raises(UnmeasuredError, match="printed no result: Failed to modify QP"):
        frames_written("Mtu : 1024[B]\nFailed to modify QP\n")
