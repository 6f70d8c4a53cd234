"""Which keys our network configuration may have.

One that nobody knows is refused by name, since a misspelt one would silently do nothing.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn

from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.json import describe_unknown, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    import msgspec

OWN_KEYS = frozenset(
    {
        *("runDir", "timeoutMs", "interfaceNames", "networks", "delegate", "emptyResult"),
        "exclusiveDevices",
    }
)
"""camelCase like the specification's. `timeoutMs` and `exclusiveDevices` are read by the executable alone."""
INHERITED_KEYS = frozenset({"if0name", "l2enable", "vlan", "dpdk", "cniDir"})
"""Of the plugin that this one replaces; `cniDir` told where it kept its state, and means nothing any more."""
STANDARD_KEYS = frozenset(
    {
        *("cniVersion", "cniVersions", "name", "type", "ipam", "dns", "prevResult"),
        *("args", "capabilities", "runtimeConfig"),
        *("disableCheck", "disableGC", "loadOnlyInlinedPlugins"),
    }
)
"""CNI specification 1.1.0, section 1, and section 3 "Deriving execution configuration"."""
DEVICE_KEYS = frozenset({"deviceID", "pciBusID"})
"""By which Multus names a device that the pod was given; the second is the first by an older name
(Multus CNI, `pkg/types/conf.go`, `delegateAddDeviceID`)."""
RESERVED_PREFIX = "cni.dev/"

_UNSUPPORTED: Mapping[str, str] = MappingProxyType(
    {"ipMasq": "masquerading belongs to the plugin of the pod's main network"}
)
"""What would change what a pod gets, so that ignoring it would be a lie; neutral values are let pass."""
_NEUTRAL = frozenset({b"null", b"false", b"0", b'""', b"{}", b"[]"})


def check_key(key: str, value: msgspec.Raw) -> None:
    """MalformedError (`INVALID_NETCONF`) unless the key is known, or reserved by the specification."""
    known = OWN_KEYS | INHERITED_KEYS | STANDARD_KEYS | DEVICE_KEYS
    if key in known or key.startswith(RESERVED_PREFIX):
        return
    if key not in _UNSUPPORTED:
        refuse(shown(key), describe_unknown(key, sorted(known)))
    if bytes(value) not in _NEUTRAL:
        refuse(key, f"not supported: {_UNSUPPORTED[key]}")


def refuse(key: str, why: str) -> NoReturn:
    """MalformedError (`INVALID_NETCONF`) that names the key."""
    msg = f"network configuration: {key}: {why}"
    raise MalformedError(msg, reason=Reason.INVALID_NETCONF)
