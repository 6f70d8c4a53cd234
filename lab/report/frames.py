"""The share of payload in sent frames: caps count frames, tools report payload.

A queueing discipline counts an Ethernet frame from its destination address to its last byte of data
(`qdisc_pkt_len_init`, Linux `net/core/dev.c`), and of a segment that the card is to cut up all resulting
frames; not the check sequence, the preamble and the gap, which the card adds.
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
    """Return the share of a full segment's frame that TCP hands on. mtu: the netdev's, bytes."""
    return (mtu - IPV4 - TCP) / (mtu + ETHERNET)


def write_share(message: int, path_mtu: int) -> float:
    """Return the message's share of the frames of a RoCEv2 write. Bytes; path_mtu: the queue pair's."""
    return message / (message + RETH + ceil(message / path_mtu) * ROCE)
