"""What interfaces are called in their pod.

As the only plugin `eth0`, `eth1`, ...; behind another one `rdma0`, ...; as one of a pod's several networks
`CNI_IFNAME`, `CNI_IFNAME-1`, ...; all of that by the interface's place in the pod's request, so that a pod's
attachments do not take each other's names, but for the last, which counts within the attachment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.core.options import VfDriver
from k8s_rdma.errors import MalformedError, Reason
from k8s_rdma.wire.annotation_values import ANNOTATION
from k8s_rdma.wire.cni_environment import ifname_fault
from k8s_rdma.wire.json import shown
from k8s_rdma.wire.netconf import INDEX

if TYPE_CHECKING:
    from collections.abc import Sequence, Set

    from k8s_rdma.core.request import InterfaceRequest
    from k8s_rdma.wire.netconf import NetConf

POD_IFNAME = "eth0"
"""What container runtimes call a pod's main interface."""


@dataclass(frozen=True, slots=True)
class _Name:
    """A name and the field that made it so."""

    text: str
    field: str
    reason: Reason = Reason.INVALID_NETCONF

    def refuse(self, why: str) -> None:
        raise MalformedError(f"{self.field}: {shown(self.text)} {why}", reason=self.reason)


_CONF = "network configuration: "


def interface_names(
    conf: NetConf,
    interfaces: Sequence[tuple[int, InterfaceRequest]],
    cni_ifname: str,
    present: Set[str] = frozenset(),
) -> tuple[str, ...]:
    """The names of an attachment's interfaces, in their order.

    interfaces: with their places in the pod's request. present: what is called so in the pod already.
    MalformedError names the field whose name is none, or is taken: `MALFORMED_ANNOTATION` where the pod chose
    it, `INVALID_NETCONF` where the configuration did.
    """
    names: dict[str, _Name] = {}
    unnamed = 0
    for place, interface in interfaces:
        if interface.options.name:
            field = f"{ANNOTATION}[{place}].name"
            name = _Name(interface.options.name, field, Reason.MALFORMED_ANNOTATION)
        else:
            name = _by_configuration(conf, place, unnamed, interface, cni_ifname)
            unnamed += 1
        _check(name, names, present)
        names[name.text] = name
    return tuple(names)


def _by_configuration(
    conf: NetConf, place: int, number: int, interface: InterfaceRequest, cni_ifname: str
) -> _Name:
    """number: how many before it the configuration has named, of the same attachment."""
    if conf.if0name and number == 0:
        return _Name(conf.if0name, f"{_CONF}if0name")
    if conf.pattern is None and not conf.chained and cni_ifname != POD_IFNAME:
        return _Name(f"{cni_ifname}-{number}" if number else cni_ifname, "CNI_IFNAME")
    pattern = conf.pattern or _default_pattern(conf, interface)
    return _Name(pattern.replace(INDEX, str(place)), f"{_CONF}interfaceNames")


def _default_pattern(conf: NetConf, interface: InterfaceRequest) -> str:
    if conf.chained:
        return f"rdma{INDEX}"
    # A PCI function's name is in the result alone, and `eth0` is then another interface's.
    return (
        f"eth{INDEX}" if interface.options.driver is VfDriver.KERNEL else f"{VfDriver.VFIO_PCI.value}{INDEX}"
    )


def _check(name: _Name, others: dict[str, _Name], present: Set[str]) -> None:
    if fault := ifname_fault(name.text):
        name.refuse(fault)
    if name.text in present:
        name.refuse("is the name of an interface that the pod has already")
    other = others.get(name.text)
    if other is not None:
        chosen = max(name, other, key=_particular)
        chosen.refuse("is also the name of another interface of the pod")


def _particular(name: _Name) -> int:
    """How particular the field is: the pod's own words, one interface's, a pattern's."""
    if name.reason is Reason.MALFORMED_ANNOTATION:
        return 2
    return 1 if name.field.endswith("if0name") else 0
