"""The output of tools, and how payload is made into frames."""

from __future__ import annotations

import json

import pytest

from lab.errors import LabError
from lab.report.flows import received_mbps, written
from lab.report.frames import tcp_share, write_share
from lab.report.steady import least, most, until_carried

IB_WRITE_BW = """\
 CQ Moderation   : 1
 Mtu             : 1024[B]
 Link type       : Ethernet
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 16384      277              0.00               0.86               0.000055
---------------------------------------------------------------------------------------
"""


def test_ib_write_bw_prints_payload_in_mebibytes_and_the_path_mtu() -> None:
    found = written(IB_WRITE_BW, 16384)
    assert found.mbps == pytest.approx(0.86 * 2**20 * 8 / 1e6)
    assert (found.message, found.path_mtu) == (16384, 1024)


@pytest.mark.parametrize("printed", ["", "Couldn't connect", IB_WRITE_BW.replace("16384 ", "65536 ")])
def test_ib_write_bw_without_a_result_is_an_error_that_shows_it(printed: str) -> None:
    with pytest.raises(LabError, match="printed no result") as raised:
        written(printed, 16384)
    assert printed in str(raised.value)


def test_iperf3_prints_payload_at_the_receiver() -> None:
    said = json.dumps(
        {"end": {"sum_received": {"bits_per_second": 7.2e6}, "sum_sent": {"bits_per_second": 9e6}}}
    )
    assert received_mbps(said) == pytest.approx(7.2)


def test_iperf3_prints_its_own_error() -> None:
    with pytest.raises(LabError, match="unable to connect to server"):
        received_mbps(json.dumps({"end": {}, "error": "unable to connect to server"}))


def test_tcp_has_a_full_frame_without_headers_and_timestamps() -> None:
    assert tcp_share(1500) == pytest.approx(1448 / 1514)
    assert tcp_share(9000) == pytest.approx(8948 / 9014)


@pytest.mark.parametrize(
    ("message", "path_mtu", "frames"),
    [
        (1024, 1024, 1024 + 14 + 20 + 8 + 12 + 16 + 4),
        (65536, 1024, 65536 + 64 * 58 + 16),
        (65536, 4096, 65536 + 16 * 58 + 16),
        (1025, 1024, 1025 + 2 * 58 + 16),
    ],
)
def test_rdma_write_has_headers_in_each_packet_and_an_address_in_the_first(
    message: int, path_mtu: int, frames: int
) -> None:
    assert write_share(message, path_mtu) == pytest.approx(message / frames)


def test_low_figure_is_measured_again_and_then_taken() -> None:
    rates = iter([3.0, 7.3, 9.0])
    assert until_carried(lambda: next(rates), least(8)) == (3.0, 7.3)


def test_measuring_again_comes_to_an_end() -> None:
    rates = iter([1.0, 2.0, 3.0, 4.0])
    assert until_carried(lambda: next(rates), least(8), attempts=3) == (1.0, 2.0, 3.0)


def test_high_figure_is_not_measured_again() -> None:
    assert until_carried(lambda: 12.0, least(8)) == (12.0,)
    assert most(8) < 12
