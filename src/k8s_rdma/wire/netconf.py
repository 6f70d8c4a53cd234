"""Our plugin's network configuration, as the runtime writes it to stdin.

Source: CNI specification 1.1.0, section 1 "Plugin configuration objects" and section 3 "Deriving execution
configuration". Keys of our own are camelCase like the specification's; one that nobody knows is refused by
name, since a misspelt one would silently do nothing.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn

import msgspec

from k8s_rdma.core.ids import ContainerId
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.cni_environment import ifname_fault
from k8s_rdma.wire.json import decode, describe_unknown, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

POD_ANNOTATIONS = "io.kubernetes.cri.pod-annotations"
"""The capability by which containerd and CRI-O deliver a pod's annotations in `runtimeConfig`."""

IPAM_VERSION = "1.0.0"
"""What IPAM plugins are asked to speak at most: results are the same as in 1.1.0, which older ones refuse."""

_OWN_KEYS = frozenset({"runDir", "interfaceNames", "timeoutMs"})
"""`timeoutMs` is read by the executable alone."""
_INHERITED_KEYS = frozenset({"if0name", "l2enable", "cniDir"})
"""Of the plugin that this one replaces; `cniDir` told where it kept its state, and means nothing any more."""
_STANDARD_KEYS = frozenset(
    {
        *("cniVersion", "cniVersions", "name", "type", "ipam", "dns", "prevResult"),
        *("args", "capabilities", "runtimeConfig"),
        *("disableCheck", "disableGC", "loadOnlyInlinedPlugins"),
    }
)
_RESERVED_PREFIX = "cni.dev/"
_UNSUPPORTED: Mapping[str, str] = MappingProxyType(
    {
        "vlan": "VFs are given without a VLAN of their own",
        "dpdk": "VFs are given as network devices only",
        "ipMasq": "masquerading belongs to the plugin of the pod's main network",
        "delegate": "list the other plugin before this one in a conflist",
    }
)
"""What would change what a pod gets, so that ignoring it would be a lie; neutral values are let pass."""
_NEUTRAL = frozenset({b"null", b"false", b"0", b'""', b"{}", b"[]"})

_VERSION = re.compile(r"\d{1,4}\.\d{1,4}\.\d{1,4}", re.ASCII)
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*")
"""A network's name (libcni, `pkg/utils`); a plugin's name obeys the same here, as it is a file's name."""
_INDEX = "{i}"


class Attachment(msgspec.Struct, frozen=True, rename={"container_id": "containerID"}):
    """An attachment that the runtime holds valid (GC)."""

    container_id: ContainerId
    ifname: str


class RuntimeConfig(msgspec.Struct, frozen=True):
    """Of what the runtime fills in by capability, what this system reads."""

    pod_annotations: dict[str, str] | msgspec.UnsetType | None = msgspec.field(
        name=POD_ANNOTATIONS, default=msgspec.UNSET
    )


class NetConf(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The configuration of one call.

    cni_version: the version that the result must be in; without one it is the first (as libcni has it).
    name: the network's.
    run_dir: where the agent's `cni.sock` is; read by the executable.
    if0name: the first interface's name, whatever the pattern says; empty for none.
    l2enable: give interfaces without addresses even if `ipam` says how.
    ipam, prev_result: as written, to be passed on; empty when absent.
    valid_attachments: None when the runtime named none, which is not the same as naming an empty list.
    """

    cni_version: str = "0.1.0"
    name: str
    type: str
    run_dir: str = "/run/k8s-rdma"
    pattern: str | None = msgspec.field(name="interfaceNames", default=None)
    if0name: str = ""
    l2enable: bool = False
    ipam: msgspec.Raw = msgspec.Raw()
    prev_result: msgspec.Raw = msgspec.Raw()
    runtime_config: RuntimeConfig | None = None
    valid_attachments: tuple[Attachment, ...] | None = msgspec.field(
        name="cni.dev/valid-attachments", default=None
    )

    @property
    def chained(self) -> bool:
        """Whether another plugin ran before this one."""
        return bool(self.prev_result)

    @property
    def pod_annotations(self) -> Mapping[str, str] | None:
        """The pod's annotations; None when the runtime did not deliver any (a null stands for none set)."""
        if self.runtime_config is None or isinstance(self.runtime_config.pod_annotations, msgspec.UnsetType):
            return None
        return self.runtime_config.pod_annotations or {}

    def interface_names(self, count: int) -> tuple[str, ...]:
        """The names of a pod's interfaces, in the request's order.

        MalformedError (`INVALID_NETCONF`) when so many do not fit the pattern.
        """
        pattern = self.pattern or ("rdma{i}" if self.chained else "eth{i}")
        names = [pattern.replace(_INDEX, str(index)) for index in range(count)]
        if self.if0name and names:
            names[0] = self.if0name
        for name in names[-1:]:
            _check_ifname(name, "interfaceNames")
        if len(set(names)) < len(names):
            _refuse("if0name", f"{shown(self.if0name)} is also the name of another interface of the pod")
        return tuple(names)


class Ipam(msgspec.Struct, frozen=True, kw_only=True):
    """The IPAM plugin to call: its name, and the configuration it reads on stdin."""

    plugin: str
    netconf: bytes


class _IpamType(msgspec.Struct, frozen=True):
    type: str


_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_decoder = msgspec.json.Decoder(NetConf)
_ipam_decoder = msgspec.json.Decoder(_IpamType)
_encoder = msgspec.json.Encoder()


def decode_netconf(stdin: bytes, *, strict: bool = True) -> NetConf:
    """Parse the configuration; MalformedError (`INVALID_NETCONF`) names the key.

    strict: refuse keys that are unknown or not supported. DEL and GC do without: they undo by what was
        recorded, and a pod must not hang in Terminating over the configuration of now.
    """
    fields = _fields(stdin)
    if strict:
        for key, value in fields.items():
            _check_key(key, value)
    # A null is an absent key (RFC 7396 as Go's decoder has it), also where the model wants a value.
    given = _encoder.encode({key: value for key, value in fields.items() if bytes(value) != b"null"})
    conf = decode(given, _decoder, "network configuration", Reason.INVALID_NETCONF)
    if not _VERSION.fullmatch(conf.cni_version):
        _refuse("cniVersion", f"{shown(conf.cni_version)} is no version of the form 1.0.0")
    if not _NAME.fullmatch(conf.name):
        _refuse("name", f"{shown(conf.name)} must be letters, digits, _ . - and start with one of the former")
    if conf.pattern is not None:
        _check_pattern(conf.pattern)
    if conf.if0name:
        _check_ifname(conf.if0name, "if0name")
    return conf


def ipam_of(stdin: bytes) -> Ipam | None:
    """The IPAM plugin that the configuration names; None when interfaces get no addresses.

    The plugin reads this configuration without what is ours and the runtime's: `prevResult`, the pod's
    annotations and `cni.dev/*`. MalformedError (`INVALID_NETCONF`) names the key.
    """
    conf = decode_netconf(stdin, strict=False)
    if not conf.ipam or conf.l2enable or bytes(conf.ipam) == b"{}":
        return None
    plugin = decode(conf.ipam, _ipam_decoder, "network configuration: ipam", Reason.INVALID_NETCONF).type
    if not _NAME.fullmatch(plugin):
        _refuse("ipam.type", f"{shown(plugin)} is no plugin's name")
    fields = _fields(stdin)
    kept = {key: value for key, value in fields.items() if key in _STANDARD_KEYS - {"prevResult"}}
    kept["cniVersion"] = _encoded(min(conf.cni_version, IPAM_VERSION, key=_version_key))
    if "runtimeConfig" in kept:
        kept["runtimeConfig"] = _without_annotations(kept["runtimeConfig"])
    return Ipam(plugin=plugin, netconf=_encoder.encode(kept))


def _fields(stdin: bytes) -> dict[str, msgspec.Raw]:
    return decode(stdin, _fields_decoder, "network configuration", Reason.INVALID_NETCONF)


def _encoded(value: object) -> msgspec.Raw:
    return msgspec.Raw(_encoder.encode(value))


def _version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _without_annotations(runtime_config: msgspec.Raw) -> msgspec.Raw:
    fields = decode(runtime_config, _fields_decoder, "network configuration: runtimeConfig")
    fields.pop(POD_ANNOTATIONS, None)
    return _encoded(fields)


def _check_key(key: str, value: msgspec.Raw) -> None:
    known = _OWN_KEYS | _INHERITED_KEYS | _STANDARD_KEYS
    if key in known or key.startswith(_RESERVED_PREFIX):
        return
    if key not in _UNSUPPORTED:
        _refuse(shown(key), describe_unknown(key, sorted(known)))
    if bytes(value) not in _NEUTRAL:
        _refuse(key, f"not supported: {_UNSUPPORTED[key]}")


def _check_pattern(pattern: str) -> None:
    if pattern.count(_INDEX) != 1:
        _refuse(
            "interfaceNames", f"{shown(pattern)} must hold {_INDEX} once, where an interface's index goes"
        )
    _check_ifname(pattern.replace(_INDEX, "0"), "interfaceNames")


def _check_ifname(name: str, key: str) -> None:
    if fault := ifname_fault(name):
        _refuse(key, f"{shown(name)} {fault}")


def _refuse(key: str, why: str) -> NoReturn:
    msg = f"network configuration: {key}: {why}"
    raise MalformedError(msg, reason=Reason.INVALID_NETCONF)
