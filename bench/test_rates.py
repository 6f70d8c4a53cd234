"""Rates of running pods: the time of a change beyond the kernel's own work, and of the decision on it.

An agent's change of 1 and of 60 interfaces on virtual SR-IOV, both of their rates, in turn with its kernel
steps alone. Beyond these it judges the rates, and writes the ledger before and after, which waits for the
disk: processor time counts, and the time by the clock is in the note.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from bench.cni_plugin import Rounds, needs_root
from bench.test_cni_many import synced_write_ms
from contract.lab import LINK_MBPS, give
from contract.virtual_lab import VirtualLab
from factories import interface, pod, receipt
from k8s_rdma.agent.ledger_store import ClaimMarkers, DeferredDeletes, LedgerStore, Markers
from k8s_rdma.agent.node import Node
from k8s_rdma.core.inventory import Inventory, Pf
from k8s_rdma.core.pf_use import Used
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.rate_change import admit, changed_rates
from k8s_rdma.core.request import InterfaceRequest, Request
from k8s_rdma.core.step import SetRates, VfRate, VfRef
from k8s_rdma.core.types import NodeName, PciAddress
from k8s_rdma.linux.receipts import Receipts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Record

ROUNDS = {1: 60, 60: 20}
BUDGET_MS = {1: 3, 60: 15}
RATES = ((12, 40), (15, 60))
"""Reservation and cap, Mb/s; of 30 VFs less than a link."""


class Changed:
    """A pod that has so many VFs, PFs in turn, and its node."""

    def __init__(self, lab: VirtualLab, directory: Path, count: int, stack: ExitStack) -> None:
        netns = lab.namespace()
        least, most = RATES[0]
        self._vfs = [VfRef(lab.pcis[each % 2], each // 2) for each in range(count)]
        held = []
        for number, vf in enumerate(self._vfs):
            step = give(lab, vf, netns, f"rdma{number}")
            lab.kernel.apply(step)
            rate = VfRate(vf.index, least, most)
            lab.kernel.apply(SetRates(pf=vf.pf, rates=(rate,), previous=(VfRate(vf.index),)))
            pf = lab.pfs[number % 2]
            taken = interface(vf.pf, vf.index, f"rdma{number}", least, most)
            held.append(replace(taken, pci=pf.vf_pci(vf.index), home=step.home, entry=number))
        receipts = Receipts(directory / "ledger.db")
        stack.callback(receipts.close)
        receipts.put(receipt("c1", *held, netns=netns))
        self.node = Node(
            name=NodeName("w1"),
            kernel=lab.kernel,
            ledger_store=LedgerStore(
                receipts,
                Markers(directory / "attachments"),
                DeferredDeletes(directory / "deletions"),
                ClaimMarkers(directory / "claims"),
            ),
            boot_id="boot-1",
        )
        self._kernel = lab.kernel

    def placement(self, generation: int) -> Placement:
        """Return the rates of this generation."""
        least, most = RATES[generation % 2]
        interfaces = tuple(
            PlacedInterface(pf=vf.pf, min_tx_rate_mbps=least, max_tx_rate_mbps=most) for vf in self._vfs
        )
        return Placement(node=NodeName("w1"), interfaces=interfaces, generation=generation)

    def change(self, generation: int) -> None:
        """Change the rates as the agent does."""
        assert self.node.change_rates(pod().uid, self.placement(generation))

    def steps(self, generation: int) -> None:
        """Do the kernel's part of that."""
        for pf in {vf.pf for vf in self._vfs}:
            indexes = [vf.index for vf in self._vfs if vf.pf == pf]
            previous, rates = (
                tuple(VfRate(index, *RATES[number % 2]) for index in indexes)
                for number in (generation - 1, generation)
            )
            self._kernel.apply(SetRates(pf=pf, rates=rates, previous=previous))


@needs_root
@pytest.mark.parametrize("count", ROUNDS)
def test_change_of_rates_beyond_the_kernel(tmp_path: Path, record: Record, count: int) -> None:
    rounds, processor = Rounds(), Rounds()
    lab = VirtualLab(tmp_path, 30)
    with ExitStack() as stack:
        stack.callback(lab.close)
        changed = Changed(lab, tmp_path, count, stack)
        for generation in range(1, ROUNDS[count] + 2):
            if generation == 2:
                rounds, processor = Rounds(), Rounds()  # the first one warms up
            for way, work in (("change", changed.change), ("steps", changed.steps)):
                if way == "steps":
                    changed.steps(generation + 1)
                started, used = time.perf_counter(), time.thread_time()
                work(generation)
                rounds.add(way, (time.perf_counter() - started) * 1e3)
                processor.add(way, (time.thread_time() - used) * 1e3)
    interfaces = "1 interface" if count == 1 else f"{count} interfaces"
    record(
        f"change of the rates of {interfaces} of a running pod, beyond the kernel's work",
        budget=BUDGET_MS[count],
        measured=processor.beyond("change", "steps"),
        unit="ms",
        note=f"of processor time; with the kernel's {processor['change']:.1f} ms, by the clock "
        f"{rounds['change']:.1f} ms; a synced write takes {synced_write_ms(tmp_path):.1f} ms here",
    )


def _asked(placement: Placement, least: int) -> Request:
    rates = [least + index % 3 for index in range(len(placement.interfaces))]
    return Request(
        tuple(InterfaceRequest(min_tx_rate_mbps=rate, max_tx_rate_mbps=2 * rate) for rate in rates)
    )


@pytest.mark.budget("decide on other rates of 60 interfaces on 8 PFs", 500, "us")
def test_decision_on_a_change(benchmark: Callable[..., object]) -> None:
    pcis = [PciAddress(f"0000:{number:02x}:00.0") for number in range(8)]
    inventory = Inventory(
        node=NodeName("w1"),
        pfs=tuple(
            Pf(pci=pci, name=f"eth{pci[5:7]}", link_mbps=100 * LINK_MBPS, capacity_vfs=120) for pci in pcis
        ),
    )
    interfaces = tuple(PlacedInterface(pf=pcis[index % 8], min_tx_rate_mbps=5_000) for index in range(60))
    current = Placement(node=NodeName("w1"), interfaces=interfaces)
    request = _asked(current, 7_000)
    used = {pci: Used(50, 20_000) for pci in pcis}

    def decide() -> None:
        change = changed_rates(current, request, programmed=True)
        assert change is not None
        assert admit(change, current, inventory, used) is None

    benchmark(decide)
