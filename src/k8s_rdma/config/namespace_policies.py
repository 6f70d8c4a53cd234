"""The operator's file of policies: the interfaces that the pods of each namespace may request.

One file for the extender and all agents, so that both judge alike. Both read it again when it changes.
"""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import msgspec

from k8s_rdma.config.files import load_config
from k8s_rdma.config.memlock import MemlockText, memlock_bytes
from k8s_rdma.config.reloading import Reloaded
from k8s_rdma.core.namespace_policy import (
    BY_DEFAULT,
    NO_POLICIES,
    NamespacePolicies,
    NamespacePolicy,
    Span,
    address_number,
)
from k8s_rdma.core.options import Permission, keys_with
from k8s_rdma.core.request import MAX_INTERFACES
from k8s_rdma.core.types import MAX_RATE_MBPS, PfSelector
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.annotation import read_selector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Policies = Callable[[], NamespacePolicies]
    """Returns the current policies."""

_MAX_VLAN = 4094
_IF_ALLOWED = keys_with(lambda row: row.permission is Permission.IF_ALLOWED)
_OCTET = "[0-9a-fA-F]{2}"

NamespaceText = Annotated[
    str,
    msgspec.Meta(pattern=r"^[-a-z0-9*]{1,63}$", description="a namespace's name, with * for any characters"),
]
NetworkText = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[a-zA-Z0-9_.\-*]{1,253}$", description="a network's name, with * for any characters"
    ),
]
VlanText = Annotated[
    str, msgspec.Meta(pattern=r"^[0-9]{1,4}-[0-9]{1,4}$", description="VLANs such as 100-199")
]
Vlan = Annotated[int, msgspec.Meta(ge=0, le=_MAX_VLAN)]
MacText = Annotated[
    str,
    msgspec.Meta(
        pattern=rf"^({_OCTET}(:{_OCTET}){{0,5}}|{_OCTET}(:{_OCTET}){{5}}-{_OCTET}(:{_OCTET}){{5}})$",
        description="a MAC, its first octets such as 02:42, or two MACs with - between them",
    ),
]
GuidText = Annotated[
    str,
    msgspec.Meta(
        pattern=rf"^({_OCTET}(:{_OCTET}){{0,7}}|{_OCTET}(:{_OCTET}){{7}}-{_OCTET}(:{_OCTET}){{7}})$",
        description="a GUID, its first octets such as 02:00:00, or two GUIDs with - between them",
    ),
]
if TYPE_CHECKING:
    AllowedKey: TypeAlias = str
    DeniedKey: TypeAlias = str
else:
    AllowedKey = Literal[("*", *_IF_ALLOWED)]
    DeniedKey = Literal[tuple(sorted(BY_DEFAULT))]
Mbps = Annotated[int, msgspec.Meta(ge=0, le=MAX_RATE_MBPS)]


class PfChoice(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """PFs, as the annotation's `pf` selects them: a text, or a list that must contain the PF."""

    name: str | tuple[str, ...] | None = None
    pci: str | tuple[str, ...] | None = None
    vendor: str | tuple[str, ...] | None = None
    driver: str | tuple[str, ...] | None = None

    def to_core(self) -> PfSelector:
        """Return the selector. MalformedError names the key."""
        fields = {key: value for key, value in msgspec.structs.asdict(self).items() if value is not None}
        return read_selector(msgspec.json.encode(fields).decode(), "pfs")


class NamespacePolicyConfig(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """YAML with these keys in camelCase: the interfaces that the pods of some namespaces may request.

    name: for messages; another one for each policy.
    namespaces: names, `*` in them for any characters.
    allow: keys of the annotation in addition to those that every pod may use; `*` for all.
    deny: keys that every pod may use otherwise.
    vlans, macs, guids, networks, pfs: the allowed values; without them all, if the key is allowed. `pfs` are
        the only PFs that interfaces may be on, whether their pod sets `pf` or not.
    max_reserved_mbps, max_cap_mbps: the largest `min_tx_rate` and `max_tx_rate` of an interface; with the
        second, an interface must have a cap.
    max_interfaces: of a pod.
    max_memlock: the memory that a container with a slot may lock, such as `64Gi`.
    live_rates: whether rates of running pods may change.
    """

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=63)]
    namespaces: tuple[NamespaceText, ...]
    allow: tuple[AllowedKey, ...] = ()
    deny: tuple[DeniedKey, ...] = ()
    vlans: tuple[Vlan | VlanText, ...] | None = None
    macs: tuple[MacText, ...] | None = None
    guids: tuple[GuidText, ...] | None = None
    networks: tuple[NetworkText, ...] | None = None
    pfs: PfChoice | None = None
    max_reserved_mbps: Mbps | None = None
    max_cap_mbps: Annotated[int, msgspec.Meta(ge=1, le=MAX_RATE_MBPS)] | None = None
    max_interfaces: Annotated[int, msgspec.Meta(ge=0, le=MAX_INTERFACES)] | None = None
    max_memlock: MemlockText | None = None
    live_rates: bool = True

    def __post_init__(self) -> None:
        """Refuse contradictions, and values that a pattern does not exclude."""
        if not self.namespaces:
            msg = "namespaces: is empty, so that the policy would be for none"
            raise ValueError(msg)
        for key, values in (("vlan", self.vlans), ("mac", self.macs), ("guid", self.guids)):
            if values is not None and not {key, "*"} & set(self.allow):
                msg = f"{key}s: says which ones, and allow has no {key}"
                raise ValueError(msg)
        try:
            self.to_core()
        except MalformedError as error:
            raise ValueError(error.message) from error

    def to_core(self) -> NamespacePolicy:
        """Return the policy. ValueError or MalformedError names the key."""
        allowed = _IF_ALLOWED if "*" in self.allow else self.allow
        return NamespacePolicy(
            name=self.name,
            namespaces=self.namespaces,
            allowed=BY_DEFAULT.union(allowed).difference(self.deny),
            vlans=None if self.vlans is None else tuple(map(_vlans, self.vlans)),
            macs=None
            if self.macs is None
            else tuple(_addresses("macs", address_range, 6) for address_range in self.macs),
            guids=None
            if self.guids is None
            else tuple(_addresses("guids", address_range, 8) for address_range in self.guids),
            networks=self.networks,
            pfs=self.pfs.to_core() if self.pfs else None,
            max_reserved_mbps=self.max_reserved_mbps,
            max_cap_mbps=self.max_cap_mbps,
            max_interfaces=self.max_interfaces,
            max_memlock=None if self.max_memlock is None else memlock_bytes("maxMemlock", self.max_memlock),
            live_rates=self.live_rates,
        )


class PoliciesFile(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """YAML with these keys in camelCase; of several policies for a namespace the first one counts."""

    policies: tuple[NamespacePolicyConfig, ...] = ()

    def __post_init__(self) -> None:
        """Refuse two policies of one name, because messages could not distinguish them."""
        if twice := next(_twice([policy.name for policy in self.policies]), None):
            msg = f"policies: two are called {twice}"
            raise ValueError(msg)

    def to_core(self) -> NamespacePolicies:
        """Convert to the policies."""
        return NamespacePolicies(tuple(policy.to_core() for policy in self.policies))


def load_policies(path: str | None) -> NamespacePolicies:
    """Return the file's policies, an empty set without a file. MalformedError names file and field."""
    if path is None:
        return NO_POLICIES
    return load_config(PoliciesFile, path, {}).to_core()


def policies_of(path: str | None, *, clock: Callable[[], float] = monotonic) -> Reloaded[NamespacePolicies]:
    """Return the present policies: the file is read again when it changes; a faulty file changes no policy.

    MalformedError as `load_policies`.
    """
    return Reloaded(lambda: load_policies(path), *([Path(path)] if path else []), clock=clock)


def _vlans(text: int | str) -> Span:
    first, _, last = str(text).partition("-")
    return _span("vlans", int(first), int(last or first), str(text), _MAX_VLAN)


def _addresses(key: str, text: str, octets: int) -> Span:
    """Return the span of addresses with a prefix."""
    first, _, last = text.lower().partition("-")
    missing = octets - len(first.split(":"))
    mask = (1 << 8 * octets) - 1
    if last:
        return _span(key, address_number(first), address_number(last), text, mask)
    low = address_number(first) << 8 * missing
    return Span(low, low + (1 << 8 * missing) - 1, text)


def _span(key: str, first: int, last: int, text: str, largest: int) -> Span:
    if not first <= last <= largest:
        msg = f"{key}: {text} begins after its end, or goes beyond {largest}"
        raise ValueError(msg)
    return Span(first, last, text)


def _twice(names: list[str]) -> Iterator[str]:
    return (name for index, name in enumerate(names) if name in names[:index])
