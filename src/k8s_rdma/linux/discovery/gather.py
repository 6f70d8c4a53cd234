"""Records the machine that it runs on as a file from which tests and bug hunts can read it again.

What the observation reads is noted while the observation reads it, whatever the configuration would select;
beside that a fixed list of files that help to understand a report.
"""

from __future__ import annotations

import platform
import re
from typing import TYPE_CHECKING

from k8s_rdma import __version__
from k8s_rdma.core.ids import pci_address
from k8s_rdma.core.selection import PfRule, Selection
from k8s_rdma.errors import KernelError
from k8s_rdma.linux.discovery.observation import Observer
from k8s_rdma.linux.discovery.recording import RecordingQueries, RecordingSysfs
from k8s_rdma.linux.sysfs import is_gone
from k8s_rdma.wire.machine import About, Machine
from k8s_rdma.wire.machine_disguise import REPLACED, disguised

if TYPE_CHECKING:
    from collections.abc import Iterable

    from k8s_rdma.linux.discovery.queries import Queries
    from k8s_rdma.linux.sysfs import Sysfs

_DEVICES = "bus/pci/devices"
_NETWORK_CLASS = "0x02"
_FUNCTION = ("class", "vendor", "device", "numa_node")
_PF = (
    *("revision", "subsystem_vendor", "subsystem_device", "modalias", "uevent"),
    *("sriov_totalvfs", "sriov_numvfs", "sriov_drivers_autoprobe", "sriov_offset", "sriov_stride"),
    *("sriov_vf_device", "sriov_vf_total_msix"),
)
_NETDEV = (
    *("ifindex", "type", "address", "mtu", "flags", "operstate", "carrier", "speed", "duplex"),
    *("dev_id", "dev_port", "phys_port_name", "phys_switch_id", "phys_port_id"),
)
_RDMA = ("node_type", "node_guid", "fw_ver", "hca_type", "board_id", "parent")
_RDMA_PORT = ("state", "phys_state", "rate", "link_layer")
_VIRTFN = re.compile(r"virtfn\d+")
_VETH = "veth"

LEFT_OUT = (
    "host name, IP addresses, interface aliases, serial numbers and vital product data are not recorded",
    "the host's ends of pods' interfaces (veth) are left out",
)


def gather(sysfs: Sysfs, queries: Queries) -> Machine:
    """This machine, disguised (`wire.machine_disguise`); `about` says what could not be looked at."""
    read, asked = RecordingSysfs(sysfs), RecordingQueries(queries)
    gathering = _Gathering(sysfs, read, asked)
    gathering.observe()
    gathering.look_further()
    about = About(
        machine=gathering.summary(),
        source=f"recorded by k8s-rdma gather {__version__}",
        kernel=f"{platform.release()} {platform.machine()}",
        replaced=(*REPLACED, *LEFT_OUT),
        unreadable=tuple(dict.fromkeys([*gathering.unreadable, *map(str, asked.refusals.values())])),
    )
    links = tuple(link for link in asked.link_entries if link.kind != _VETH)
    shown = {link.index for link in links}
    return disguised(
        Machine(
            about=about,
            sysfs=dict(sorted(read.entries().items())),
            links=links,
            vfs=dict(sorted(asked.vf_entries.items())),
            default_route_links=asked.default_routes,
            addressed_links=tuple(index for index in asked.addressed if index in shown),
            rdma_devices=asked.rdma_entries,
            eswitch_modes=asked.modes,
            devlink_rates=asked.rates,
            firmware=dict(sorted(asked.firmwares.items())),
            refused=asked.refused(),
        )
    )


class _Gathering:
    """What is being noted, and what cannot be."""

    def __init__(self, unnoted: Sysfs, sysfs: RecordingSysfs, queries: RecordingQueries) -> None:
        self._unnoted, self._sysfs, self._queries = unnoted, sysfs, queries
        self.unreadable: list[str] = []

    def observe(self) -> None:
        """Have the machine read as the agent reads it, every PF of it."""
        pcis = frozenset(pci_address(name) for name in self._names(_DEVICES))
        for selection in (Selection(), Selection(require_rdma=False, rules=(PfRule(pcis=pcis),))):
            try:
                Observer(self._sysfs, self._queries, selection).observe()
            except KernelError as error:
                self.unreadable.append(str(error))

    def look_further(self) -> None:
        """Note what nothing reads, but people who look for a fault."""
        drivers = set()
        for pci in sorted(self._names(_DEVICES)):
            function = f"{_DEVICES}/{pci}"
            if (self._unnoted.value_if_any(f"{function}/class") or "").startswith(_NETWORK_CLASS):
                self._function(function)
                drivers.add(self._target(f"{function}/driver"))
        for driver in sorted(drivers - {""}):
            self._text(f"module/{driver}/version")
        for name in self._names("class/infiniband"):
            self._rdma_device(f"class/infiniband/{name}")
        for name in self._names("class/infiniband_verbs"):
            self._texts(f"class/infiniband_verbs/{name}", ("ibdev", "dev"))
        for name in self._names("class/infiniband_mad"):
            self._texts(f"class/infiniband_mad/{name}", ("ibdev", "dev", "port"))
        self._text("class/misc/rdma_cm/dev")

    def summary(self) -> str:
        """How many PFs of which driver with how many VFs, in a few words."""
        pfs = [
            f"{self._target(f'{function}/driver') or 'no driver'} {name} with {count} VFs"
            for name in sorted(self._names(_DEVICES))
            if (count := self._text(f"{(function := f'{_DEVICES}/{name}')}/sriov_numvfs")) is not None
        ]
        return "; ".join(pfs) or "no device that can have VFs"

    def _function(self, path: str) -> None:
        self._texts(path, _FUNCTION)
        self._target(f"{path}/iommu_group")
        names = self._names(path)
        for name in names:
            if _VIRTFN.fullmatch(name) or name == "physfn":
                self._target(f"{path}/{name}")
        if "physfn" in names:  # 127 VFs of a port are alike in all the rest
            return
        self._texts(path, _PF)
        for netdev in self._names(f"{path}/net"):
            self._texts(f"{path}/net/{netdev}", _NETDEV)

    def _rdma_device(self, path: str) -> None:
        self._texts(path, _RDMA)
        for port in self._names(f"{path}/ports"):
            self._texts(f"{path}/ports/{port}", _RDMA_PORT)

    def _texts(self, directory: str, names: Iterable[str]) -> None:
        for name in names:
            self._text(f"{directory}/{name}")

    def _text(self, path: str) -> str | None:
        try:
            return self._sysfs.value_if_any(path)
        except OSError as error:
            self._cannot(path, error)
            return None

    def _names(self, path: str) -> list[str]:
        try:
            return self._sysfs.names(path)
        except OSError as error:
            self._cannot(path, error)
            return []

    def _target(self, path: str) -> str:
        try:
            return self._sysfs.target(path)
        except OSError as error:
            self._cannot(path, error)
            return ""

    def _cannot(self, path: str, error: OSError) -> None:
        if not is_gone(error):
            self.unreadable.append(f"{path}: {error.strerror}")
