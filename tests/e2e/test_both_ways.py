"""Pods by annotation and by ResourceClaims on one node at the same time: neither way counts the other's."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from e2e.node import LINK_MBPS, Node, pod
from e2e.test_claims import prepared, unprepared
from k8s_rdma.core.inventory import CLAIMS_POOL
from k8s_rdma.core.node_paths import CLAIMS_SOCKET
from k8s_rdma.linux.receipts import Receipts
from k8s_rdma.wire.claims import ClaimQuestion, Offers, decode_offers, encode_line
from k8s_rdma.wire.rdma_node import status_of
from k8s_rdma_demo.cluster.cni_runtime import AttachError
from resource_claims import interface

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from k8s_rdma.core.ledger import Ledger
    from k8s_rdma_demo.cluster.sandboxes import Sandbox

VFS, CLAIM_VFS = 16, 8
CLAIM_MBPS = 400
STEP_MBPS = 100
PODS = 20
"""Pods of each way: more than the whole node has room for."""


def offered(node: Node) -> Offers:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(node.deadline_s)
        connection.connect(str(node.run_dir / CLAIMS_SOCKET))
        connection.sendall(encode_line(ClaimQuestion(follow=True)))
        with connection.makefile("rb") as lines:
            return decode_offers(lines.readline())


def ledger_on_disk(node: Node) -> Ledger:
    """Return the ledger that the agent has written; it is killed for that, and started again."""
    node.kill_agent()
    with closing(Receipts(node.directory / "state" / "ledger.db")) as receipts:
        ledger = receipts.load()
    node.start_agent()
    return ledger


def reserved(ledger: Ledger) -> Counter[tuple[str, bool]]:
    """Mb/s by PF, and whether by claim."""
    sums: Counter[tuple[str, bool]] = Counter()
    for receipt in ledger.receipts.values():
        for each in receipt.interfaces:
            sums[each.vf.pf, each.pool == CLAIMS_POOL] += each.min_tx_rate_mbps
    return sums


@pytest.mark.parametrize("use", ["annotation", "claims"])
def test_each_way_fills_its_part_and_no_more(make_node: Callable[[int], Node], use: str) -> None:
    """The first PF is split, the second of one way."""
    node = make_node(VFS)
    part = {"vfs": CLAIM_VFS, "mbps": CLAIM_MBPS}
    split, whole = node.pfs
    rules = [{"names": [split.name], "claims": part}, {"names": [whole.name], "use": use}]
    node.settings |= {"hardware": {"pfs": rules}, "cdiDir": str(node.directory / "cdi")}
    node.start_agent()
    by_claim = {split.pci: CLAIM_MBPS, whole.pci: LINK_MBPS if use == "claims" else 0}
    by_annotation = {pci: LINK_MBPS - mbps for pci, mbps in by_claim.items()}

    async def scenario() -> None:
        runtime = node.runtime(chained=True)

        async def annotated(name: str) -> Sandbox | None:
            try:
                return await runtime.add(pod(name, {"min_tx_rate": STEP_MBPS}))
            except AttachError:
                return None

        async def claimed(name: str, pf: str) -> Sandbox | None:
            answer = await asyncio.to_thread(prepared, node, name, interface("a", pf, f"{STEP_MBPS}M"))
            return None if answer.error else await runtime.add(pod(name))

        claims = {f"c{number}": (split, whole)[number % 2].name for number in range(PODS)}
        found = await asyncio.gather(
            *(annotated(f"p{number}") for number in range(PODS)),
            *(claimed(name, pf) for name, pf in claims.items()),
        )
        expect(node, by_annotation, by_claim)
        await asyncio.gather(*map(runtime.delete, filter(None, found)))
        for name in claims:
            assert not (await asyncio.to_thread(unprepared, node, name)).error

    asyncio.run(scenario())
    assert node.leftovers() == {}


def expect(node: Node, by_annotation: dict[str, int], by_claim: dict[str, int]) -> None:
    """Both ways have all of their parts, in the ledger; the offers of these have not changed."""
    ledger = ledger_on_disk(node)
    full = {(pci, False): mbps for pci, mbps in by_annotation.items()}
    full |= {(pci, True): mbps for pci, mbps in by_claim.items()}
    assert reserved(ledger) == {key: mbps for key, mbps in full.items() if mbps}
    prepared = [each for claim in ledger.claims.values() for each in claim.interfaces]
    assert sum(each.placed.min_tx_rate_mbps for each in prepared) == sum(by_claim.values())
    assert {pf.pci: pf.bandwidth_mbps for pf in offered(node).pfs} == {
        pci: mbps for pci, mbps in by_claim.items() if mbps
    }
    check_published(node, by_annotation)


def check_published(node: Node, by_annotation: dict[str, int]) -> None:
    """Check the extender's view of PFs with VFs for annotations: their part, and that it is in use."""
    status = status_of(node.try_report())
    for pf in status.pfs:
        if pf.capacity_vfs:
            held = [
                each
                for allocation in status.allocations
                for each in allocation.interfaces
                if each.pf == pf.pci
            ]
            assert sum(each.vfs * each.min_mbps for each in held) == pf.link_mbps == by_annotation[pf.pci]


def test_refusals_name_the_part(make_node: Callable[[int], Node]) -> None:
    node = make_node(VFS)
    pf = node.pfs[0].name
    node.settings |= {
        "hardware": {"pfs": [{"names": [pf], "claims": {"vfs": 2, "mbps": CLAIM_MBPS}}]},
        "cdiDir": str(node.directory / "cdi"),
    }
    node.start_agent()

    def refused(*wanted: Sequence[str]) -> str:
        return prepared(node, "p", *(interface(name, pf, mbps) for name, mbps in wanted)).error

    assert "the claim needs 500 Mb/s; its part for claims has 400" in refused(("a", "500M"))
    assert "none of its 2 VFs for claims is free" in refused(("a", "0"), ("b", "0"), ("c", "0"))
