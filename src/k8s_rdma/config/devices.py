"""The device plugin's configuration: our own form, and that of Mellanox/k8s-rdma-shared-dev-plugin.

The agent reads it as well (`devicePlugin` in its own configuration), so that one place determines which VFs
belong to which resource. Mellanox' form is read as that program reads it (Go's `encoding/json`): keys without
regard to case, null as absent, unknown ones passed over and reported.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NoReturn

import msgspec

from k8s_rdma.config.addresses import DEVICE_PLUGIN_PORT
from k8s_rdma.config.bounded_files import read_named_file
from k8s_rdma.config.faults import fit
from k8s_rdma.config.field_types import AbsolutePath, NodeText
from k8s_rdma.config.files import load_config
from k8s_rdma.config.hardware import NetdevText, PciText, VendorText, is_netdev_name
from k8s_rdma.config.ports import Port
from k8s_rdma.config.tls import TlsConfig
from k8s_rdma.core.devices.pod_devices import shared_resource
from k8s_rdma.core.devices.pools import FunctionKind, FunctionSelector, Pool, PoolPf
from k8s_rdma.core.inventory import CLAIMS_POOL
from k8s_rdma.core.node_paths import RUN_DIR
from k8s_rdma.core.types import LinkType, pci_address
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.cdi import ResourceText, is_resource_name, require_resource_name
from k8s_rdma.wire.json import decode
from k8s_rdma.wire.json_faults import shown
from k8s_rdma.wire.nesting import load

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


MOUNT_RESOURCE = "rdma-sriov/dev-infiniband-mount"
HUSTCAT_RESOURCE = "tencent.com/rdma"
SLOT_RESOURCE = "k8s-rdma.io/slot"
Count = Annotated[int, msgspec.Meta(ge=1, le=100_000)]

MAX_PER_CONTAINER = 8
"""The limit for a container: one is enough, and some pod specifications request one for each interface."""

LAST_VF = 0xFFFF
"""PCI Express counts VFs with 16 bits (NumVFs)."""

DEFAULT_FILE = "/k8s-rdma-shared-dev-plugin/config.json"
"""The path at which that program's manifests mount its configuration."""
DEFAULT_PREFIX = "rdma"
DEFAULT_RESCAN_S = 60
MOST_SHARES = 100_000
DeviceText = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{4}$", description="a PCI device, such as 1017")]

_CHOICE = re.compile(
    r"((?P<pci>([0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[01][0-9a-fA-F]\.[0-7])|(?P<netdev>[^#\s:/*?\[\]]{1,15}))"
    r"(#(?P<vfs>\d+(-\d+)?(,\d+(-\d+)?)*))?"
)
"""Names of netdevs: as `config.hardware.NetdevText`."""
_KEYS: Mapping[str, Any] = {
    "periodicUpdateInterval": None,
    "configList": {
        "resourceName": None,
        "resourcePrefix": None,
        "rdmaHcaMax": None,
        "devices": None,
        "selectors": {
            "vendors": None,
            "deviceIDs": None,
            "drivers": None,
            "ifNames": None,
            "linkTypes": None,
        },
    },
}

_LINK_TYPES = {"ether": LinkType.ETHERNET, "infiniband": LinkType.INFINIBAND}
"""The link types of that program's files, which use netlink's names."""
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_HEX = re.compile(r"[0-9a-f]{4}")

_NO_NETDEV = "."
"""A name that no netdev can have, because `dev_valid_name` of the kernel's net/core/dev.c refuses it."""
_decoder = msgspec.json.Decoder(object)


class Selector(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Selects RDMA devices; each set must match by any of its values. Empty: every device.

    pfs: PFs by netdev or PCI address, and their VFs; `enp1s0f0#0-3,6` for some of the VFs alone.
    pcis: of the devices' own functions.
    vendors: PCI vendor, or vendor and device; drivers; both of the PF.
    functions: VFs, PFs, or both.
    """

    pfs: tuple[str, ...] = ()
    pcis: tuple[PciText, ...] = ()
    vendors: tuple[VendorText, ...] = ()
    drivers: tuple[str, ...] = ()
    link_types: tuple[LinkType, ...] = ()
    functions: FunctionKind = FunctionKind.ANY

    def __post_init__(self) -> None:
        """Refuse a selector that selects no device."""
        for pf in self.pfs:
            if pf_choice(pf).vfs is not None and self.functions is FunctionKind.PF:
                _refuse(f"pfs: {pf!r}: names VFs, and functions is pf")

    def to_core(self) -> FunctionSelector:
        """Convert to the selector."""
        return FunctionSelector(
            pfs=tuple(map(pf_choice, self.pfs)),
            pcis=frozenset(map(pci_address, self.pcis)),
            vendors=frozenset(self.vendors),
            drivers=frozenset(self.drivers),
            link_types=frozenset(self.link_types),
            functions=self.functions,
        )


class SharedSelector(Selector, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Selects as `Selector`, and by properties that may change while a pod has a device.

    device_ids: PCI device of the devices' own functions, `1017`.
    if_names: of their own netdevs.
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

    count: of containers that may ask at a time.
    max_per_container: of them one container's.
    """

    name: ResourceText = SLOT_RESOURCE
    count: Count = 1000
    max_per_container: Count = MAX_PER_CONTAINER


class MountResource(
    _Resource, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, tag="mount"
):
    """`/dev/infiniband` for every container that requests the resource.

    scope: the directory with all that is ever in it; the character devices that there are; `rdma_cm` alone.
    max_per_container: of all that there are, `count`.
    """

    name: ResourceText = MOUNT_RESOURCE
    count: Count = 10_000
    max_per_container: Count = MAX_PER_CONTAINER
    scope: Literal["directory", "devices", "rdma-cm-only"] = "directory"


class ExclusiveResource(
    _Resource, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, tag="exclusive"
):
    """A resource whose RDMA devices are for one container each; VFs among them are in its pool.

    share: how many further containers may ask for `<name>-shared`, to share the devices of their pod; 0: not
        shared. Needs CDI and the agent.
    cdi: whether device nodes come by CDI, written by the agent when it has moved the devices; by default if
        RDMA devices have namespaces of their own.
    """

    name: ResourceText = HUSTCAT_RESOURCE
    select: Selector = Selector()
    share: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 0
    cdi: bool | None = None

    def __post_init__(self) -> None:
        """Refuse the name of claims' VFs, and one without room for the further containers' resource."""
        super().__post_init__()
        if self.name == CLAIMS_POOL:
            _refuse(f"name: {CLAIMS_POOL} are the VFs for ResourceClaims; choose another name")
        shared = shared_resource(self.name)
        if self.share and not is_resource_name(shared):
            _refuse(f"name: with share there is {shared}, which has more than 63 characters after the /")

    def pool(self) -> Pool:
        """Return the pool of this resource; an earlier resource may select some of its devices."""
        return Pool(resource=self.name, selector=self.select.to_core())


class SharedResource(
    _Resource, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, tag="shared"
):
    """A resource that gives all matching devices to every container that requests it.

    count: of holders at a time.
    max_per_container: of them one container's.
    cdi: whether the device nodes come by CDI, from a specification that the agent writes.
    """

    name: ResourceText
    count: Annotated[int, msgspec.Meta(ge=0, le=100_000)]
    max_per_container: Count = MAX_PER_CONTAINER
    select: SharedSelector = SharedSelector()
    cdi: bool = False


Resource = ExactResource | MountResource | ExclusiveResource | SharedResource


class ClaimsConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """YAML with these keys in camelCase: the DRA driver, by which pods ask with ResourceClaims.

    plugins_dir, registry_dir: kubelet's directories of plugins' sockets, and of those that it finds them by.
    uid: of the pod that the process runs in (`--pod-uid`), for the names of its sockets; by default another
        at each start.
    numa_node_list: whether `resource.kubernetes.io/numaNode` lists the near nodes of a PF's socket, too. The
        API server takes lists with its feature gate DRAListTypeAttributes, and no driver can ask for that.
    """

    plugins_dir: AbsolutePath = "/var/lib/kubelet/plugins"
    registry_dir: AbsolutePath = "/var/lib/kubelet/plugins_registry"
    uid: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9-]{1,36}$", description="the UID of a pod")] | None = (
        None
    )
    numa_node_list: bool = False


def with_uid(claims: ClaimsConfig, uid: str) -> ClaimsConfig:
    """Set the pod's UID; MalformedError if it is no UID."""
    try:
        return msgspec.convert({**msgspec.to_builtins(claims), "uid": uid}, ClaimsConfig)
    except msgspec.ValidationError as error:
        msg = f"command line: --pod-uid {shown(uid)}: {error}"
        raise MalformedError(msg) from error


class DevicePluginConfig(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """YAML with these keys in camelCase.

    node: the node's name in Kubernetes, for events; without it, no events are recorded.
    resources: the offered resources; no two of one name. A resource of type `mount` is for every pod that
        asks for it, because it has no reservation.
    kubelet_dir: the directory of the sockets of kubelet and its plugins.
    pod_resources: kubelet's socket for the devices of pods.
    run_dir: the directory of the agent's sockets.
    listen, port: for `/metrics`, `/healthz` and `/readyz`; port 0 for a free one, null for no such server.
    tls: its files; null for plain HTTP.
    token_file: bearer tokens, one a line.
    open_paths: served without a token, as probes' paths always are; null: all without token_file, else no
        other.
    rescan_s: how often everything is scanned again, in addition to the kernel's events; 0 for never.
    kubeconfig, in_cluster: credentials for events and claims, as in the agent's file.
    claims: the DRA driver, which needs `node` and credentials; absent by default.
    """

    node: NodeText | None = None
    resources: tuple[Resource, ...] = (ExactResource(),)
    kubelet_dir: AbsolutePath = "/var/lib/kubelet/device-plugins"
    pod_resources: AbsolutePath = "/var/lib/kubelet/pod-resources/kubelet.sock"
    run_dir: AbsolutePath = RUN_DIR
    listen: str = ""
    port: Port | None = DEVICE_PLUGIN_PORT
    tls: TlsConfig | None = None
    token_file: AbsolutePath | None = None
    open_paths: tuple[Literal["/", "/metrics"], ...] | None = None
    rescan_s: Annotated[float, msgspec.Meta(ge=0)] = 60.0
    kubeconfig: AbsolutePath | None = None
    in_cluster: bool = False
    claims: ClaimsConfig | None = None

    def __post_init__(self) -> None:
        """Refuse contradictions."""
        names = list(self.resource_names())
        twice = sorted({name for name in names if names.count(name) > 1})
        if self.claims is not None and not (self.kubeconfig or self.in_cluster):
            _refuse("claims: needs credentials for the API server: kubeconfig or inCluster")
        if not names and self.claims is None:
            _refuse("resources: is empty, so that nothing would be offered")
        if twice:
            _refuse(f"resources: {twice[0]} is offered twice")
        if sum(isinstance(resource, ExactResource) for resource in self.resources) > 1:
            _refuse("resources: two are of mode exact; one serves every container")
        if self.kubeconfig is not None and self.in_cluster:
            _refuse("kubeconfig and inCluster: both are set, and one of them says it all")

    def resource_names(self) -> tuple[str, ...]:
        """Return the names of all resources that are registered with kubelet."""
        shared = (
            shared_resource(resource.name)
            for resource in self.resources
            if isinstance(resource, ExclusiveResource) and resource.share
        )
        return (*(entry.name for entry in self.resources), *shared)

    def pools(self) -> tuple[Pool, ...]:
        """Return the exclusive resources' pools, in their order: a VF is in the first that selects it."""
        return tuple(
            resource.pool() for resource in self.resources if isinstance(resource, ExclusiveResource)
        )


def pf_choice(text: str) -> PoolPf:
    """Read `enp1s0f0`, `0000:03:00.0`, or either with `#0-3,6`. ValueError when it is neither."""
    found = _CHOICE.fullmatch(text)
    if not found:
        _refuse(f"pfs: {text!r}; wanted a netdev or a PCI address, then perhaps # and VFs as in 0-3,6")
    pf = pci_address(found["pci"]) if found["pci"] else found["netdev"]
    return PoolPf(pf=pf, vfs=_vfs(text, found["vfs"]) if found["vfs"] else None)


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


class Selectors(msgspec.Struct, frozen=True, kw_only=True, rename={"device_ids": "deviceIDs"}):
    """Selectors of that program: each set that is not empty must match by any of its values."""

    vendors: tuple[str, ...] = ()
    device_ids: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()
    if_names: tuple[str, ...] = msgspec.field(default=(), name="ifNames")
    link_types: tuple[str, ...] = msgspec.field(default=(), name="linkTypes")


class Entry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A resource. devices: netdevs, before there were selectors."""

    resource_name: str = ""
    resource_prefix: str = ""
    rdma_hca_max: int = 0
    devices: tuple[str, ...] = ()
    selectors: Selectors = Selectors()


class MellanoxConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The file. periodic_update_interval: seconds; 0 for never."""

    periodic_update_interval: int = DEFAULT_RESCAN_S
    config_list: tuple[Entry, ...] = ()


class Read(NamedTuple):
    """A configuration, and the ineffective parts of the file: unknown keys, and impossible names."""

    config: DevicePluginConfig
    ignored: tuple[str, ...]


def is_mellanox(document: object) -> bool:
    """Report whether a file is meant for that program."""
    return isinstance(document, dict) and any(str(key).lower() == "configlist" for key in document)


def from_mellanox(document: object, *, cdi: bool, overrides: Mapping[str, Any]) -> Read:
    """MalformedError names the field. overrides: keys of our own file, and values."""
    ignored: list[str] = []
    read = fit(MellanoxConfig, _without_unknown_keys(document, _KEYS, "", ignored))
    ignored += _names_of_nothing(read.config_list)
    own = {"rescanS": _rescan_s(read), "resources": _resources(read.config_list, cdi=cdi)}
    return Read(fit(DevicePluginConfig, {**own, **overrides}), tuple(ignored))


def _without_unknown_keys(
    value: object, keys: Mapping[str, Any] | None, path: str, ignored: list[str]
) -> object:
    """Return the value with keys as they are written in the documents of that program, and no others."""
    if isinstance(value, list):
        return [
            _without_unknown_keys(item, keys, f"{path}[{index}]", ignored) for index, item in enumerate(value)
        ]
    if not isinstance(value, dict) or keys is None:
        return value
    names = {name.lower(): name for name in keys}
    result: dict[str, object] = {}
    for key, entry in value.items():
        key_path = f"{path}.{key}".lstrip(".")
        name = names.get(str(key).lower())
        if name is None:
            ignored.append(key_path)
        elif entry is not None:
            result[name] = _without_unknown_keys(entry, keys[name], key_path, ignored)
    return result


def _rescan_s(read: MellanoxConfig) -> int:
    if read.periodic_update_interval < 0:
        raise MalformedError(
            f"periodicUpdateInterval: {read.periodic_update_interval}; wanted seconds, or 0 for never"
        )
    return read.periodic_update_interval


def _resources(entries: Sequence[Entry], *, cdi: bool) -> list[dict[str, Any]]:
    if not entries:
        raise MalformedError("configList: is empty or missing: no resources are configured")
    resources = []
    places: dict[str, int] = {}
    for index, entry in enumerate(entries):
        resource = _resource(entry, f"configList[{index}]", cdi=cdi)
        first = places.setdefault(resource["name"], index)
        if first != index:
            raise MalformedError(
                f"configList[{index}].resourceName: {resource['name']} is that of configList[{first}] already"
            )
        resources.append(resource)
    return resources


def _resource(entry: Entry, path: str, *, cdi: bool) -> dict[str, Any]:
    prefix = entry.resource_prefix or DEFAULT_PREFIX
    if not _NAME.fullmatch(entry.resource_name):
        raise MalformedError(
            f"{path}.resourceName: {entry.resource_name!r}; wanted letters, digits and -_. between them"
        )
    if not is_resource_name(f"{prefix}/{entry.resource_name}"):
        raise MalformedError(
            f"{path}.resourcePrefix: {prefix!r}; wanted a domain other than Kubernetes' own, "
            "since kubelet takes no other"
        )
    if not 0 <= entry.rdma_hca_max <= MOST_SHARES:
        raise MalformedError(f"{path}.rdmaHcaMax: {entry.rdma_hca_max}; wanted 0 to {MOST_SHARES}")
    return {
        "mode": "shared",
        "name": f"{prefix}/{entry.resource_name}",
        "count": entry.rdma_hca_max,
        "maxPerContainer": max(entry.rdma_hca_max, 1),  # as many as there are: that program has no limit
        "cdi": cdi,
        "select": _select(entry, path),
    }


def _select(entry: Entry, path: str) -> dict[str, Any]:
    selectors = entry.selectors
    if selectors == Selectors():
        if not entry.devices:
            raise MalformedError(f"{path}: has neither selectors nor devices, and would offer nothing")
        return {"ifNames": _netdevs(entry.devices)}
    if entry.devices:
        raise MalformedError(
            f"{path}: has both selectors and devices; selectors.ifNames are the same as devices"
        )
    return {
        "vendors": _hex(selectors.vendors, f"{path}.selectors.vendors"),
        "deviceIds": _hex(selectors.device_ids, f"{path}.selectors.deviceIDs"),
        "drivers": selectors.drivers,
        "ifNames": _netdevs(selectors.if_names),
        "linkTypes": _link_types(selectors.link_types, f"{path}.selectors.linkTypes"),
    }


def _netdevs(names: Sequence[str]) -> list[str]:
    """Keep names that a netdev can have; without any, a name that selects no netdev."""
    netdevs = [name for name in names if is_netdev_name(name)]
    return netdevs or [_NO_NETDEV for _ in names[:1]]


def _names_of_nothing(entries: Sequence[Entry]) -> Iterator[str]:
    """Find names that no netdev can have, such as patterns, which have no effect."""
    for index, entry in enumerate(entries):
        for key, names in (("devices", entry.devices), ("selectors.ifNames", entry.selectors.if_names)):
            for position, name in enumerate(names):
                if not is_netdev_name(name):
                    yield f"configList[{index}].{key}[{position}]"


def _hex(values: Sequence[str], path: str) -> list[str]:
    for index, value in enumerate(values):
        if not _HEX.fullmatch(value.lower()):
            raise MalformedError(f"{path}[{index}]: {value!r}; wanted four hexadecimal digits, such as 15b3")
    return [value.lower() for value in values]


def _link_types(values: Sequence[str], path: str) -> list[LinkType]:
    for index, value in enumerate(values):
        if value not in _LINK_TYPES:
            raise MalformedError(f"{path}[{index}]: {value!r}; wanted {' or '.join(_LINK_TYPES)}")
    return [_LINK_TYPES[value] for value in values]


def load_device_config(path: str | None, overrides: Mapping[str, Any], *, cdi: bool = False) -> Read:
    """Load a configuration of either program; its keys tell which. cdi: the value for all its resources.

    MalformedError as well for cdi with another file, whose resources say for themselves.
    """
    document = _json(path) if path else None
    if path is None or not is_mellanox(document):
        if cdi:
            raise MalformedError(
                f"{path}: has no configList, which --use-cdi is for; say cdi: true of a resource"
            )
        return Read(load_config(DevicePluginConfig, path, overrides), ())
    return _from_mellanox(document, path, overrides, cdi=cdi)


def load_mellanox_config(path: str, overrides: Mapping[str, Any], *, cdi: bool) -> Read:
    """Load a file that can be no other's. MalformedError names it, and the field."""
    try:
        document = decode(read_named_file(path), _decoder, path)
    except OSError as error:
        raise MalformedError(f"{path}: {error.strerror}") from error
    if not isinstance(document, dict):
        raise MalformedError(f"{path}: is no object; wanted one with configList")
    return _from_mellanox(document, path, overrides, cdi=cdi)


def _from_mellanox(document: object, path: str, overrides: Mapping[str, Any], *, cdi: bool) -> Read:
    fields = {key: value for key, value in overrides.items() if value is not None}
    try:
        return from_mellanox(document, cdi=cdi, overrides=fields)
    except MalformedError as error:
        raise MalformedError(f"{path}: {error.message}") from error


def _json(path: str) -> object:
    """Read JSON, if it is readable JSON; `load_config` reports if not."""
    try:
        return load(read_named_file(path))
    except (OSError, ValueError):
        return None
