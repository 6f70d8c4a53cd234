"""How much of what is sent is payload: caps count frames, tools tell payload.

A queueing discipline counts an Ethernet frame from its destination address to its last byte of data
(`qdisc_pkt_len_init`, Linux `net/core/dev.c`), of a segment that the card is to cut up what comes of it; not
the check sequence, the preamble and the gap, which the card adds.
"""

from __future__ import annotations

from math import ceil

ETHERNET = 14
IPV4 = 20
TCP = 20 + 12
"""With the timestamps that Linux' TCP has on every segment (RFC 7323)."""
UDP = 8
BTH, RETH, ICRC = 12, 16, 4
"""Of every packet, of a write's first, of every packet (InfiniBand specification, chapter 9, annex A17)."""
ROCE = ETHERNET + IPV4 + UDP + BTH + ICRC


def tcp_share(mtu: int) -> float:
    """Of a full segment's frame, what TCP hands on. mtu: the netdev's, bytes."""
    return (mtu - IPV4 - TCP) / (mtu + ETHERNET)


def write_share(message: int, path_mtu: int) -> float:
    """Of the frames of an RDMA write by RoCEv2, what is the message's. Bytes; path_mtu: the queue pair's."""
    return message / (message + RETH + ceil(message / path_mtu) * ROCE)
