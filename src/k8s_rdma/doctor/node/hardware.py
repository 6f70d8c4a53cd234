"""PFs and their VFs, by the same look that the agent takes; and the VFs that firmware leaves them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

from k8s_rdma.core.kernel import Hardware
from k8s_rdma.doctor.subject import Subject
from k8s_rdma.linux.discovery.functions import FoundPf, Selected, SkippedPf
from k8s_rdma.linux.discovery.observation import no_vfs
from k8s_rdma.linux.drivers import DRIVERS
from k8s_rdma.linux.pcie import PcieLink
from k8s_rdma.linux.vf_ids import BLUEFIELD, is_vf
from k8s_rdma.wire.report import NodeReport

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.doctor.finding import Finding

HARDWARE = Subject(
    "hardware",
    "Network cards",
    "The cards as the agent sees them. `hardware-left-out` and `hardware-problem` repeat `problems` "
    "of [`/v1/node`](server.md), such as a slow PCIe link or [PFs of one "
    "port](drivers.md#what-a-port-can-carry). If no card can have VFs (`hardware-no-pf`), SR-IOV is "
    "off or the node is the wrong one.",
)
PF_OK = HARDWARE.ok()
VIRTUAL = HARDWARE.note("virtual")
NO_PF = HARDWARE.error("no-pf")
SKIPPED = HARDWARE.warning("left-out")
NO_VFS = HARDWARE.error("no-vfs")
PROBLEM = HARDWARE.warning("problem")
PCIE_SHARED = HARDWARE.warning("pcie-shared")
UNREADABLE = HARDWARE.error("unreadable")

FIRMWARE = Subject(
    "firmware",
    "Firmware settings",
    "`sriov_totalvfs`, PCI IDs of VFs, and devlink's `enable_roce`. Only vendors' tools (`mlxconfig`,"
    " `bnxtnvm`) show settings that wait for a reboot.",
)
FIRMWARE_OK = FIRMWARE.ok()
NO_SRIOV = FIRMWARE.warning("no-sriov")
PASSED_VF = FIRMWARE.note("passed-vf")
SMART_NIC = FIRMWARE.note("smart-nic")
TOO_FEW = FIRMWARE.error("too-few-vfs")
ROCE_OFF = FIRMWARE.error("roce-off")

_TWO_PORTS = 2
_INIT = "k8s-rdma init --config /etc/k8s-rdma/init.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainFunction:
    """A function of a network card that cannot have VFs, and has no PF in this machine.

    netdev: empty if it has no netdev.
    vendor: PCI vendor and device, `15b3:101e`.
    host_ports: netdevs that represent PFs of a host, if this machine is the processor of a smart NIC.
    """

    pci: str
    driver: str
    netdev: str = ""
    vendor: str = ""
    host_ports: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the name of its netdev, or its PCI address without one."""
        return self.netdev or self.pci


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareFacts:
    """PFs and functions of a machine.

    found: all PFs of the machine.
    selected: our PFs.
    hardware: PFs as the agent observes them.
    skipped: PFs that a rule selects and that cannot be used.
    pcie: the slowest PCIe link of selected PFs by PCI address, if they report one.
    virtual: whether the agent's VFs are made of ordinary Linux parts; these facts do not show them.
    roce: devlink's parameter `enable_roce` by PCI address, for PFs that report it.
    report: the agent's, if it answers.
    """

    found: tuple[FoundPf, ...] = ()
    selected: tuple[Selected, ...] = ()
    skipped: tuple[SkippedPf, ...] = ()
    hardware: Hardware
    pcie: Mapping[str, PcieLink] = field(default_factory=dict)
    plain: tuple[PlainFunction, ...] = ()
    virtual: bool = False
    roce: tuple[tuple[str, bool], ...] = ()
    report: NodeReport | None = None


@HARDWARE.check(HardwareFacts)
def check_hardware(facts: HardwareFacts) -> Iterator[Finding]:
    """Check the PFs that the agent uses, those that it leaves out, and the problems of its report."""
    yield from _check_machine(facts)
    observed = {(pf.pci, problem) for pf in facts.hardware.pfs for problem in pf.problems}
    for pf in facts.report.pfs if facts.report else ():
        for problem in pf.problems:
            if (pf.pci, problem) not in observed:
                yield PROBLEM(
                    problem,
                    about=pf.name,
                    source="the agent's report, pfs",
                    expected="none",
                    fix="docs/operating-a-node.md",
                )


def _check_machine(facts: HardwareFacts) -> Iterator[Finding]:
    if facts.virtual:
        yield VIRTUAL(
            "kernel: virtual makes VFs of ordinary Linux interfaces",
            source="agent.yaml, kernel",
        )
        return
    if not facts.selected:
        yield _none_selected(facts)
    fixes = {skipped.why: skipped.advice for skipped in facts.skipped}
    for problem in facts.hardware.unreadable:
        yield UNREADABLE(
            problem.why,
            about=problem.subject,
            source="sysfs, netlink",
            expected="readable hardware; until then the node accepts no new pods",
            fix=fixes.get(problem.why, "docs/operating-a-node.md"),
        )
    for sentence in facts.hardware.problems:
        yield SKIPPED(
            sentence,
            source="sysfs, netlink; agent.yaml, hardware",
            expected="PFs and rules of hardware.pfs that agree",
            fix=fixes.get(sentence, "correct its name or address in hardware.pfs, or take it out"),
        )
    yield from _check_selected(facts)
    yield from _check_cards(facts)


def _none_selected(facts: HardwareFacts) -> Finding:
    source = "/sys/bus/pci/devices/*/sriov_totalvfs"
    if facts.found:
        advice: dict[str, list[str]] = {}
        for skipped in facts.skipped:
            advice.setdefault(skipped.advice, []).append(skipped.pf.name)
        fixes = [f"{', '.join(names)}: {fix}" for fix, names in advice.items()]
        return NO_PF(
            f"none of these PFs is used: {', '.join(pf.name for pf in facts.found)}",
            source=source,
            expected="a PF that hardware.pfs selects",
            fix="; ".join(fixes) or "name one in hardware.pfs",
        )
    if passed := [function.name for function in facts.plain if is_vf(function.vendor, function.driver)]:
        return NO_PF(
            f"this machine has VFs alone, which its host passed into it: {', '.join(passed)}",
            source=source,
            expected="a PF: VFs cannot be divided",
            fix="node.nodeSelector for nodes with PFs; for whole devices the provider's own way, see "
            "docs/howto-managed-clusters.md",
        )
    if smart := [function.name for function in facts.plain if function.host_ports]:
        return NO_PF(
            f"this machine is the processor of a smart NIC ({', '.join(smart)}), whose VFs are the host's",
            source=source,
            expected="a PF that can have VFs",
            fix="run k8s-rdma on the host; node.nodeSelector for nodes with PFs",
        )
    return NO_PF(
        "no network card of this machine can have VFs: SR-IOV off in the BIOS or firmware, or the wrong node",
        source=source,
        expected="a card with SR-IOV",
        fix="SR-IOV on in the BIOS and in the card's firmware, see the findings on it; or the chart's "
        "node.nodeSelector for nodes that have such cards",
    )


def _check_selected(facts: HardwareFacts) -> Iterator[Finding]:
    for selected in facts.selected:
        source = f"/sys/bus/pci/devices/{selected.pf.pci}"
        state = facts.hardware.pf(selected.pf.pci)
        lacks_vfs = no_vfs(selected.pf)
        problems = [problem for problem in (state.problems if state else ()) if problem != lacks_vfs]
        if selected.pf.num_vfs == 0:
            yield NO_VFS(
                f"has no VFs; it supports {selected.pf.total_vfs}",
                about=selected.pf.name,
                source=f"{source}/sriov_numvfs",
                expected="VFs",
                fix=_INIT,
            )
        for problem in problems:
            yield PROBLEM(
                problem,
                about=selected.pf.name,
                source=source,
                expected="none",
                fix="correct what the message names",
            )
        if selected.pf.num_vfs and state and not problems:
            speed = "link speed unknown" if state.link_mbps is None else f"{state.link_mbps} Mb/s"
            rdma = state.rdma_device or "no RDMA device"
            yield PF_OK(
                f"{state.driver}, {len(state.vfs)} of {selected.pf.total_vfs} VFs, {speed}, {rdma}",
                about=selected.pf.name,
                source=source,
            )


def _check_cards(facts: HardwareFacts) -> Iterator[Finding]:
    """Check that the PCIe link of a card carries all that its ports have together."""
    ports = sorted(facts.hardware.pfs, key=lambda pf: pf.pci)
    for slot, of_slot in groupby(ports, key=lambda pf: pf.pci.rpartition(".")[0]):
        card = [pf for pf in of_slot if pf.link_mbps and pf.pci in facts.pcie]
        ports_mbps = sum(pf.link_mbps or 0 for pf in card)
        if len(card) < _TWO_PORTS or ports_mbps <= (link := facts.pcie[card[0].pci]).mbps:
            continue
        yield PCIE_SHARED(
            f"its ports have {ports_mbps} Mb/s together; their PCIe link carries {link.mbps} ({link})",
            about=", ".join(pf.name for pf in card),
            source=f"/sys/bus/pci/devices/{slot}.*/current_link_speed, current_link_width",
            expected="a PCIe link that carries all ports at full speed",
            fix="a slot of more lanes or a higher generation; or one port in hardware.pfs",
        )


@FIRMWARE.check(HardwareFacts)
def check_firmware(facts: HardwareFacts) -> Iterator[Finding]:
    """Check settings of firmware and BIOS that sysfs and devlink show."""
    for pf in facts.found:
        source = f"/sys/bus/pci/devices/{pf.pci}/sriov_totalvfs"
        num_vfs = next(
            (selected.rule.num_vfs for selected in facts.selected if selected.pf.pci == pf.pci), None
        )
        if num_vfs is not None and num_vfs > pf.total_vfs:
            yield TOO_FEW(
                f"the card supports {pf.total_vfs} VFs; numVfs is {num_vfs}",
                about=pf.name,
                source=source,
                expected=f"{num_vfs} VFs",
                fix=_more_vfs(pf.driver or "", pf.pci, num_vfs),
            )
        else:
            yield FIRMWARE_OK(f"can have {pf.total_vfs} VFs", about=pf.name, source=source)
    for function in facts.plain:
        yield from _without_sriov(function)
    for pci, on in facts.roce:
        if not on:
            yield ROCE_OFF(
                "RoCE is off",
                about=pci,
                source=f"devlink dev param show pci/{pci} name enable_roce",
                expected="true",
                fix=f"devlink dev param set pci/{pci} name enable_roce value true cmode driverinit && "
                f"devlink dev reload pci/{pci}",
            )


def _without_sriov(function: PlainFunction) -> Iterator[Finding]:
    """Report why it cannot have VFs, by the function's kind and not by its driver alone."""
    source = f"/sys/bus/pci/devices/{function.pci}, no sriov_totalvfs"
    if is_vf(function.vendor, function.driver):
        yield PASSED_VF(
            f"a VF ({function.vendor}) whose PF is in the host that passed it into this machine",
            about=function.name,
            source=f"/sys/bus/pci/devices/{function.pci}, vendor and device, no physfn",
        )
    elif function.host_ports:
        yield SMART_NIC(
            f"on the card's own processor, which has the host's port {', '.join(function.host_ports)}: its "
            "VFs are the host's",
            about=function.name,
            source=f"/sys/class/net/{function.host_ports[0]}/phys_port_name",
        )
    elif function.driver in DRIVERS:
        side = "on the host, not on the card's own processor: " if function.vendor in BLUEFIELD else ""
        yield NO_SRIOV(
            f"{function.driver}: SR-IOV is off in firmware or BIOS, or not supported",
            about=function.name,
            source=source,
            expected="SR-IOV, if pods should use this card",
            fix=side + _more_vfs(function.driver, function.pci, 16),
        )


def _more_vfs(driver: str, pci: str, vfs: int) -> str:
    if driver.startswith("mlx"):
        return f"mlxconfig -d {pci} set SRIOV_EN=1 NUM_OF_VFS={vfs}, then a cold reboot"
    return "SR-IOV and ARI on in the BIOS, and in the card's firmware by its vendor's tool; then a reboot"
