"""The call of one ADD: its configuration and environment, and the names of its interfaces.

As the only plugin `eth0`, `eth1`, ...; behind another one `rdma0`, ...; as one of a pod's several networks
`CNI_IFNAME`, `CNI_IFNAME-1`, ...; all of that by the interface's place in the pod's request, so that a
pod's attachments do not take each other's names, but for the last, which counts within the attachment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.agent.cdi_specs import device_info_file
from k8s_rdma.agent.plugins.called import CalledPlugins
from k8s_rdma.agent.sandbox import Sandbox
from k8s_rdma.core.ids import PodUid
from k8s_rdma.core.ledger import Attachment, Pod
from k8s_rdma.core.options import VfDriver
from k8s_rdma.core.step import NetnsRef
from k8s_rdma.errors import K8sRdmaError, MalformedError, Reason
from k8s_rdma.wire.annotation_values import ANNOTATION, refuse
from k8s_rdma.wire.cni_environment import CniEnvironment, ifname_fault
from k8s_rdma.wire.cni_result import interfaces_in_pod
from k8s_rdma.wire.json import shown
from k8s_rdma.wire.netconf import INDEX, NetConf

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence, Set

    from k8s_rdma.core.devices.pod_devices import SlotInUse
    from k8s_rdma.core.request import InterfaceRequest, Request

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


def _check(name: _Name, names: dict[str, _Name], present: Set[str]) -> None:
    if fault := ifname_fault(name.text):
        name.refuse(fault)
    if name.text in present:
        name.refuse("is the name of an interface that the pod has already")
    other = names.get(name.text)
    if other is not None:
        chosen = max(name, other, key=_particular)
        chosen.refuse("is also the name of another interface of the pod")


def _particular(name: _Name) -> int:
    """How particular the field is: the pod's own words, one interface's, a pattern's."""
    if name.reason is Reason.MALFORMED_ANNOTATION:
        return 2
    return 1 if name.field.endswith("if0name") else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AddCall:
    """annotations: the pod's. still_waiting: whether anybody will take the answer."""

    env: CniEnvironment
    netns: NetnsRef
    conf: NetConf
    plugins: CalledPlugins
    pod: Pod
    annotations: Mapping[str, str]
    still_waiting: Callable[[], bool]

    @property
    def attachment(self) -> Attachment:
        """What it shall make."""
        return Attachment(self.conf.name, self.env.container_id, self.env.ifname)

    def sandbox(self, request: Request, entries: Sequence[int], slots: tuple[SlotInUse, ...] = ()) -> Sandbox:
        """Where this part of the pod's request shall go, and under which names.

        slots: the pod's; of no use to an attachment without interfaces.
        The delegate is left out where a VF is what the runtime looks for in the pod. MalformedError names a
        field that cannot be followed.
        """
        interfaces = request.interfaces
        present = interfaces_in_pod(self.conf.prev_result).keys()
        numbered = tuple(zip(entries, interfaces, strict=True))
        self._require_netdevs(numbered)
        ifnames = interface_names(self.conf, numbered, self.env.ifname, present)
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
        )

    def _require_netdevs(self, numbered: Iterable[tuple[int, InterfaceRequest]]) -> None:
        """MalformedError for what is of a network device where the configuration has there be none."""
        for place, interface in numbered:
            options = interface.options
            if options.driver is VfDriver.KERNEL:
                continue
            addressed = dict(self.plugins.ipams).get(options.network) is not None
            for key, asked in (("mtu", options.mtu is not None), ("network", addressed)):
                if asked:
                    why = "is of a network device, and with dpdk of the network configuration there is none"
                    refuse(f"{ANNOTATION}[{place}].{key}", why)

    def allow_nothing(self) -> None:
        """K8sRdmaError where a pod that gets nothing of ours would have no interface at all."""
        alone = self.env.ifname == POD_IFNAME and not self.conf.chained
        if not alone or self.env.pod_name is None or self.conf.empty_result:
            return
        msg = (
            f"network {self.conf.name}: pod {self.pod.namespace}/{self.pod.name} asks for no RDMA interface, "
            f"and nothing gives it its {POD_IFNAME}, without which it does not start: set `delegate` to the "
            "configuration of the plugin that shall, or `emptyResult` to true if the runtime needs none"
        )
        raise K8sRdmaError(msg, reason=Reason.INVALID_NETCONF)


def pod_of(env: CniEnvironment) -> Pod:
    """The pod; without a UID (a runtime that is not Kubernetes') its container stands for it."""
    return Pod(
        namespace=env.pod_namespace or "",
        name=env.pod_name or env.container_id,
        uid=env.pod_uid or PodUid(f"container:{env.container_id}"),
    )
