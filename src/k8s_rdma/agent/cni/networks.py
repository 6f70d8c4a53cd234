"""The interfaces of a pod that one attachment gives.

A pod has one annotation and, with Multus, several attachments: each serves the interfaces that name its
network, and the first one also those that name none.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NoReturn

from k8s_rdma.agent.cni.grant import Grant, refuse_devices
from k8s_rdma.core.devices.held_vfs import HeldDevice, vfs_by_device
from k8s_rdma.core.types import VfDriver
from k8s_rdma.errors import K8sRdmaError, MalformedError, Reason
from k8s_rdma.wire.annotation import request_name
from k8s_rdma.wire.cni_request import NetConf, refuse
from k8s_rdma.wire.json_faults import shown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence, Set

    from k8s_rdma.core.inventory import Gpu
    from k8s_rdma.core.kernel import Hardware
    from k8s_rdma.core.ledger import Ledger
    from k8s_rdma.core.request import Request

    LocateGpus = Callable[[Set[tuple[str, str]]], Awaitable[Mapping[tuple[str, str], Gpu]]]


NETWORKS_ANNOTATION = "k8s.v1.cni.cncf.io/networks"
"""The annotation of a pod's further attachments (NPWG network custom resource definition, section 4.1), read
by Multus."""

_NAME = re.compile(r"[\w.\-]+")
"""Anything that may be a name in that annotation, a list with commas or of JSON objects."""


def interfaces_of_network(
    request: Request, *, own: Set[str], attached: Set[int], annotations: Mapping[str, str]
) -> tuple[int, ...]:
    """Select the attachment's part of a request, as indices.

    own: networks of this attachment. attached: entries that other attachments of the sandbox serve.
        MalformedError (`MALFORMED_ANNOTATION`) for an interface of a network that no attachment can be of.
    """
    part = []
    for index, interface in enumerate(request.interfaces):
        network = interface.options.network
        if network and network not in own:
            if not annotations.get(NETWORKS_ANNOTATION):
                _refuse_network(f"{request_name(annotations)}[{index}]", network, own)
        elif index not in attached:
            part.append(index)
    return tuple(part)


def unknown_networks(request: Request, *, own: Set[str], annotations: Mapping[str, str]) -> dict[int, str]:
    """Find networks, by index, that neither this attachment nor the pod's further ones name.

    It is no reason to refuse a pod: a network's name may differ from its definition's.
    """
    listed = set(_NAME.findall(annotations.get(NETWORKS_ANNOTATION, "")))
    named = {index: interface.options.network for index, interface in enumerate(request.interfaces)}
    return {index: name for index, name in named.items() if name and name not in own | listed}


def _refuse_network(entry: str, network: str, own: Set[str]) -> None:
    msg = (
        f"{entry}.network: {shown(network)} is not {' nor '.join(sorted(own))}, and the pod "
        f"has no annotation {NETWORKS_ANNOTATION} that attaches it to others"
    )
    raise MalformedError(msg, reason=Reason.MALFORMED_ANNOTATION)


def select_network(
    grant: Grant, entries: tuple[int, ...], conf: NetConf, hardware: Hardware, ledger: Ledger
) -> tuple[int, ...]:
    """Narrow an attachment's interfaces to the one whose device its network configuration names, if any.

    entries: by their places in the request. K8sRdmaError: `UNKNOWN_DEVICE` for a device that the pod does not
    hold, `ALREADY_ATTACHED` or `DEVICES_DIFFER` for one that is another network's.
    """
    if grant.devices and conf.driver is not VfDriver.KERNEL:
        refuse("dpdk", "the pod holds RDMA devices, which their VFs would not have under that driver")
    if not conf.device_id:
        return entries
    index = _device_index(conf.device_id, grant.devices, hardware, ledger)
    if index is None:
        holds = ", ".join(map(str, grant.devices)) or "no device of an exclusive resource"
        msg = f"network configuration: deviceID: {shown(conf.device_id)}: the pod holds {holds}"
        raise K8sRdmaError(msg, reason=Reason.UNKNOWN_DEVICE)
    if index not in entries:
        _refuse_other_network(index, grant, conf)
    return (index,)


def _device_index(
    device_id: str, devices: Sequence[HeldDevice], hardware: Hardware, ledger: Ledger
) -> int | None:
    """Find the place of a device in a list, by either of a device's names."""
    vfs = vfs_by_device(hardware, ledger)
    named = vfs.get(device_id)
    for index, device in enumerate(devices):
        if device.id == device_id or (named is not None and vfs.get(device.id) == named):
            return index
    return None


def _refuse_other_network(entry: int, grant: Grant, conf: NetConf) -> NoReturn:
    device, network = grant.devices[entry], grant.request.interfaces[entry].options.network
    if network and network not in conf.own_networks:
        refuse_devices(
            f"{grant.annotation}[{entry}].network: {shown(network)}, and network {conf.name} is to "
            f"attach its device, {device}"
        )
    msg = (
        f"network {conf.name} is to attach device {device}, which another of the pod's networks has: "
        f"give it {grant.annotation}[{entry}].network, so that it is left to this one"
    )
    raise K8sRdmaError(msg, reason=Reason.ALREADY_ATTACHED)
