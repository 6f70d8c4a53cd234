"""The call of one ADD: its configuration and environment, and the names of its interfaces.

The names are `eth0`, `eth1`, ... as the only plugin, `rdma0`, ... behind another one, and `CNI_IFNAME`,
`CNI_IFNAME-1`, ... as one of a pod's several networks. The number is the interface's place in the pod's
request, so that a pod's attachments do not take each other's names; only the last form counts within the
attachment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from k8s_rdma.agent.cdi_specs import device_info_file
from k8s_rdma.agent.plugins.called_plugins import CalledPlugins
from k8s_rdma.agent.sandbox import Sandbox
from k8s_rdma.core.ledger import Attachment, Pod, PreparedInterface
from k8s_rdma.core.step import NetnsRef
from k8s_rdma.core.types import PodUid, VfDriver
from k8s_rdma.errors import K8sRdmaError, MalformedError, Reason
from k8s_rdma.wire.annotation import request_name
from k8s_rdma.wire.annotation_values import refuse
from k8s_rdma.wire.cni_request import INDEX, CniEnvironment, NetConf, ifname_fault
from k8s_rdma.wire.json_faults import shown
from k8s_rdma.wire.previous_result import interfaces_in_pod

if TYPE_CHECKING:
    from k8s_rdma.core.devices.pod_devices import SlotInUse
    from k8s_rdma.core.request import InterfaceRequest, Request


POD_IFNAME = "eth0"
"""The name of a pod's main interface in container runtimes."""

_CONF = "network configuration: "


@dataclass(frozen=True, slots=True, kw_only=True)
class AddCall:
    """The decoded call. annotations: the pod's. still_waiting: reports whether the caller still waits."""

    env: CniEnvironment
    netns: NetnsRef
    conf: NetConf
    plugins: CalledPlugins
    pod: Pod
    annotations: Mapping[str, str]
    still_waiting: Callable[[], bool]

    @property
    def attachment(self) -> Attachment:
        """The attachment that the call is for."""
        return Attachment(self.conf.name, self.env.container_id, self.env.ifname)

    def sandbox(
        self,
        request: Request,
        entries: Sequence[int],
        slots: tuple[SlotInUse, ...] = (),
        claimed: Sequence[PreparedInterface] = (),
    ) -> Sandbox:
        """Describe the sandbox and the names for this part of the pod's request.

        slots: the pod's; unused by an attachment without interfaces. claimed: the last ones of the request.
        The delegate is left out if a VF is the interface that the runtime looks for in the pod.
        MalformedError names a field that cannot be followed.
        """
        interfaces = request.interfaces
        present = interfaces_in_pod(self.conf.prev_result).keys()
        numbered = tuple(zip(entries, interfaces, strict=True))
        by_index = dict(enumerate(claimed, len(entries) - len(claimed)))
        fields = {entries[index]: f"request {found.request}" for index, found in by_index.items()}
        self._require_netdevs(numbered, fields)
        ifnames = interface_names(self.conf, numbered, self.env.ifname, present, fields)
        drivers = {
            name: interface.options.driver for name, interface in zip(ifnames, interfaces, strict=True)
        }
        provided = drivers.get(self.env.ifname) is VfDriver.KERNEL
        return Sandbox(
            attachment=self.attachment,
            pod=self.pod,
            netns=self.netns,
            ifnames=ifnames,
            entries=tuple(entries),
            ipam=self.plugins.ipam,
            ipams=self.plugins.ipams,
            delegate=None if provided else self.plugins.delegate,
            device_info_file=device_info_file(self.conf.device_info_file),
            slots=slots if interfaces else (),
            claimed=by_index,
        )

    def _require_netdevs(
        self, numbered: Iterable[tuple[int, InterfaceRequest]], fields: Mapping[int, str]
    ) -> None:
        """Raise MalformedError for options of a network device if the configuration leaves none."""
        for place, interface in numbered:
            options = interface.options
            if options.driver is VfDriver.KERNEL:
                continue
            addressed = dict(self.plugins.ipams).get(options.network) is not None
            for key, is_set in (("mtu", options.mtu is not None), ("network", addressed)):
                if is_set:
                    why = "is of a network device, and with dpdk of the network configuration there is none"
                    refuse(f"{_field(self.conf, place, fields)}.{key}", why)

    def allow_nothing(self) -> None:
        """Raise K8sRdmaError if a pod that gets no interface of ours would have no interface at all."""
        alone = self.env.ifname == POD_IFNAME and not self.conf.chained
        if not alone or self.env.pod_name is None or self.conf.empty_result:
            return
        msg = (
            f"network {self.conf.name}: pod {self.pod.full_name} requests no RDMA interface, "
            f"and no plugin gives it {POD_IFNAME}, without which it does not start: set `delegate` to the "
            "configuration of a plugin that does, or `emptyResult` to true if the runtime needs none"
        )
        raise K8sRdmaError(msg, reason=Reason.INVALID_NETCONF)


def pod_of(env: CniEnvironment) -> Pod:
    """Read the pod of a call; outside Kubernetes, where it has no UID, its container stands for it."""
    return Pod(
        namespace=env.pod_namespace or "",
        name=env.pod_name or env.container_id,
        uid=env.pod_uid or PodUid(f"container:{env.container_id}"),
    )


def interface_names(
    conf: NetConf,
    interfaces: Sequence[tuple[int, InterfaceRequest]],
    cni_ifname: str,
    present: Set[str] = frozenset(),
    fields: Mapping[int, str] = MappingProxyType({}),
) -> tuple[str, ...]:
    """Name an attachment's interfaces, in their order.

    interfaces: with their places in the pod's request. present: names that the pod already has.
    fields: the source of a request for an interface, by its place, unless that is the annotation.
    MalformedError names the field whose name is invalid or taken: `MALFORMED_ANNOTATION` where the pod chose
    it, `INVALID_NETCONF` where the configuration did.
    """
    names: dict[str, _Name] = {}
    unnamed = 0
    for place, interface in interfaces:
        if interface.options.name:
            field = f"{_field(conf, place, fields)}.name"
            name = _Name(interface.options.name, field, Reason.MALFORMED_ANNOTATION)
        else:
            name = _by_configuration(conf, place, unnamed, interface, cni_ifname)
            unnamed += 1
        _check(name, names, present)
        names[name.text] = name
    return tuple(names)


def _field(conf: NetConf, place: int, fields: Mapping[int, str]) -> str:
    """Name the source of the request for the interface at a place."""
    return fields.get(place) or f"{request_name(conf.pod_annotations or {})}[{place}]"


def _by_configuration(
    conf: NetConf, place: int, number: int, interface: InterfaceRequest, cni_ifname: str
) -> _Name:
    """Name an interface by the configuration.

    number: how many interfaces of the attachment before it the configuration has named.
    """
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


def _check(name: _Name, names: dict[str, _Name], present: Set[str]) -> None:
    if fault := ifname_fault(name.text):
        name.refuse(fault)
    if name.text in present:
        name.refuse("is the name of an interface that the pod has already")
    first_entry = names.get(name.text)
    if first_entry is not None:
        chosen = max(name, first_entry, key=_particular)
        chosen.refuse("is also the name of another interface of the pod")


def _particular(name: _Name) -> int:
    """Rank the field of a name: the pod's annotation over one interface's field over a pattern."""
    if name.reason is Reason.MALFORMED_ANNOTATION:
        return 2
    return 1 if name.field.endswith("if0name") else 0


@dataclass(frozen=True, slots=True)
class _Name:
    """An interface name and the field that it comes from."""

    text: str
    field: str
    reason: Reason = Reason.INVALID_NETCONF

    def refuse(self, why: str) -> None:
        raise MalformedError(f"{self.field}: {shown(self.text)} {why}", reason=self.reason)
