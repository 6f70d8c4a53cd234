"""Rows of the ledger, also those that an older agent left."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from typing import TYPE_CHECKING

from factories import PF0, PF1, interface, receipt
from k8s_rdma.core.placement import PlacedInterface
from k8s_rdma.core.plan import separate_steps
from k8s_rdma.core.step import SetRates, VfRate
from k8s_rdma.linux.receipts import Receipts, decode_receipt, encode_receipt

if TYPE_CHECKING:
    from pathlib import Path

OLD = (
    b'{"attachment":{"container":"c1","ifname":"eth0"},"network":"net",'
    b'"pod":{"namespace":"default","name":"p","uid":"uid-p"},'
    b'"netns":{"path":"/run/netns/c1","inode":4026531840},"boot_id":"boot-1","phase":"attached",'
    b'"interfaces":[{"vf":{"pf":"0000:03:00.0","index":3},"pci":"0000:03:00.3","ifname":"rdma0",'
    b'"min_tx_rate_mbps":150,"max_tx_rate_mbps":250,'
    b'"home":{"name":"0v3","mac":"0a:00:00:00:00:03","mtu":1500}},'
    b'{"vf":{"pf":"0000:03:00.1","index":0},"pci":"0000:03:00.0","ifname":"rdma1",'
    b'"min_tx_rate_mbps":0,"max_tx_rate_mbps":0,'
    b'"home":{"name":"1v0","mac":"0a:00:01:00:00:00","mtu":1500}}],"ipam":null}'
)
"""Of an agent that programmed whatever was asked for."""


def test_receipt_of_an_older_agent_has_the_requested_rates_as_programmed() -> None:
    old = decode_receipt(OLD)
    assert [each.rate() for each in old.interfaces] == [VfRate(3, 150, 250), VfRate(0)]
    assert old.interfaces[0].placed() == PlacedInterface(pf=PF0, min_tx_rate_mbps=150, max_tx_rate_mbps=250)
    assert SetRates(pf=PF0, rates=(VfRate(3, 150, 250),), previous=(VfRate(3),)) in separate_steps(old)


def test_receipt_of_an_older_agent_is_loaded_from_its_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    Receipts(path).close()
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO receipts VALUES ('net', 'c1', 'eth0', ?)", (OLD,))
    db.close()
    receipts = Receipts(path)
    [loaded] = receipts.load().receipts.values()
    receipts.close()
    second = replace(interface(PF1, 0, "rdma1"), entry=1)
    assert loaded == receipt("c1", interface(PF0, 3, "rdma0", 150, 250), second)


def test_receipt_round_trips_with_programmed_rates() -> None:
    kept = replace(interface(PF0, 3, "rdma0", 150, 250), set_min_tx_rate_mbps=200, set_max_tx_rate_mbps=0)
    made = receipt("c1", kept)
    assert decode_receipt(encode_receipt(made)) == made
    assert kept.rate() == VfRate(3, 200, 0)
    assert kept.placed().min_tx_rate_mbps == 200
