"""Facts of the node's hardware and kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from k8s_rdma.config.hardware import HardwareConfig
from k8s_rdma.core.ids import pci_address
from k8s_rdma.core.kernel import Hardware
from k8s_rdma.core.options import LinkType
from k8s_rdma.doctor.collectors.host import Host
from k8s_rdma.doctor.node.hardware import HardwareFacts, PlainFunction
from k8s_rdma.doctor.node.iommu import IommuFacts
from k8s_rdma.doctor.node.lossless import LosslessFacts, PortQos
from k8s_rdma.doctor.node.modules import NEEDED, ModuleFacts, State
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.discovery.observation import Observer
from k8s_rdma.linux.discovery.pfs import find_pfs
from k8s_rdma.linux.discovery.rdma_devices import RdmaDevices
from k8s_rdma.linux.netlink.queries import Queries
from k8s_rdma.linux.pci import PciFunction
from k8s_rdma.linux.sysfs import Sysfs
from k8s_rdma.linux.vfio import others_in_group

if TYPE_CHECKING:
    from collections.abc import Mapping

    from k8s_rdma.core.devices.rdma_devices import NetnsMode
    from k8s_rdma.linux.discovery.pfs import Selected
    from k8s_rdma.linux.netlink.dcb import DcbState

_DEVICES = "bus/pci/devices"
_NETWORK_CLASS = "0x02"
_ROCE = "enable_roce"


class NodeQueries(Queries, Protocol):
    """What the doctor asks of the kernel beside what the agent asks."""

    def netns_mode(self) -> NetnsMode | None:
        """See `NetlinkQueries`."""
        ...

    def dcb(self, name: str) -> DcbState | None:
        """See `NetlinkQueries`."""
        ...

    def pauses(self, name: str) -> bool | None:
        """See `NetlinkQueries`."""
        ...

    def devlink_flags(self, name: str) -> Mapping[str, bool]:
        """See `NetlinkQueries`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineCollector:
    """Looks at a machine. virtual: whether the agent's kernel is made of ordinary Linux parts."""

    host: Host
    sysfs: Sysfs
    queries: NodeQueries
    hardware: HardwareConfig
    virtual: bool

    def hardware_facts(self) -> HardwareFacts:
        """OSError and KernelError where the machine cannot be looked at."""
        if self.virtual:
            return HardwareFacts(hardware=Hardware(()), virtual=True)
        observer = Observer(self.sysfs, self.queries, self.hardware.to_core())
        links = {link.name: link for link in self.queries.links()}
        rdma = RdmaDevices(self.sysfs, self.queries.rdma_devices())
        return HardwareFacts(
            found=find_pfs(self.sysfs, links, rdma),
            selected=observer.discover().selected,
            hardware=observer.observe(),
            plain=self._plain(),
            roce=tuple(sorted(self.queries.devlink_flags(_ROCE).items())),
        )

    def module_facts(self) -> ModuleFacts:
        """Which modules there are for the kernel that runs."""
        release = self.host.read("/proc/sys/kernel/osrelease").strip()
        selected = self.selected()
        return ModuleFacts(
            states={name: self._module(name, release) for name in NEEDED},
            pf_drivers=frozenset(each.pf.driver for each in selected if each.pf.driver),
            release=release,
            rdma=self.hardware.require_rdma or any(each.pf.rdma_device for each in selected),
        )

    def iommu_facts(self) -> IommuFacts:
        """Groups, and who shares one with a PF's first VF."""
        noiommu = self.sysfs.value_if_any("module/vfio/parameters/enable_unsafe_noiommu_mode")
        return IommuFacts(
            groups=len(self.sysfs.names_if_any("kernel/iommu_groups") or ()),
            noiommu=noiommu == "Y",
            command_line=" ".join(
                argument
                for argument in (self.host.read_if_any("/proc/cmdline") or "").split()
                if "iommu" in argument
            ),
            together={each.pf.name: self._together(each) for each in self.selected()},
        )

    def lossless_facts(self) -> LosslessFacts:
        """What each port that is ours tells of itself."""
        return LosslessFacts(ports=tuple(map(self._port, self.selected())))

    def selected(self) -> tuple[Selected, ...]:
        """The PFs that are ours."""
        if self.virtual:
            return ()
        return Observer(self.sysfs, self.queries, self.hardware.to_core()).discover().selected

    def _plain(self) -> tuple[PlainFunction, ...]:
        names = sorted(self.sysfs.names_if_any(_DEVICES) or ())
        functions = (PciFunction(self.sysfs, pci_address(name)) for name in names)
        return tuple(
            PlainFunction(
                pci=function.pci,
                driver=function.driver() or "",
                netdev=next(iter(sorted(function.netdevs() or ())), ""),
            )
            for function in functions
            if self._is_network(function) and not function.total_vfs() and function.pf() is None
        )

    def _is_network(self, function: PciFunction) -> bool:
        """As `PciFunction.is_network`, and False for one that is gone meanwhile."""
        found = self.sysfs.value_if_any(f"{_DEVICES}/{function.pci}/class")
        return (found or "").startswith(_NETWORK_CLASS)

    def _module(self, name: str, release: str) -> State:
        if self.sysfs.names_if_any(f"module/{name}") is not None:
            return State.LOADED
        for file, state in (("builtin", State.BUILT_IN), ("dep", State.LOADABLE)):
            text = self.host.read_if_any(f"/lib/modules/{release}/modules.{file}")
            if text is None:
                msg = f"/lib/modules/{release}/modules.{file}: is not there"
                raise KernelError(msg)
            paths = (line.partition(":")[0].rpartition("/")[2] for line in text.splitlines())
            if any(path.partition(".")[0].replace("-", "_") == name for path in paths):
                return state
        return State.ABSENT

    def _together(self, selected: Selected) -> tuple[str, ...]:
        vf = next(iter(selected.pf.function.vfs().values()), None)
        if vf is None:
            return ()
        return others_in_group(self.sysfs, vf)

    def _port(self, selected: Selected) -> PortQos:
        name = selected.link.name
        dcb = self.queries.dcb(name)
        return PortQos(
            name=name,
            roce=selected.pf.link_type is LinkType.ETHERNET and selected.pf.rdma_device is not None,
            pfc=dcb.pfc if dcb else None,
            trust=self.sysfs.value_if_any(f"class/net/{name}/qos/trust") or _trust(selected.pf.driver, dcb),
            pause=self.queries.pauses(name),
            ecn=self._ecn(name),
        )

    def _ecn(self, name: str) -> tuple[int, ...] | None:
        directory = f"class/net/{name}/ecn/roce_np/enable"
        priorities = self.sysfs.names_if_any(directory)
        if priorities is None:
            return None
        on = (
            priority for priority in priorities if self.sysfs.value_if_any(f"{directory}/{priority}") == "1"
        )
        return tuple(sorted(map(int, on)))


def _trust(driver: str | None, dcb: DcbState | None) -> str | None:
    """Only mlx5's trust follows from DCB, see `DcbState`."""
    if driver != "mlx5_core" or dcb is None:
        return None
    return "dscp" if dcb.by_dscp else "pcp"
