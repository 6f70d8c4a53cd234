"""A call of the plugin: CNI_* variables, and the network configuration on stdin.

Source: CNI specification 1.1.0, section 1 "Plugin configuration objects", section 2 "Parameters" and "CNI
operations", section 3 "Deriving execution configuration". The variables that a command needs are as in
libcni's `pkg/skel`, the rules for their text as in its `pkg/utils`. `wire.plugin_config` has the parts of the
configuration that other plugins read. An unknown key is refused by name, because a misspelt key would
silently have no effect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NoReturn, TypeVar, get_args

import msgspec

from k8s_rdma.core.node_paths import RUN_DIR
from k8s_rdma.core.types import ContainerId, PodUid, VfDriver
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.json import decode
from k8s_rdma.wire.json_faults import describe_unknown, shown

Command = Literal["ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION"]
COMMANDS: tuple[Command, ...] = get_args(Command)

MAX_IFNAME_BYTES = 15
"""The limit of an interface's name: `IFNAMSIZ` - 1 (include/uapi/linux/if.h)."""

OWN_KEYS = frozenset(
    {
        *("runDir", "timeoutMs", "interfaceNames", "networks", "delegate", "emptyResult"),
        "exclusiveDevices",
    }
)
"""camelCase like the specification's. `timeoutMs` and `exclusiveDevices` are read by the executable alone."""

INHERITED_KEYS = frozenset({"if0name", "l2enable", "vlan", "dpdk", "cniDir"})
"""Keys of the plugin that this one replaces; `cniDir`, the directory of its state, has no effect here."""

MEANINGLESS_KEYS = frozenset({"if0", "master", "vf", "pfNetdevices", "createmac"})
"""Keys of that plugin and of its ancestors (hustcat's, Intel's and Tencent's SR-IOV plugins) that name PFs or
VFs, or ask for a property that every VF has. They have no effect here, because placements choose PFs and VFs.
The file of a node may keep them, with a warning."""

STANDARD_KEYS = frozenset(
    {
        *("cniVersion", "cniVersions", "name", "type", "ipam", "dns", "prevResult"),
        *("args", "capabilities", "runtimeConfig"),
        *("disableCheck", "disableGC", "loadOnlyInlinedPlugins"),
    }
)
"""CNI specification 1.1.0, section 1, and section 3 "Deriving execution configuration"."""

DEVICE_KEYS = frozenset({"deviceID", "pciBusID"})
"""The keys in which Multus passes a device of the pod; the second is an older name of the first
(Multus CNI, `pkg/types/conf.go`, `delegateAddDeviceID`)."""
RESERVED_PREFIX = "cni.dev/"

POD_ANNOTATIONS = "io.kubernetes.cri.pod-annotations"
"""The capability by which containerd and CRI-O deliver a pod's annotations in `runtimeConfig`."""

INDEX = "{i}"
"""The placeholder for an interface's index in `interfaceNames`."""
SUBJECT = "network configuration"
MAX_VLAN = 4094
_CONTAINER_ID = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*")
_REQUIRED: Mapping[Command, tuple[str, ...]] = {
    "ADD": ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"),
    "CHECK": ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"),
    "DEL": ("CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"),
    "GC": ("CNI_PATH",),
    "STATUS": ("CNI_PATH",),
    "VERSION": (),
}

_UNSUPPORTED: Mapping[str, str] = MappingProxyType(
    {
        "ipMasq": "masquerading belongs to the plugin of the pod's main network",
        "pfOnly": "pods get VFs, not PFs",
    }
)
"""The keys that would change a pod's interfaces, so they are refused instead of ignored; neutral values
pass."""
_NEUTRAL = frozenset({b"null", b"false", b"0", b'""', b"{}", b"[]"})
_VERSION = re.compile(r"\d{1,4}\.\d{1,4}\.\d{1,4}", re.ASCII)

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*")
"""A network's name (libcni, `pkg/utils`); a plugin's name obeys the same rule here, because it is a file's
name."""
_DPDK_KEYS = ("dpdk_driver", "dpdk_tool", "ifname", "kernel_driver", "pci_addr")
_NO_PLUGIN = (b"{}", b"null")

_Conf = TypeVar("_Conf")

_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_subnetworks_decoder = msgspec.json.Decoder(dict[str, dict[str, msgspec.Raw]] | None)

_encoder = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class CniEnvironment:
    """The environment of a plugin call.

    container_id, ifname: empty for GC, STATUS and VERSION, which concern no container.
    netns: the namespace's path; None if the runtime gave no path (DEL after the namespace vanished).
    args: `CNI_ARGS` as pairs.
    raw_args: the same as text, for plugins called in turn.
    path: `CNI_PATH`, directories with `:` between.
    """

    command: Command
    container_id: ContainerId
    ifname: str
    netns: str | None
    args: Mapping[str, str]
    raw_args: str
    path: str

    @property
    def pod_namespace(self) -> str | None:
        """The pod's namespace, if the runtime is a Kubernetes one."""
        return self.args.get("K8S_POD_NAMESPACE") or None

    @property
    def pod_name(self) -> str | None:
        """The pod's name, if the runtime is a Kubernetes one."""
        return self.args.get("K8S_POD_NAME") or None

    @property
    def pod_uid(self) -> PodUid | None:
        """The pod's UID, if the runtime is a Kubernetes one and new enough to tell."""
        uid = self.args.get("K8S_POD_UID")
        return PodUid(uid) if uid else None


def parse_environment(variables: Mapping[str, str]) -> CniEnvironment:
    """Return the call that the variables make; variables other than CNI's are ignored.

    MalformedError (`INVALID_ENVIRONMENT`) names the variable and its fault.
    """
    command = _command(variables.get("CNI_COMMAND", ""))
    for name in _REQUIRED[command]:
        if not variables.get(name):
            _refuse(name, f"not set, and {command} needs it")
    concerns_container = "CNI_CONTAINERID" in _REQUIRED[command]
    raw_args = variables.get("CNI_ARGS", "")
    return CniEnvironment(
        command=command,
        container_id=_container_id(variables["CNI_CONTAINERID"] if concerns_container else ""),
        ifname=_ifname(variables["CNI_IFNAME"] if concerns_container else ""),
        netns=(variables.get("CNI_NETNS") or None) if concerns_container else None,
        args=_args(raw_args),
        raw_args=raw_args,
        path=variables.get("CNI_PATH", ""),
    )


def ifname_fault(name: str) -> str | None:
    """Describe why this is no name of a network interface, if it is not.

    Source: `dev_valid_name` in net/core/dev.c, 6.1, and the specification's rule for `CNI_IFNAME`.
    """
    if not name:
        return "is empty"
    if len(name.encode(errors="replace")) > MAX_IFNAME_BYTES:
        return f"is longer than {MAX_IFNAME_BYTES} bytes"
    if name in (".", "..") or any(char in "/:\0" or char.isspace() for char in name):
        return "must not be . or .. nor contain / or : or white space"
    return None


class ValidAttachment(msgspec.Struct, frozen=True, rename={"container_id": "containerID"}):
    """An attachment that the runtime holds valid (GC)."""

    container_id: ContainerId
    ifname: str


class RuntimeConfig(msgspec.Struct, frozen=True):
    """The part of the runtime's configuration (capabilities) that this system reads."""

    pod_annotations: dict[str, str] | msgspec.UnsetType | None = msgspec.field(
        name=POD_ANNOTATIONS, default=msgspec.UNSET
    )
    device_info_file: str | None = msgspec.field(name="CNIDeviceInfoFile", default=None)
    device_id: str | None = msgspec.field(name="deviceID", default=None)


class Subnetwork(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of interfaces whose `network` names it; ipam as written, l2enable as in `NetConf`."""

    ipam: msgspec.Raw = msgspec.Raw()
    l2enable: bool = False


class _Network(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    cni_version: str = "0.1.0"
    name: str


class NetConf(_Network, frozen=True, kw_only=True, rename="camel"):
    """The configuration of one call.

    cni_version: the version that the result must be in; without one it is the first (as libcni has it).
    name: the network's.
    run_dir: the directory of the agent's `cni.sock`; read by the executable.
    if0name: the first interface's name, which takes precedence over the pattern; may be empty.
    l2enable: give interfaces without addresses even if `ipam` is present.
    networks: more networks, with addresses of their own, for the interfaces that name them.
    delegate: the plugin that gives a pod its ordinary interface; empty if absent.
    empty_result: whether the runtime takes a pod without any interface.
    exclusive_devices: whether pods may hold some; heeded by the executable.
    vlan: of interfaces that ask for no VLAN; 0 for no VLAN.
    dpdk: as the replaced plugin had it, see `driver`.
    top_device_id: see `device_id`.
    ipam, prev_result: as written, to be passed on; empty if absent.
    valid_attachments, attachments: None if the runtime named no list, which differs from an empty list. See
        `attachments_to_keep`.
    """

    type: str
    run_dir: str = RUN_DIR
    pattern: str | None = msgspec.field(name="interfaceNames", default=None)
    if0name: str = ""
    l2enable: bool = False
    networks: dict[str, Subnetwork] = {}
    delegate: msgspec.Raw = msgspec.Raw()
    empty_result: bool = False
    exclusive_devices: bool = False
    vlan: int = 0
    dpdk: dict[str, str] = {}
    ipam: msgspec.Raw = msgspec.Raw()
    prev_result: msgspec.Raw = msgspec.Raw()
    runtime_config: RuntimeConfig | None = None
    top_device_id: str = msgspec.field(name="deviceID", default="")
    valid_attachments: tuple[ValidAttachment, ...] | None = msgspec.field(
        name="cni.dev/valid-attachments", default=None
    )
    attachments: tuple[ValidAttachment, ...] | None = msgspec.field(name="cni.dev/attachments", default=None)

    @property
    def chained(self) -> bool:
        """Report whether another plugin ran before this one; on ADD alone: later `prevResult` is our own."""
        return bool(self.prev_result)

    @property
    def own_networks(self) -> frozenset[str]:
        """The values of an interface's `network` that belong to this attachment."""
        return frozenset({self.name, *self.networks})

    @property
    def driver(self) -> VfDriver:
        """The driver of all VFs while pods have them."""
        return VfDriver.VFIO_PCI if any(self.dpdk.values()) else VfDriver.KERNEL

    @property
    def attachments_to_keep(self) -> frozenset[ValidAttachment] | None:
        """The attachments that the runtime holds valid, by either of the keys of GC, if the call has one."""
        valid = self.valid_attachments if self.valid_attachments is not None else self.attachments
        return None if valid is None else frozenset(valid)

    @property
    def device_id(self) -> str:
        """The device, of those that kubelet allocated, that this network attaches; empty if not given.

        Multus sets either of them, for a network attachment definition that names a resource.
        """
        return (self.runtime_config and self.runtime_config.device_id) or self.top_device_id

    @property
    def device_info_file(self) -> str:
        """The file in which the runtime expects the device's information; empty if it expects no file."""
        return (self.runtime_config and self.runtime_config.device_info_file) or ""

    @property
    def pod_annotations(self) -> Mapping[str, str] | None:
        """The pod's annotations, if the runtime delivered them (a null stands for an empty set)."""
        if self.runtime_config is None or isinstance(self.runtime_config.pod_annotations, msgspec.UnsetType):
            return None
        return self.runtime_config.pod_annotations or {}


def _command(text: str) -> Command:
    if text not in COMMANDS:
        _refuse("CNI_COMMAND", f"{shown(text)} is none of {', '.join(COMMANDS)}")
    return text


def _container_id(text: str) -> ContainerId:
    if text and not _CONTAINER_ID.fullmatch(text):
        _refuse(
            "CNI_CONTAINERID",
            f"{shown(text)} must be letters, digits, _ . - and start with one of the former",
        )
    return ContainerId(text)


def _ifname(text: str) -> str:
    if text and (fault := ifname_fault(text)):
        _refuse("CNI_IFNAME", f"{shown(text)} {fault}")
    return text


def _args(text: str) -> Mapping[str, str]:
    pairs = {}
    for pair in text.split(";") if text else ():
        key, equals, value = pair.partition("=")
        if not equals or not key:
            _refuse("CNI_ARGS", f"{shown(pair)} is no KEY=VALUE pair")
        pairs[key] = value
    return MappingProxyType(pairs)


def _refuse(variable: str, why: str) -> NoReturn:
    msg = f"{variable}: {why}"
    raise MalformedError(msg, reason=Reason.INVALID_ENVIRONMENT)


def check_key(key: str, value: msgspec.Raw) -> None:
    """MalformedError (`INVALID_NETCONF`) unless the key is known, or reserved by the specification."""
    keys = OWN_KEYS | INHERITED_KEYS | STANDARD_KEYS | DEVICE_KEYS
    if key in keys or key in MEANINGLESS_KEYS or key.startswith(RESERVED_PREFIX):
        return
    if key not in _UNSUPPORTED:
        refuse(shown(key), describe_unknown(key, sorted(keys)))
    if bytes(value) not in _NEUTRAL:
        refuse(key, f"not supported: {_UNSUPPORTED[key]}")


def meaningless_keys(stdin: bytes) -> tuple[str, ...]:
    """Return the keys that have no effect here, in order; MalformedError as `decode_fields`."""
    return tuple(sorted(MEANINGLESS_KEYS & decode_fields(stdin).keys()))


def refuse(key: str, why: str) -> NoReturn:
    """MalformedError (`INVALID_NETCONF`) that names the key."""
    msg = f"network configuration: {key}: {why}"
    raise MalformedError(msg, reason=Reason.INVALID_NETCONF)


class _Typed(msgspec.Struct, frozen=True):
    type: str


_typed_decoder = msgspec.json.Decoder(_Typed)
_decoder = msgspec.json.Decoder(NetConf)
_network_decoder = msgspec.json.Decoder(_Network)


def decode_netconf(stdin: bytes, *, strict: bool = True) -> NetConf:
    """Parse the configuration; MalformedError (`INVALID_NETCONF`) names the key.

    strict: refuse keys that are unknown or not supported. GC and STATUS do without, because they must not
        depend on ADD's judgement of the configuration.
    """
    fields = decode_fields(stdin)
    if strict:
        for key, value in fields.items():
            check_key(key, value)
        _check_subnetworks(fields.get("networks", msgspec.Raw(b"{}")))
    conf = _decode(_without_nulls(fields), _decoder)
    _check_network(conf)
    _check_names(conf)
    _check_dpdk(conf.dpdk)
    if not 0 <= conf.vlan <= MAX_VLAN:
        refuse("vlan", f"{conf.vlan} is not in 0..{MAX_VLAN}")
    if conf.attachments is not None and frozenset(conf.attachments) != conf.attachments_to_keep:
        refuse("cni.dev/attachments", "differs from cni.dev/valid-attachments")
    return conf


def decode_network(stdin: bytes) -> tuple[str, str]:
    """Decode only the network's name and the version to answer in; MalformedError names the key.

    DEL uses it, because it undoes by the record of ADD, and a present fault of the configuration must not
    keep a pod in Terminating.
    """
    network = _decode(_without_nulls(decode_fields(stdin)), _network_decoder)
    _check_network(network)
    return network.name, network.cni_version


def decode_fields(stdin: bytes) -> dict[str, msgspec.Raw]:
    """Return the configuration's keys with their values as written."""
    return _decode(stdin, _fields_decoder)


def plugin_type(document: msgspec.Raw, key: str) -> str | None:
    """Return the plugin that an object names, if there is an object and it is not empty.

    MalformedError (`INVALID_NETCONF`) names the key.

    key: the place of the object.
    """
    if not document or bytes(document) in _NO_PLUGIN:
        return None
    plugin = _decode(bytes(document), _typed_decoder, key).type
    if not _NAME.fullmatch(plugin):
        refuse(f"{key}.type", f"{shown(plugin)} is no plugin's name")
    return plugin


def _decode(document: bytes, decoder: msgspec.json.Decoder[_Conf], key: str = "") -> _Conf:
    """Decode a document. key: its place; empty for the whole configuration."""
    try:
        return decode(document, decoder, f"{SUBJECT}: {key}" if key else SUBJECT, Reason.INVALID_NETCONF)
    except MalformedError as error:
        from k8s_rdma.wire.json_faults import type_mismatch  # noqa: PLC0415  memory of those that start well

        place, why = type_mismatch(decoder.type, document) or ("", "")
        if not why:
            raise
        msg = ": ".join(filter(None, (SUBJECT, ".".join(filter(None, (key, place))), why)))
        raise MalformedError(msg, reason=error.reason) from error


def _without_nulls(fields: dict[str, msgspec.Raw]) -> bytes:
    """Remove nulls: a null is an absent key (RFC 7396 as Go's decoder has it), even of a required field.

    So is an empty version, which libcni writes for a list without one.
    """
    absent = {key for key, value in fields.items() if bytes(value) == b"null"}
    if bytes(fields.get("cniVersion", b"")) == b'""':
        absent.add("cniVersion")
    return _encoder.encode({key: value for key, value in fields.items() if key not in absent})


def _check_network(conf: _Network) -> None:
    if not _VERSION.fullmatch(conf.cni_version):
        refuse("cniVersion", f"{shown(conf.cni_version)} is no version of the form 1.0.0")
    if not _NAME.fullmatch(conf.name):
        refuse("name", f"{shown(conf.name)} must be letters, digits, _ . - and start with one of the former")


def _check_names(conf: NetConf) -> None:
    if conf.pattern is not None:
        _check_pattern(conf.pattern)
    if conf.if0name and (fault := ifname_fault(conf.if0name)):
        refuse("if0name", f"{shown(conf.if0name)} {fault}")
    for name in conf.networks:
        if not _NAME.fullmatch(name):
            refuse(
                f"networks.{shown(name)}", "must be letters, digits, _ . - and start with one of the former"
            )
        if name == conf.name:
            refuse(f"networks.{shown(name)}", "is this network itself, whose addresses `ipam` gives")


def _check_subnetworks(networks: msgspec.Raw) -> None:
    """Check the keys of subnetworks; decoding checks that they are objects."""
    try:
        found = _subnetworks_decoder.decode(networks)
    except msgspec.MsgspecError:
        return
    keys = Subnetwork.__struct_encode_fields__
    for name, fields in (found or {}).items():
        for key in fields:
            if key not in keys:
                refuse(f"networks.{shown(name)}.{shown(key)}", describe_unknown(key, keys))


def _check_pattern(pattern: str) -> None:
    if pattern.count(INDEX) != 1:
        refuse("interfaceNames", f"{shown(pattern)} must hold {INDEX} once, where an interface's index goes")
    name = pattern.replace(INDEX, "0")
    if fault := ifname_fault(name):
        refuse("interfaceNames", f"{shown(name)} {fault}")


def _check_dpdk(dpdk: Mapping[str, str]) -> None:
    """Check the section dpdk: only its driver is read, the rest is observed."""
    for key in dpdk:
        if key not in _DPDK_KEYS:
            refuse(f"dpdk.{shown(key)}", describe_unknown(key, _DPDK_KEYS))
    driver = dpdk.get("dpdk_driver", "")
    if any(dpdk.values()) and driver != VfDriver.VFIO_PCI:
        refuse("dpdk.dpdk_driver", f"{shown(driver)} is not supported; wanted {VfDriver.VFIO_PCI.value}")
