"""The device plugin's configuration file. The agent reads it as well (`devicePlugin` in its own).

So there is one place that says which VFs belong to which resource.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, NoReturn

import msgspec

from k8s_rdma.config.files import AbsolutePath, NodeText, Port, TlsConfig
from k8s_rdma.config.hardware import NetdevText, PciText, VendorText
from k8s_rdma.core.devices.pod_devices import shared_resource
from k8s_rdma.core.devices.pools import Functions, FunctionSelector, PfChoice, Pool
from k8s_rdma.core.ids import pci_address
from k8s_rdma.core.options import LinkType
from k8s_rdma.wire.resource_names import ResourceText, is_resource_name, require_resource_name

DEFAULT_PORT = 54006
"""Beside the server's."""

MOUNT_RESOURCE = "rdma-sriov/dev-infiniband-mount"
HUSTCAT_RESOURCE = "tencent.com/rdma"
SLOT_RESOURCE = "k8s-rdma.io/slot"


Count = Annotated[int, msgspec.Meta(ge=1, le=100_000)]

MOST_PER_CONTAINER = 8
"""One does for a container, and some descriptions of pods ask for as many as they have interfaces."""

LAST_VF = 0xFFFF
"""PCI Express counts VFs with 16 bits (NumVFs)."""

_CHOICE = re.compile(
    r"((?P<pci>([0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[01][0-9a-fA-F]\.[0-7])|(?P<netdev>[^#\s:/*?\[\]]{1,15}))"
    r"(#(?P<vfs>\d+(-\d+)?(,\d+(-\d+)?)*))?"
)
"""Names of netdevs: as `config.hardware.NetdevText`."""


DeviceText = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{4}$", description="a PCI device, such as 1017")]


class Selector(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Selects RDMA devices; each set must match by any of its values. Empty: every device.

    pfs: PFs by netdev or PCI address, and their VFs; `enp1s0f0#0-3,6` for some of the VFs alone.
    pcis: of the devices' own functions. vendors: PCI vendor, or vendor and device; drivers; both of the PF.
    functions: VFs, PFs, or both.
    """

    pfs: tuple[str, ...] = ()
    pcis: tuple[PciText, ...] = ()
    vendors: tuple[VendorText, ...] = ()
    drivers: tuple[str, ...] = ()
    link_types: tuple[LinkType, ...] = ()
    functions: Functions = Functions.ANY

    def __post_init__(self) -> None:
        """Refuse what selects nothing."""
        for pf in self.pfs:
            if pf_choice(pf).vfs is not None and self.functions is Functions.PF:
                _refuse(f"pfs: {pf!r}: names VFs, and functions is pf")

    def to_core(self) -> FunctionSelector:
        """The selector."""
        return FunctionSelector(
            pfs=tuple(map(pf_choice, self.pfs)),
            pcis=frozenset(map(pci_address, self.pcis)),
            vendors=frozenset(self.vendors),
            drivers=frozenset(self.drivers),
            link_types=frozenset(self.link_types),
            functions=self.functions,
        )


class SharedSelector(Selector, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Selects as `Selector`, and by what may change while a pod has a device.

    device_ids: PCI device of the devices' own functions, `1017`. if_names: of their own netdevs.
    rdma_devices: by name.
    """

    device_ids: tuple[DeviceText, ...] = ()
    if_names: tuple[NetdevText, ...] = ()
    rdma_devices: tuple[str, ...] = ()


class _Resource(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, tag_field="mode"
):
    """hints: whether containers get `NCCL_IB_HCA` and `UCX_NET_DEVICES` for the devices given to them."""

    name: ResourceText
    hints: bool = False

    def __post_init__(self) -> None:
        """Refuse a name that kubelet would not take."""
        require_resource_name("name", self.name)


class ExactResource(
    _Resource, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, tag="exact"
):
    """The devices of the VFs that the agent gives the pod, by CDI.

    count: of containers that may ask at a time. most_per_container: of them one container's.
    """

    name: ResourceText = SLOT_RESOURCE
    count: Count = 1000
    most_per_container: Count = MOST_PER_CONTAINER


class MountResource(
    _Resource, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, tag="mount"
):
    """`/dev/infiniband` for whoever asks.

    scope: the directory with all that is ever in it; the character devices that there are; `rdma_cm` alone.
    most_per_container: of all that there are, `count`.
    """

    name: ResourceText = MOUNT_RESOURCE
    count: Count = 10_000
    most_per_container: Count = MOST_PER_CONTAINER
    scope: Literal["directory", "devices", "rdma-cm-only"] = "directory"


class ExclusiveResource(
    _Resource, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, tag="exclusive"
):
    """A resource whose RDMA devices are for one container each; VFs among them are in its pool.

    share: how many further containers may ask for `<name>-shared`, to get what their pod holds; 0: none.
        Needs CDI and the agent.
    cdi: whether device nodes come by CDI, written by the agent when it has moved the devices; by default
        where RDMA devices have namespaces of their own.
    """

    name: ResourceText = HUSTCAT_RESOURCE
    select: Selector = Selector()
    share: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 0
    cdi: bool | None = None

    def __post_init__(self) -> None:
        """Refuse a name that leaves no room for that of the further containers' resource."""
        super().__post_init__()
        shared = shared_resource(self.name)
        if self.share and not is_resource_name(shared):
            _refuse(f"name: with share there is {shared}, which has more than 63 characters after the /")

    def pool(self) -> Pool:
        """The pool of this resource, without what an earlier resource selects."""
        return Pool(resource=self.name, selector=self.select.to_core())


class SharedResource(
    _Resource, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, tag="shared"
):
    """A resource that gives all matching devices to every container that requests it.

    count: of holders at a time. most_per_container: of them one container's.
    cdi: whether the device nodes come by CDI, from a specification that the agent writes.
    """

    name: ResourceText
    count: Annotated[int, msgspec.Meta(ge=0, le=100_000)]
    most_per_container: Count = MOST_PER_CONTAINER
    select: SharedSelector = SharedSelector()
    cdi: bool = False


Resource = ExactResource | MountResource | ExclusiveResource | SharedResource


class DevicePluginConfig(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """YAML with these keys in camelCase.

    node: the node's name in Kubernetes, for events; none are told without.
    resources: what is offered; no two of one name. `mount` is for who asks for it: it knows no reservation.
    kubelet_dir: where kubelet and plugins have their sockets. pod_resources: kubelet's socket that tells
        which pod holds what. run_dir: where the agent's sockets are.
    listen, port: for `/metrics`, `/healthz` and `/readyz`; port 0 for a free one, none for no such server.
    tls: its files; None for plain HTTP. token_file: bearer tokens, one a line.
    open_paths: served without a token, as probes' paths always are; None: all without token_file, else none.
    rescan_s: how often everything is looked at anew, whatever the kernel tells of; 0 for never.
    kubeconfig, in_cluster: credentials for events, as in the agent's file.
    """

    node: NodeText | None = None
    resources: tuple[Resource, ...] = (ExactResource(),)
    kubelet_dir: AbsolutePath = "/var/lib/kubelet/device-plugins"
    pod_resources: AbsolutePath = "/var/lib/kubelet/pod-resources/kubelet.sock"
    run_dir: AbsolutePath = "/run/k8s-rdma"
    listen: str = ""
    port: Port | None = DEFAULT_PORT
    tls: TlsConfig | None = None
    token_file: AbsolutePath | None = None
    open_paths: tuple[Literal["/", "/metrics"], ...] | None = None
    rescan_s: Annotated[float, msgspec.Meta(ge=0)] = 60.0
    kubeconfig: AbsolutePath | None = None
    in_cluster: bool = False

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        names = list(self.resource_names())
        twice = sorted({name for name in names if names.count(name) > 1})
        if not names:
            _refuse("resources: is empty, so that nothing would be offered")
        if twice:
            _refuse(f"resources: {twice[0]} is offered twice")
        if sum(isinstance(resource, ExactResource) for resource in self.resources) > 1:
            _refuse("resources: two are of mode exact; one serves every container")
        if self.kubeconfig is not None and self.in_cluster:
            _refuse("kubeconfig and inCluster: both are set, and one of them says it all")

    def resource_names(self) -> tuple[str, ...]:
        """The names of all resources that are registered with kubelet."""
        shared = (
            shared_resource(resource.name)
            for resource in self.resources
            if isinstance(resource, ExclusiveResource) and resource.share
        )
        return (*(entry.name for entry in self.resources), *shared)

    def pools(self) -> tuple[Pool, ...]:
        """The exclusive resources' pools, in their order: a VF is in the first that selects it."""
        return tuple(
            resource.pool() for resource in self.resources if isinstance(resource, ExclusiveResource)
        )


def pf_choice(text: str) -> PfChoice:
    """Read `enp1s0f0`, `0000:03:00.0`, or either with `#0-3,6`. ValueError when it is neither."""
    found = _CHOICE.fullmatch(text)
    if not found:
        _refuse(f"pfs: {text!r}; wanted a netdev or a PCI address, then perhaps # and VFs as in 0-3,6")
    pf = pci_address(found["pci"]) if found["pci"] else found["netdev"]
    return PfChoice(pf=pf, vfs=_vfs(text, found["vfs"]) if found["vfs"] else None)


def _vfs(text: str, ranges: str) -> frozenset[int]:
    vfs: set[int] = set()
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if int(last or first) < int(first):
            _refuse(f"pfs: {text!r}: {part} ends before it begins")
        if int(last or first) > LAST_VF:
            _refuse(f"pfs: {text!r}: {part} is beyond {LAST_VF}, the last VF that there can be")
        vfs.update(range(int(first), int(last or first) + 1))
    return frozenset(vfs)


def _refuse(why: str) -> NoReturn:
    raise ValueError(why)
