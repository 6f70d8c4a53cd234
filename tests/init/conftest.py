"""Pretended machines, and the results of `init` on them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from fakes.sriov_links import MachineLinks
from fakes.sriov_machine import Card, CardState, MachineClock, MachineSysfs, SriovMachine
from init.receipts import BOOT_ID
from k8s_rdma.config.init import InitConfig
from k8s_rdma.core.types import PciAddress
from k8s_rdma.init.job import Clock, MachineInterfaces
from k8s_rdma.init.main import make_all_ready

if TYPE_CHECKING:
    from collections.abc import Callable

    from k8s_rdma.init.pf_setup import PfOutcome

IGB = Card(name="enp1s0f0", pci=PciAddress("0000:01:00.0"), mac="52:54:00:aa:00:01")
IGB2 = Card(name="enp2s0f0", pci=PciAddress("0000:02:00.0"), mac="52:54:00:aa:00:02")


@dataclass(frozen=True, slots=True)
class World:
    """A pretended machine, and a directory for its agent's ledger."""

    machine: SriovMachine
    state_dir: Path

    def init(
        self, *, clock: Clock | None = None, dry_run: bool = False, **changes: object
    ) -> dict[str, PfOutcome]:
        """Run it; outcomes by PF. `changes` to the configuration, `hardware` to its section."""
        hardware = {"requireRdma": False} | dict(changes.pop("hardware", {}))  # type: ignore[call-overload]
        document = {"stateDir": str(self.state_dir), "hardware": hardware} | changes
        machine = MachineInterfaces(
            sysfs=MachineSysfs(self.machine),
            queries=lambda: MachineLinks(self.machine),
            links=lambda: MachineLinks(self.machine),
            clock=clock or MachineClock(self.machine),
            boot_id=BOOT_ID,
        )
        outcomes = make_all_ready(machine, msgspec.convert(document, InitConfig), dry_run=dry_run)
        return {outcome.pf: outcome for outcome in outcomes}

    def card(self, card: Card = IGB) -> CardState:
        """The state of a card."""
        return self.machine.cards[card.pci]


@pytest.fixture
def world(tmp_path: Path) -> Callable[..., World]:
    """Make one of these cards."""

    def make(*cards: Card) -> World:
        return World(SriovMachine(tmp_path / "sys", cards or (IGB,)), tmp_path / "state")

    return make
