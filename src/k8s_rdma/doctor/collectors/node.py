"""Collects the facts of a whole node: hardware and kernel, CNI files, our processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from k8s_rdma import __version__
from k8s_rdma.agent.host_files import find_executable
from k8s_rdma.config.agent import AgentConfig
from k8s_rdma.config.devices import DevicePluginConfig, ExactResource, ExclusiveResource, SharedResource
from k8s_rdma.config.hardware import HardwareConfig
from k8s_rdma.core.devices.rdma_devices import NetnsMode
from k8s_rdma.core.kernel import Hardware
from k8s_rdma.core.node_paths import CNI_BIN_DIR, CNI_CONF_DIR, STATE_SOCKET
from k8s_rdma.core.types import LinkType, pci_address
from k8s_rdma.doctor.checks import collected, run_checks
from k8s_rdma.doctor.cluster.crd import CrdFacts
from k8s_rdma.doctor.cluster.versions import VersionFacts
from k8s_rdma.doctor.collectors.crd import crd_facts
from k8s_rdma.doctor.collectors.host import Host
from k8s_rdma.doctor.collectors.ledger import ledger_facts
from k8s_rdma.doctor.collectors.objects import OURS, api_version, nodes_of, of_images
from k8s_rdma.doctor.collectors.processes import process_facts
from k8s_rdma.doctor.collectors.runtimes import RUNTIMES, RuntimeSetup, find_runtimes
from k8s_rdma.doctor.node.cni import OUR_PLUGINS, CniFacts, CniFile
from k8s_rdma.doctor.node.configuration import ConfigurationFacts
from k8s_rdma.doctor.node.hardware import HardwareFacts, PlainFunction
from k8s_rdma.doctor.node.iommu import IommuFacts
from k8s_rdma.doctor.node.ledger import LedgerFacts
from k8s_rdma.doctor.node.lossless import LosslessFacts, PortQos
from k8s_rdma.doctor.node.memlock import LockingProcess, MemlockFacts
from k8s_rdma.doctor.node.modules import NEEDED, ModuleFacts, State
from k8s_rdma.doctor.node.processes import ProcessFacts
from k8s_rdma.doctor.node.rdma_namespaces import RdmaFacts
from k8s_rdma.doctor.node.runtime import RuntimeFacts
from k8s_rdma.errors import K8sRdmaError, KernelError
from k8s_rdma.kube.documents import Documents
from k8s_rdma.linux.discovery.functions import Selected, find_pfs
from k8s_rdma.linux.discovery.netdevs import is_host_port, is_representor
from k8s_rdma.linux.discovery.observation import Observer
from k8s_rdma.linux.discovery.rdma_names import RdmaDevices
from k8s_rdma.linux.netlink.queries import Queries
from k8s_rdma.linux.pcie import slowest_link
from k8s_rdma.linux.sysfs import PciFunction, Sysfs
from k8s_rdma.linux.vfio import others_in_group
from k8s_rdma.wire.conflist import is_read

if TYPE_CHECKING:
    from k8s_rdma.doctor.finding import Finding
    from k8s_rdma.linux.netlink.dcb import DcbState

_STARTERS = RUNTIMES | {"dockerd"}
_DEVICES = "bus/pci/devices"
_NETWORK_CLASS = "0x02"
_ROCE = "enable_roce"
_QUESTION = b'{"cniVersion":"1.0.0"}'
_EXCLUSIVE_AT_BOOT = "netns_mode=0"
_MODPROBE = "/etc/modprobe.d"


class NodeQueries(Queries, Protocol):
    """Queries that the doctor adds to the agent's."""

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


@dataclass(frozen=True, kw_only=True)
class NodeCollector:
    """Collects a node's facts, each at most once.

    files: where the agent's configuration is from.
    plugin: the device plugin's configuration, of the file `plugin_file`, if there is one.
    server_url, plugin_url: the URLs of these processes, if they should run.
    conf_dir, bin_dirs: the default is those of the runtime's configuration.
    connect: connects to the API server, for versions, if there are credentials.
    """

    host: Host
    sysfs: Sysfs
    queries: NodeQueries
    agent: AgentConfig
    files: ConfigurationFacts
    plugin: DevicePluginConfig | None
    plugin_file: str
    server_url: str | None
    plugin_url: str | None
    conf_dir: str | None = None
    bin_dirs: tuple[str, ...] | None = None
    connect: Callable[[], Documents] | None = None

    @collected
    def _configuration(self) -> ConfigurationFacts:
        return self.files

    @collected
    def _hardware(self) -> HardwareFacts:
        return replace(self._machine.hardware_facts(), report=self._processes.report)

    @collected
    def _modules(self) -> ModuleFacts:
        return self._machine.module_facts()

    @collected
    def _iommu(self) -> IommuFacts:
        return self._machine.iommu_facts()

    @collected
    def _rdma(self) -> RdmaFacts:
        return RdmaFacts(
            mode=self.queries.netns_mode(),
            persistent=self._mode_after_boot(),
            plugin=self.plugin,
            source=self.plugin_file,
            agent_file=self.files.file,
            signed=self.agent.placement_key_file is not None,
        )

    @collected
    def _lossless(self) -> LosslessFacts:
        return self._machine.lossless_facts()

    @collected
    def _memlock(self) -> MemlockFacts:
        slots = needs_cdi(self.plugin, self.queries.netns_mode())
        return MemlockFacts(
            processes=memlock_limits(self.host),
            amount=self.agent.memlock if slots and self.agent.memlock_bytes() else "",
            hook=bool(find_executable(self.host, self.agent.cni_path)),
            cni_path=self.agent.cni_path,
            ulimits=tuple(
                (setup.runtime.name, setup.runtime.memlock)
                for setup in self._runtimes
                if setup.runtime.memlock
            ),
        )

    @collected
    def _runtime(self) -> RuntimeFacts:
        return RuntimeFacts(
            runtimes=tuple(runtime.runtime for runtime in self._runtimes),
            credentials=self.agent.has_credentials() if self.files.file else None,
            needs_cdi=needs_cdi(self.plugin, self.queries.netns_mode()),
            cdi_dir=self.agent.cdi_dir,
        )

    @collected
    def _cni(self) -> CniFacts:
        setup = next(iter(self._runtimes), None)
        default = (CNI_CONF_DIR, (CNI_BIN_DIR,)) if setup is None else (setup.conf_dir, setup.bin_dirs)
        return cni_facts(
            self.host,
            conf_dir=self.conf_dir or default[0],
            bin_dirs=self.bin_dirs or default[1],
            run_dir=self.agent.run_dir,
            calls_check=setup is not None and setup.runtime.name == "crio",
        )

    @collected
    def _processes(self) -> ProcessFacts:
        return process_facts(
            Path(self.agent.run_dir) / STATE_SOCKET, server=self.server_url, plugin=self.plugin_url
        )

    @collected
    def _ledger(self) -> LedgerFacts:
        answered = self._processes.report is not None
        path = Path(self.agent.state_dir) / "ledger.db"
        return ledger_facts(path, agent_socket=self._processes.socket if answered else "")

    @collected
    def _versions(self) -> VersionFacts:
        """Collect kubelet's version, the API server's, ours, and those of our pods' images."""
        if self.connect is None:
            return VersionFacts(api=None)
        with self.connect() as api:
            nodes = nodes_of(api, self.agent.node)
            ours = (*of_images(api.items("/api/v1/pods", OURS)), ("this program", __version__))
            return VersionFacts(api=api_version(api), nodes=nodes, ours=ours, node=self.agent.node)

    @collected
    def _crd(self) -> CrdFacts | None:
        """Collect the CRD, if this node publishes an RdmaNode."""
        if self.connect is None or not self.agent.publish.rdma_node:
            return None
        with self.connect() as api:
            return crd_facts(api, needed=True)

    def findings(self) -> Iterator[Finding]:
        """Yield all findings, subject by subject; a part that cannot be read is a finding, too."""
        return run_checks(self)

    @cached_property
    def _machine(self) -> MachineCollector:
        return MachineCollector(
            host=self.host,
            sysfs=self.sysfs,
            queries=self.queries,
            hardware=self.agent.hardware,
            virtual=self.agent.kernel == "virtual",
        )

    def _mode_after_boot(self) -> NetnsMode:
        """Read the module's option, `options ib_core netns_mode=0`; the kernel's default is shared."""
        for name in self.host.names(_MODPROBE):
            for line in self.host.read(f"{_MODPROBE}/{name}").splitlines():
                if line.split()[:2] == ["options", "ib_core"] and _EXCLUSIVE_AT_BOOT in line.split():
                    return NetnsMode.EXCLUSIVE
        return NetnsMode.SHARED

    @cached_property
    def _runtimes(self) -> tuple[RuntimeSetup, ...]:
        return find_runtimes(self.host, self._runtime_of_kubelet)

    def _runtime_of_kubelet(self) -> str:
        """Return the runtime in the Node object; empty if unreadable, which another subject reports."""
        if self.connect is None:
            return ""
        try:
            with self.connect() as api:
                return next((node.runtime for node in nodes_of(api, self.agent.node)), "")
        except K8sRdmaError:
            return ""

    def networks(self) -> tuple[CniFile, ...]:
        """Return the files of the runtime's networks."""
        return self._cni.files


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineCollector:
    """Examines a machine. virtual: whether the agent's kernel is made of ordinary Linux parts."""

    host: Host
    sysfs: Sysfs
    queries: NodeQueries
    hardware: HardwareConfig
    virtual: bool

    def hardware_facts(self) -> HardwareFacts:
        """Collect the facts of PFs. OSError and KernelError if the machine cannot be examined."""
        if self.virtual:
            return HardwareFacts(hardware=Hardware(()), virtual=True)
        observer = Observer(self.sysfs, self.queries, self.hardware.to_core())
        links = {link.name: link for link in self.queries.links()}
        rdma = RdmaDevices(self.sysfs, self.queries.rdma_devices())
        discovery = observer.discover()
        pfs = [selected.pf for selected in discovery.selected]
        return HardwareFacts(
            found=find_pfs(self.sysfs, links, rdma),
            selected=discovery.selected,
            skipped=discovery.skipped,
            pcie={pf.pci: link for pf in pfs if (link := slowest_link(pf.function))},
            hardware=observer.observe(),
            plain=self._plain(),
            roce=tuple(sorted(self.queries.devlink_flags(_ROCE).items())),
        )

    def module_facts(self) -> ModuleFacts:
        """Collect the states of modules for the running kernel."""
        release = self.host.read("/proc/sys/kernel/osrelease").strip()
        selected = self.selected()
        return ModuleFacts(
            states={name: self._module(name, release) for name in NEEDED},
            pf_drivers=frozenset(selection.pf.driver for selection in selected if selection.pf.driver),
            release=release,
            rdma=self.hardware.require_rdma or any(selection.pf.rdma_device for selection in selected),
        )

    def iommu_facts(self) -> IommuFacts:
        """Collect the groups, and the devices that share one with a PF's first VF."""
        noiommu = self.sysfs.value_if_any("module/vfio/parameters/enable_unsafe_noiommu_mode")
        return IommuFacts(
            groups=len(self.sysfs.names_if_any("kernel/iommu_groups") or ()),
            noiommu=noiommu == "Y",
            command_line=" ".join(
                argument
                for argument in (self.host.read_if_any("/proc/cmdline") or "").split()
                if "iommu" in argument
            ),
            together={selection.pf.name: self._together(selection) for selection in self.selected()},
        )

    def lossless_facts(self) -> LosslessFacts:
        """Collect the settings of each selected port."""
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
            self._plain_function(function)
            for function in functions
            if self._is_network(function) and not function.total_vfs() and function.pf() is None
        )

    def _plain_function(self, function: PciFunction) -> PlainFunction:
        names = sorted(function.netdevs() or ())
        representors = [name for name in names if is_representor(self.sysfs, name)]
        return PlainFunction(
            pci=function.pci,
            driver=function.driver() or "",
            netdev=next((name for name in names if name not in representors), ""),
            vendor=function.vendor(),
            host_ports=tuple(name for name in representors if is_host_port(self.sysfs, name)),
        )

    def _is_network(self, function: PciFunction) -> bool:
        """Report whether it is a network function; False if it disappears meanwhile."""
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
    """Return the trust of an mlx5 port; for other drivers, trust does not follow from DCB (`DcbState`)."""
    if driver != "mlx5_core" or dcb is None:
        return None
    return "dscp" if dcb.by_dscp else "pcp"


def memlock_limits(host: Host) -> tuple[LockingProcess, ...]:
    """Return the limits of the processes that start containers."""
    return tuple(
        LockingProcess(name=process.name, pid=process.pid, soft_bytes=host.memlock(process.pid))
        for process in host.processes(_STARTERS)
    )


def needs_cdi(plugin: DevicePluginConfig | None, mode: NetnsMode | None) -> tuple[str, ...]:
    """Return the resources of the device plugin that come by CDI, by name."""
    return tuple(_by_cdi(plugin, mode)) if plugin else ()


def _by_cdi(plugin: DevicePluginConfig, mode: NetnsMode | None) -> Iterator[str]:
    for resource in plugin.resources:
        match resource:
            case ExactResource() | SharedResource(cdi=True):
                yield resource.name
            case ExclusiveResource(cdi=cdi) if cdi or (cdi is None and mode is NetnsMode.EXCLUSIVE):
                yield resource.name
            case _:
                pass


def cni_facts(
    host: Host, *, conf_dir: str, bin_dirs: Sequence[str], run_dir: str, calls_check: bool
) -> CniFacts:
    """Collect the facts of CNI. OSError if a directory cannot be listed.

    run_dir: the agent's.
    calls_check: as in the facts.
    """
    programs = {
        name: f"{directory}/{name}" for directory in reversed(bin_dirs) for name in host.names(directory)
    }
    files = tuple(_file(host, conf_dir, name) for name in host.names(conf_dir) if is_read(name))
    broken = {name: why for name in OUR_PLUGINS & programs.keys() if (why := _fault(host, programs[name]))}
    return CniFacts(
        directory=conf_dir,
        files=files,
        bin_dirs=tuple(bin_dirs),
        programs=frozenset(programs),
        broken=broken,
        run_dir=run_dir,
        calls_check=calls_check,
    )


def _file(host: Host, directory: str, name: str) -> CniFile:
    try:
        return CniFile(name=name, text=host.read(f"{directory}/{name}"))
    except OSError as error:
        return CniFile(name=name, text=None, why=error.strerror or str(error))


def _fault(host: Host, path: str) -> str:
    """Return the reason why it does not answer VERSION, which needs no agent; empty if it answers."""
    if not os.access(host.path_of(path), os.X_OK):
        return f"{path} is not executable"
    try:
        reply = host.run([path], stdin=_QUESTION, environment={"CNI_COMMAND": "VERSION"})
    except OSError as error:
        return str(error)
    return "" if b"supportedVersions" in reply else f"it answers VERSION by {reply[:80]!r}"
