"""Facts that make each kind of finding of a node, and facts of a node that is in order."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from fakes.recorded_machine import RecordedMachine, read_machine
from k8s_rdma.config.devices import (
    DevicePluginConfig,
    ExactResource,
    ExclusiveResource,
    MountResource,
    SharedResource,
)
from k8s_rdma.config.hardware import HardwareConfig, PfConfig
from k8s_rdma.core.devices.rdma_devices import NetnsMode
from k8s_rdma.core.kernel import Hardware
from k8s_rdma.doctor.collectors.host import Host
from k8s_rdma.doctor.collectors.node import MachineCollector
from k8s_rdma.doctor.node.cni import CniFacts, CniFile, check_cni
from k8s_rdma.doctor.node.hardware import HardwareFacts, PlainFunction, check_firmware, check_hardware
from k8s_rdma.doctor.node.kernel import IommuFacts, ModuleFacts, State, check_iommu, check_modules
from k8s_rdma.doctor.node.lossless import LosslessFacts, PortQos, check_lossless
from k8s_rdma.doctor.node.memlock import LockingProcess, MemlockFacts, check_memlock
from k8s_rdma.doctor.node.processes import (
    Answer,
    ConfigurationFacts,
    LedgerFacts,
    ProcessFacts,
    check_configuration,
    check_ledger,
    check_processes,
    check_vfs,
)
from k8s_rdma.doctor.node.rdma_namespaces import RdmaFacts, check_isolation, check_rdma_namespaces
from k8s_rdma.doctor.node.runtime import Runtime, RuntimeFacts, check_runtime
from k8s_rdma.linux.pcie import PcieLink
from k8s_rdma.wire.report import Allocation, Enforced, ForeignVf, Interface, NodeReport, PfReport, Pod, Rates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from k8s_rdma.doctor.finding import Finding

MACHINES = Path(__file__).parent.parent / "machines"
NODE_REPORT = "/run/k8s-rdma/state.sock"


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


def run(check: Callable[[Any], Iterable[Finding]], facts: object) -> list[Finding]:
    return list(check(facts))


NOTHING_SEEN = HardwareFacts(hardware=Hardware(()))

CHAIN = {
    "cniVersion": "1.0.0",
    "name": "pods",
    "plugins": [
        {"type": "bridge", "ipam": {"type": "host-local"}},
        {"type": "k8s-rdma-cni", "capabilities": {"io.kubernetes.cri.pod-annotations": True}},
    ],
}


def conflist(**ours: object) -> str:
    bridge, rdma = CHAIN["plugins"]
    return json.dumps(CHAIN | {"plugins": [bridge, rdma | ours]})


def cni(
    *files: tuple[str, str | None],
    broken: dict[str, str] | None = None,
    missing: str = "",
    calls_check: bool = False,
) -> list:
    facts = CniFacts(
        directory="/etc/cni/net.d",
        files=tuple(CniFile(name=name, text=text, why="Permission denied") for name, text in files),
        bin_dirs=("/opt/cni/bin",),
        programs=frozenset({"bridge", "host-local", "k8s-rdma-cni"}) - {missing},
        broken=broken or {},
        run_dir="/run/k8s-rdma",
        calls_check=calls_check,
    )
    return list(check_cni(facts))


OURS, PLAIN = (
    ("00-k8s-rdma.conflist", conflist()),
    ("10-flannel.conflist", json.dumps(CHAIN | {"plugins": CHAIN["plugins"][:1]})),
)

MADE = (
    "00-k8s-rdma.conflist",
    json.dumps(
        json.loads(conflist())
        | {"k8s-rdma.io/made-of": {"file": "10-flannel.conflist", "types": ["bridge", "portmap"]}}
    ),
)

MODULES = ModuleFacts(
    states={
        "igbvf": State.LOADED,
        "ib_uverbs": State.LOADED,
        "rdma_ucm": State.BUILT_IN,
        "sch_tbf": State.LOADABLE,
        "vfio_pci": State.LOADABLE,
    },
    pf_drivers=frozenset({"igb"}),
    release="6.1.0-38-amd64",
    rdma=True,
)


def modules(**states: State) -> list[Finding]:
    return list(check_modules(replace(MODULES, states={**MODULES.states, **states})))


def runtime(*runtimes: Runtime, needs: tuple[str, ...] = (), cdi_dir: str = "/var/run/cdi") -> list[Finding]:
    return list(check_runtime(RuntimeFacts(runtimes=runtimes, needs_cdi=needs, cdi_dir=cdi_dir)))


def containerd(version: str, **more: object) -> Runtime:
    return Runtime(name="containerd", version=version, config="/etc/containerd/config.toml", **more)


def crio(version: str, *, credentials: bool | None) -> list[Finding]:
    found = Runtime(name="crio", version=version, config="/etc/crio/crio.conf")
    return list(check_runtime(RuntimeFacts(runtimes=(found,), credentials=credentials)))


AGENT_FILE = "/etc/k8s-rdma/agent.yaml"
FILES = ConfigurationFacts(file=AGENT_FILE, looked_for=("/etc/k8s-rdma/config/agent.yaml", AGENT_FILE))
SLOT = ("k8s-rdma.io/slot",)

RDMA = RdmaFacts(
    mode=NetnsMode.EXCLUSIVE,
    persistent=NetnsMode.EXCLUSIVE,
    plugin=DevicePluginConfig(resources=(ExactResource(),)),
    source="/etc/k8s-rdma/device-plugin.yaml",
    agent_file=AGENT_FILE,
    signed=True,
)


def isolation(resource: object, mode: NetnsMode = NetnsMode.SHARED, **more: object) -> list[Finding]:
    plugin = DevicePluginConfig(resources=(resource,))
    return list(check_isolation(replace(RDMA, plugin=plugin, mode=mode, **more)))


def lossless(**port: object) -> list[Finding]:
    told = {"roce": True, **port}
    return list(check_lossless(LosslessFacts(ports=(PortQos(name="eth0", **told),))))


def memlock(soft_bytes: int | None, **facts: Any) -> list[Finding]:
    process = LockingProcess(name="containerd", pid=7, soft_bytes=soft_bytes)
    return list(check_memlock(MemlockFacts(processes=(process,), cni_path="/opt/cni/bin", **facts)))


RATES = Rates(min=None, max=None, sum_checked=False, needs_link=False, weights=None)
HELD = Interface(
    pf="eth0",
    vf=1,
    ifname="rdma0",
    mac="",
    min_tx_rate=0,
    max_tx_rate=0,
    set_min_tx_rate=0,
    set_max_tx_rate=0,
    enforced=Enforced(min=None, max=None),
)


def report(*, foreign: tuple[ForeignVf, ...] = (), phase: str = "attached", problem: str = "") -> NodeReport:
    pf = PfReport(
        name="eth0",
        pci="0000:01:00.0",
        driver="igb",
        capacity_vfs=7,
        link_mbps=1000,
        rates=RATES,
        foreign=foreign,
    )
    pod = Pod(namespace="default", name="a", uid="u")
    allocation = Allocation(pod=pod, container_id="c", phase=phase, interfaces=(HELD,))
    return NodeReport(
        node="w1",
        generation="e.1",
        ledger="ok",
        pfs=(pf,),
        allocations=(allocation,),
        problems=(problem,) if problem else (),
        agent_version="0.1.0",
    )


def report_of_pf(**fields: Any) -> NodeReport:
    """A report of one PF with these fields."""
    base = report()
    return structs.replace(base, pfs=(structs.replace(base.pfs[0], **fields),))


PROCESSES = ProcessFacts(
    socket=NODE_REPORT,
    report=report(),
    server=Answer(url="http://127.0.0.1:54005/healthz", version="0.1.0"),
    plugin=Answer(url="http://127.0.0.1:54006/healthz"),
    version="0.1.0",
)

LEDGER = LedgerFacts(path="/var/lib/k8s-rdma/ledger.db", exists=True, receipts=3)

GOOD: dict[str, list[Finding]] = {
    "configuration": run(check_configuration, FILES),
    "hardware": run(check_hardware, hardware("connectx5-ofed")),
    "firmware": run(check_firmware, hardware("connectx5")),
    "modules": modules(),
    "iommu": run(check_iommu, IommuFacts(groups=40, noiommu=False, command_line="", together={"eth0": ()})),
    "rdma-namespaces": run(check_rdma_namespaces, RDMA),
    "isolation": run(check_isolation, RDMA),
    "lossless": run(
        check_lossless,
        LosslessFacts(ports=(PortQos(name="eth0", roce=True, pfc=(3,), trust="dscp", ecn=(3,)),)),
    ),
    "memlock": memlock(None),
    "runtime": runtime(containerd("1.7.24", enable_cdi=True), needs=SLOT),
    "cni": cni(OURS, PLAIN),
    "processes": run(check_processes, PROCESSES),
    "vfs": run(check_vfs, PROCESSES),
    "ledger": run(check_ledger, LEDGER),
}
"""By subject: nothing above a note."""

_TOO_MANY = HardwareConfig(pfs=(PfConfig(names=("enp59s0f0np0",), num_vfs=4000),))
_UNREADABLE = replace(
    hardware("connectx5"), hardware=Hardware((), hardware("connectx6-vfs-coming").hardware.unreadable)
)


def _behind_one_link(machine: str) -> HardwareFacts:
    """A card of two ports in a slot of 8 GT/s x16."""
    facts = hardware(machine)
    link = PcieLink(pci=facts.selected[0].pf.pci, speed="8.0", width=16, mbps=126_016)
    return replace(facts, pcie={each.pf.pci: link for each in facts.selected})


_MLX5 = PlainFunction(pci="0000:03:00.0", driver="mlx5_core", netdev="enp3s0")
_PASSED_VF = PlainFunction(pci="0101:00:00.0", driver="mlx5_core", netdev="ib0", vendor="15b3:101e")
_SMART_NIC = PlainFunction(
    pci="0000:03:00.0", driver="mlx5_core", netdev="p0", vendor="15b3:a2dc", host_ports=("pf0hpf",)
)

CASES: dict[str, list[Finding]] = {
    "configuration-ok": GOOD["configuration"],
    "configuration-no-agent-file": run(check_configuration, replace(FILES, file=None)),
    "hardware-ok": GOOD["hardware"],
    "hardware-virtual": run(check_hardware, replace(NOTHING_SEEN, virtual=True)),
    "hardware-no-pf": run(check_hardware, hardware("igb")),  # no RDMA device
    "hardware-left-out": run(check_hardware, hardware("igb")),
    "hardware-no-vfs": run(check_hardware, hardware("e810")),
    "hardware-problem": run(check_hardware, hardware("igb-link-down", WITHOUT_RDMA)),
    "hardware-pcie-shared": run(check_hardware, _behind_one_link("connectx5-ofed")),
    "hardware-unreadable": run(check_hardware, _UNREADABLE),
    "firmware-ok": GOOD["firmware"],
    "firmware-no-sriov": run(check_firmware, replace(NOTHING_SEEN, plain=(_MLX5,))),
    "firmware-too-few-vfs": run(check_firmware, hardware("connectx5", _TOO_MANY)),
    "firmware-passed-vf": run(check_firmware, replace(NOTHING_SEEN, plain=(_PASSED_VF,))),
    "firmware-smart-nic": run(check_firmware, replace(NOTHING_SEEN, plain=(_SMART_NIC,))),
    "firmware-roce-off": run(check_firmware, replace(NOTHING_SEEN, roce=(("0000:03:00.0", False),))),
    "modules-ok": modules(),
    "modules-not-loaded": modules(ib_uverbs=State.LOADABLE),
    "modules-absent": modules(rdma_ucm=State.ABSENT),
    "modules-optional-absent": modules(sch_tbf=State.ABSENT),
    "modules-vf-driver": modules(igbvf=State.LOADABLE),
    "iommu-ok": GOOD["iommu"],
    "iommu-off": run(check_iommu, IommuFacts(groups=0, noiommu=False, command_line="", together={})),
    "iommu-unsafe": run(check_iommu, IommuFacts(groups=0, noiommu=True, command_line="", together={})),
    "iommu-shared-group": run(
        check_iommu,
        IommuFacts(groups=4, noiommu=False, command_line="", together={"eth0": ("0000:00:1f.6",)}),
    ),
    "rdma-namespaces-ok": GOOD["rdma-namespaces"],
    "rdma-namespaces-no-rdma": run(check_rdma_namespaces, replace(RDMA, mode=None)),
    "rdma-namespaces-not-kept": run(check_rdma_namespaces, replace(RDMA, persistent=NetnsMode.SHARED)),
    "rdma-namespaces-without-cdi": run(
        check_rdma_namespaces,
        replace(RDMA, plugin=DevicePluginConfig(resources=(ExclusiveResource(cdi=False),))),
    ),
    "isolation-own-devices": GOOD["isolation"],
    "isolation-own-namespace": isolation(MountResource(), NetnsMode.EXCLUSIVE),
    "isolation-matching-devices": isolation(SharedResource(name="rdma/shared", count=9)),
    "isolation-every-device": isolation(MountResource()),
    "isolation-no-plugin": run(check_isolation, replace(RDMA, plugin=None)),
    "isolation-unsigned-placements": isolation(ExactResource(), signed=False),
    "lossless-pfc": GOOD["lossless"],
    "lossless-ecn": GOOD["lossless"],
    "lossless-no-flow-control": lossless(pfc=(), pause=False),
    "lossless-global-pause": lossless(pfc=(), pause=True),
    "lossless-trust-pcp": lossless(pfc=(3,), trust="pcp"),
    "lossless-ecn-off": lossless(pfc=(3,), ecn=()),
    "lossless-not-known": lossless(),
    "lossless-not-needed": lossless(roce=False),
    "memlock-ok": GOOD["memlock"],
    "memlock-low": memlock(8 << 20),
    "memlock-overrides": memlock(8 << 20, amount="unlimited", ulimits=(("crio", "8388608:-1"),)),
    "memlock-no-hook": memlock(None, amount="unlimited", hook=False),
    "memlock-no-process": run(check_memlock, MemlockFacts(processes=())),
    "runtime-ok": GOOD["runtime"],
    "runtime-none": runtime(),
    "runtime-version-unknown": runtime(containerd("")),
    "runtime-too-old": runtime(containerd("1.5.9")),
    "runtime-no-annotations": crio("1.28.11", credentials=False),
    "runtime-asked-annotations": crio("1.28.11", credentials=True),
    "runtime-configuration": runtime(containerd("1.7.1", fault="Expected '=' (at line 1)")),
    "runtime-no-cdi": runtime(containerd("1.7.24"), needs=SLOT),
    "runtime-cdi-directory": runtime(containerd("2.2.0", cdi_dirs=("/etc/cdi",)), needs=SLOT),
    "cni-ok": GOOD["cni"],
    "cni-no-file": cni(),
    "cni-unreadable": cni(("10-net.conflist", "{")),
    "cni-other-file-first": cni(("05-flannel.conflist", PLAIN[1]), ("10-k8s-rdma.conflist", conflist())),
    "cni-not-chained": cni(PLAIN),
    "cni-multus": cni(("00-multus.conf", '{"name": "multus", "type": "multus"}')),
    "cni-nothing-before": cni(("10-net.conflist", json.dumps(CHAIN | {"plugins": CHAIN["plugins"][1:]}))),
    "cni-no-capability": cni(("10-net.conflist", conflist(capabilities={}))),
    "cni-checked": cni(OURS, PLAIN, calls_check=True),
    "cni-configuration-refused": cni(("10-net.conflist", conflist(interfaceName="rdma{i}"))),
    "cni-meaningless-keys": cni(("10-net.conflist", conflist(if0="eth1"))),
    "cni-other-run-dir": cni(("10-net.conflist", conflist(runDir="/run/other"))),
    "cni-plugin-missing": cni(OURS, missing="host-local"),
    "cni-outdated": cni(MADE, PLAIN),
    "cni-program": cni(OURS, broken={"k8s-rdma-cni": "Exec format error"}),
    "processes-ok": run(check_processes, PROCESSES),
    "processes-agent-down": run(check_processes, replace(PROCESSES, report=None, why="Connection refused")),
    "processes-down": run(check_processes, replace(PROCESSES, server=Answer(url="http://x", why="HTTP 500"))),
    "processes-versions": run(
        check_processes, replace(PROCESSES, server=Answer(url="http://x", version="0.0.9"))
    ),
    "processes-ends-left": run(
        check_processes, replace(PROCESSES, leftovers=("c1:eth0:net",), left_in="/run/x")
    ),
    "processes-problem": run(check_processes, replace(PROCESSES, report=report(problem="a sentence"))),
    "vfs-ok": run(check_vfs, PROCESSES),
    "vfs-foreign": run(
        check_vfs,
        replace(
            PROCESSES,
            report=report(foreign=(ForeignVf(vf=3, why="has rates", min_tx_rate=9, max_tx_rate=0),)),
        ),
    ),
    "vfs-releasing": run(check_vfs, replace(PROCESSES, report=report(phase="releasing"))),
    "ledger-ok": run(check_ledger, LEDGER),
    "ledger-none": run(check_ledger, replace(LEDGER, exists=False)),
    "ledger-unusable": run(check_ledger, replace(LEDGER, fault="corrupt: row net/c/eth0")),
    "ledger-newer": run(
        check_ledger,
        replace(LEDGER, fault="of version 5, and this program knows versions up to 4", newer=True),
    ),
    "ledger-unfinished": run(check_ledger, replace(LEDGER, unfinished=("default/a (prepared)",))),
}
"""By the id that is among them."""
