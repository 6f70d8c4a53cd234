"""RIT's server of 2019 on a node that was not migrated.

Source: https://github.com/rit-k8s-rdma/rdma-ds, src/server.go.
"""

from __future__ import annotations

import pytest

from extender.world import world

pytestmark = pytest.mark.anyio

ANSWER = b"AvailableEndpoints:\n\t\t/getpfs - returns list of available vfs\n\t\t\n\t\tVersion: latest\n\t"
RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\n\r\n%s" % (
    len(ANSWER),
    ANSWER,
)


async def test_extender_says_of_a_node_with_the_original_server_that_it_must_be_migrated():
    """It answers every path but /getpfs with status 200 and a text."""
    async with world("w1") as w:
        await w.create_pod("a", 1000)
        w.nodes["w1"].raw = RESPONSE
        failed = (await w.filter("a"))["FailedNodes"]
        assert "answers only /getpfs: migrate the node" in failed["w1"]
