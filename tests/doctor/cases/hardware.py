"""Facts of `hardware`: in order, and for each kind of finding."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from fakes.recorded_machine import RecordedMachine, read_machine
from k8s_rdma.config.hardware import HardwareConfig
from k8s_rdma.core.kernel import Hardware
from k8s_rdma.doctor.collectors.host import Host
from k8s_rdma.doctor.collectors.node import MachineCollector
from k8s_rdma.doctor.node.hardware import HardwareFacts, check_hardware
from k8s_rdma.linux.pcie import PcieLink

MACHINES = Path(__file__).parents[2] / "machines"


@cache
def look(machine: str, hardware: HardwareConfig) -> MachineCollector:
    """A recorded machine."""
    recorded = RecordedMachine(read_machine(MACHINES / f"{machine}.yaml"))
    return MachineCollector(
        host=Host(Path("/")),
        sysfs=recorded.sysfs,
        queries=recorded.queries,
        hardware=hardware,
        virtual=False,
    )


def hardware(machine: str, config: HardwareConfig | None = None) -> HardwareFacts:
    return look(machine, config or HardwareConfig()).hardware_facts()


WITHOUT_RDMA = HardwareConfig(require_rdma=False)
NOTHING_SEEN = HardwareFacts(hardware=Hardware(()))
_UNREADABLE = replace(
    hardware("connectx5"), hardware=Hardware((), hardware("connectx6-vfs-coming").hardware.unreadable)
)


def _behind_one_link(machine: str) -> HardwareFacts:
    """A card of two ports in a slot of 8 GT/s x16."""
    facts = hardware(machine)
    link = PcieLink(pci=facts.selected[0].pf.pci, speed="8.0", width=16, mbps=126_016)
    return replace(facts, pcie={each.pf.pci: link for each in facts.selected})


IN_ORDER = list(check_hardware(hardware("connectx5-ofed")))

CASES = {
    "hardware-virtual": list(check_hardware(replace(NOTHING_SEEN, virtual=True))),
    "hardware-no-pf": list(check_hardware(hardware("igb"))),  # no RDMA device
    "hardware-left-out": list(check_hardware(hardware("igb"))),
    "hardware-no-vfs": list(check_hardware(hardware("e810"))),
    "hardware-problem": list(check_hardware(hardware("igb-link-down", WITHOUT_RDMA))),
    "hardware-pcie-shared": list(check_hardware(_behind_one_link("connectx5-ofed"))),
    "hardware-unreadable": list(check_hardware(_UNREADABLE)),
}
