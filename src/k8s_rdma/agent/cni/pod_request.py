"""The request of a pod, from its annotations, and the part of it that one attachment gives.

A placement that the extender signed with a key that agents accept is authoritative: a pod's owner may edit
the request after the pod was bound, but not the placement. Without a key anybody may have written it, so it
is a hint about where, never about how much.

A pod has one annotation and, with Multus, several attachments: each serves the interfaces that name its
network, and the first one also those that name none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from k8s_rdma.core.devices.held_vfs import HeldDevice
from k8s_rdma.core.namespace_policy import NO_POLICIES, NamespacePolicies, satisfies
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.request import InterfaceRequest, Request
from k8s_rdma.core.types import VfDriver
from k8s_rdma.errors import K8sRdmaError, MalformedError, Reason
from k8s_rdma.wire.annotation import read_pod
from k8s_rdma.wire.annotation_values import ANNOTATION
from k8s_rdma.wire.json import shown
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, decode
from k8s_rdma.wire.placement_keys import UNSIGNED, KeySource

if TYPE_CHECKING:
    from k8s_rdma.core.types import NodeName, PodUid


NETWORKS_ANNOTATION = "k8s.v1.cni.cncf.io/networks"
"""The annotation of a pod's further attachments (NPWG network custom resource definition, section 4.1), read
by Multus."""

_NAME = re.compile(r"[\w.\-]+")
"""Anything that may be a name in that annotation, a list with commas or of JSON objects."""

_UNPLACED = (
    "the extender did not place this pod: its schedulerName is not the one that asks it, or it requests no "
    "managed resource; correct that in what makes the pod, and make the pod anew"
)
_Interface = TypeVar("_Interface", InterfaceRequest, PlacedInterface)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequest:
    """The requested interfaces, their promised placement, and the reason why a placement was ignored.

    promised: None without a placement that counts.
    ignored: one sentence, empty when nothing was ignored.
    devices: the exclusive devices of a pod that holds some, one for each interface.
    """

    request: Request
    promised: Placement | None = None
    ignored: str = ""
    devices: tuple[HeldDevice, ...] = ()

    def part(self, entries: Sequence[int]) -> PodRequest:
        """Select some of the interfaces, by their places in the request."""
        promised = self.promised
        if promised is not None:
            placed: dict[int, list[PlacedInterface]] = {}
            for index, interface in enumerate(promised.interfaces):
                placed.setdefault(interface.entry_at(index), []).append(interface)
            interfaces = tuple(interface for entry in entries for interface in placed[entry])
            promised = replace(promised, interfaces=interfaces) if interfaces else None
        requested = tuple(self.request.interfaces[entry] for entry in entries)
        request = replace(self.request, interfaces=requested)
        devices = tuple(self.devices[entry] for entry in entries) if self.devices else ()
        return replace(self, request=request, promised=promised, devices=devices)

    def permitted(self, policies: NamespacePolicies, namespace: str) -> PodRequest:
        """Restrict the request to the PFs that the namespace may use.

        A placement that counts is judged as well: it may be of an extender that has other policies, or was
        taken over. MalformedError (`NOT_ALLOWED`) names the key and the policy.
        """
        request, promised, policy = (
            policies.permit(namespace, self.request),
            self.promised,
            policies.policy_for(namespace),
        )
        if promised is not None:
            interfaces = (
                replace(interface, options=policy.narrowed(interface.options))
                for interface in promised.interfaces
            )
            promised = replace(promised, interfaces=tuple(interfaces))
        return replace(self, request=request, promised=promised)

    def with_defaults(self, vlan: int, driver: VfDriver) -> PodRequest:
        """Apply the network's defaults: a VLAN to interfaces that name none, a driver to all.

        vlan: 0 for none. driver: KERNEL for whatever they ask for.
        """
        if not vlan and driver is VfDriver.KERNEL:
            return self
        promised = self.promised
        if promised is not None:
            interfaces = tuple(_with_defaults(interface, vlan, driver) for interface in promised.interfaces)
            promised = replace(promised, interfaces=interfaces)
        with_all_defaults = tuple(
            _with_defaults(requested, vlan, driver) for requested in self.request.interfaces
        )
        return replace(self, request=replace(self.request, interfaces=with_all_defaults), promised=promised)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The rules for requests of pods.

    keys: verify placements. strict: whether unknown keys in a request refuse it. allow_unplaced: whether a
        pod without a placement gets interfaces; None: only without keys.
    policies: returns the current namespace policies.
    """

    keys: KeySource = UNSIGNED
    strict: bool = True
    allow_unplaced: bool | None = None
    policies: Callable[[], NamespacePolicies] = lambda: NO_POLICIES

    @property
    def needs_placement(self) -> bool:
        """Report whether a pod that the extender did not place is refused."""
        return self.keys() is not None if self.allow_unplaced is None else not self.allow_unplaced


def read_pod_request(
    annotations: Mapping[str, str], *, uid: PodUid, node: NodeName, policy: Policy
) -> PodRequest:
    """Read a pod's annotations.

    MalformedError when the request cannot be granted; K8sRdmaError (`STALE_PLACEMENT`) when it asks for
    interfaces without a placement that counts, and needs one.
    """
    found = _read(annotations, uid, node, policy)
    if found.request and found.promised is None and policy.needs_placement:
        msg = f"the pod's placement does not count: {found.ignored}" if found.ignored else _UNPLACED
        raise K8sRdmaError(msg, reason=Reason.STALE_PLACEMENT)
    return found


def _read(annotations: Mapping[str, str], uid: PodUid, node: NodeName, policy: Policy) -> PodRequest:
    promised, ignored = None, ""
    if text := annotations.get(PLACEMENT_ANNOTATION):
        keys = policy.keys()
        try:
            promised = decode(text, uid=uid, node=node, keys=keys)
        except MalformedError as error:
            ignored = str(error)
        if promised is not None and keys is not None:
            return PodRequest(request=promised.request(), promised=promised)
    request = read_pod(annotations, strict=policy.strict).request
    # The policy is not compared here: it applies where the placement is used.
    if promised is not None and not satisfies(promised.request(), request):
        ignored = f"{PLACEMENT_ANNOTATION}: not signed, and its rates are not those of {ANNOTATION}"
        promised = None
    return PodRequest(request=request, promised=promised, ignored=ignored)


def _with_defaults(interface: _Interface, vlan: int, driver: VfDriver) -> _Interface:
    options = interface.options
    if vlan and options.vlan is None:
        options = replace(options, vlan=vlan)
    if driver is not VfDriver.KERNEL:
        options = replace(options, driver=driver)
    return replace(interface, options=options)


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
                _refuse(index, network, own)
        elif index not in attached:
            part.append(index)
    return tuple(part)


def unknown_networks(request: Request, *, own: Set[str], annotations: Mapping[str, str]) -> dict[int, str]:
    """Find networks, by index, that neither this attachment nor the pod's further ones name.

    Nothing is refused for it: a network's name may differ from its definition's.
    """
    listed = set(_NAME.findall(annotations.get(NETWORKS_ANNOTATION, "")))
    named = {index: interface.options.network for index, interface in enumerate(request.interfaces)}
    return {index: name for index, name in named.items() if name and name not in own | listed}


def _refuse(index: int, network: str, own: Set[str]) -> None:
    msg = (
        f"{ANNOTATION}[{index}].network: {shown(network)} is not {' nor '.join(sorted(own))}, and the pod "
        f"has no annotation {NETWORKS_ANNOTATION} that attaches it to others"
    )
    raise MalformedError(msg, reason=Reason.MALFORMED_ANNOTATION)
