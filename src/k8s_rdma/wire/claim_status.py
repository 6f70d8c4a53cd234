"""The state of a ResourceClaim that its driver reads, and `status.devices`, which it writes.

Source (Kubernetes 1.36): `AllocatedDeviceStatus` in k8s.io/api/resource/v1/types.go, and
`validateDeviceStatus` in pkg/apis/resource/validation. A device that claims share is named with its share.
"""

from __future__ import annotations

from contextlib import suppress
from ipaddress import ip_interface
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from k8s_rdma.wire.claims import DRIVER, PreparedClaim, PreparedClaimInterface
from k8s_rdma.wire.json import decode
from k8s_rdma.wire.objects.claims import KubeClaim
from k8s_rdma.wire.objects.meta import WholeMeta

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

READY = "Ready"
ATTACHED, NOT_ATTACHED, REFUSED = "Attached", "NotAttached", "PreparationRefused"
"""Reasons of the condition `Ready`."""

MAX_MESSAGE = 1024
"""Characters of a condition's message; Kubernetes takes 32 KiB."""


class _Object(msgspec.Struct, frozen=True):
    metadata: WholeMeta


class _Claim(KubeClaim, frozen=True, kw_only=True):
    metadata: WholeMeta


_decoder = msgspec.json.Decoder(_Claim)
_object_decoder = msgspec.json.Decoder(_Object)


class DeviceKey(NamedTuple):
    """A device of an allocation. share_id: empty if the device is not shared."""

    pool: str
    device: str
    share_id: str


class ClaimState(NamedTuple):
    """A claim as the API server has it.

    consumers: the UIDs that it is reserved for.
    pod: the name of the pod that owns it, or else of the first that it is reserved for; empty without one.
    allocated: this driver's devices.
    statuses: the present `status.devices` of these.
    """

    uid: str
    consumers: frozenset[str]
    pod: str
    allocated: frozenset[DeviceKey]
    statuses: dict[DeviceKey, dict[str, Any]]


def decode_state(document: bytes) -> ClaimState:
    """Read a claim; MalformedError names the field."""
    claim = decode(document, _decoder, "ResourceClaim")
    status = claim.status
    results = status.allocation.devices.results if status.allocation is not None else None
    consumers = status.reserved_for or ()
    pods = [owner.name for owner in claim.metadata.owner_references or () if owner.kind == "Pod"]
    pods += [consumer.name for consumer in consumers if consumer.resource == "pods"]
    return ClaimState(
        uid=claim.metadata.uid,
        consumers=frozenset(consumer.uid for consumer in consumers),
        pod=next(iter(pods), ""),
        allocated=frozenset(
            DeviceKey(result.pool, result.device, result.share_id or "")
            for result in results or ()
            if result.driver == DRIVER
        ),
        statuses={_key(found): found for found in status.devices or () if found.get("driver") == DRIVER},
    )


def decode_uid(document: bytes) -> str:
    """Read the UID of any object; MalformedError names the field."""
    return decode(document, _object_decoder, "object").metadata.uid


def prepared_devices(prepared: PreparedClaim, pool: str, found: ClaimState, now: str) -> list[dict[str, Any]]:
    """Return the `status.devices` of a prepared claim: whether its pod has the interfaces, and their data.

    Interfaces that are not allocated any more are left out, because the API server refuses them.

    found: times of unchanged conditions, and addresses that the agent no longer has, are taken from it.
    """
    devices = []
    for interface in prepared.interfaces:
        key = DeviceKey(pool, interface.device, interface.share_id)
        if key not in found.allocated:
            continue
        current = found.statuses.get(key, {})
        if interface.ifname:
            message = f"pod {prepared.pod} has it as {interface.ifname}"
            condition = _condition(current, now, ATTACHED, message)
            network = {"networkData": network_data(interface, current.get("networkData"))}
        else:
            message = f"pod {prepared.pod} has no sandbox with it"
            condition, network = _condition(current, now, NOT_ATTACHED, message), {}
        devices.append(_device(key, condition) | {"data": _data(interface)} | network)
    return devices


def refused_devices(pool: str, message: str, found: ClaimState, now: str) -> list[dict[str, Any]]:
    """Return the `status.devices` of a claim whose preparation is refused on this node."""
    return [
        _device(key, _condition(found.statuses.get(key, {}), now, REFUSED, message))
        for key in sorted(found.allocated)
        if key.pool == pool
    ]


def _device(key: DeviceKey, condition: dict[str, str]) -> dict[str, Any]:
    share = {"shareID": key.share_id} if key.share_id else {}
    return {
        "driver": DRIVER,
        "pool": key.pool,
        "device": key.device,
        **share,
        "conditions": [condition],
    }


def _condition(current: dict[str, Any], now: str, reason: str, message: str) -> dict[str, str]:
    status = "True" if reason == ATTACHED else "False"
    earlier = next(_conditions(current), {})
    changed = earlier.get("lastTransitionTime") if earlier.get("status") == status else None
    return {
        "type": READY,
        "status": status,
        "reason": reason,
        "message": message[:MAX_MESSAGE],
        "lastTransitionTime": changed or now,
    }


def _conditions(device: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for condition in _list(device.get("conditions")):
        if isinstance(condition, dict) and condition.get("type") == READY:
            yield condition


def network_data(interface: PreparedClaimInterface, former: object) -> dict[str, Any]:
    """Describe an interface in a pod's network.

    former: the description until now. Addresses that the agent no longer has are taken from it.
    """
    ips = interface.ips
    if ips is None:
        found = _list(former.get("ips")) if isinstance(former, dict) else []
        ips = tuple(ip for ip in found if isinstance(ip, str))
    data = {
        "interfaceName": interface.ifname,
        "hardwareAddress": interface.mac,
        "ips": list(dict.fromkeys(_canonical(ips))),
    }
    return {key: value for key, value in data.items() if value}


def _canonical(ips: Iterable[str]) -> Iterator[str]:
    """Addresses in the form that the API server takes."""
    for ip in ips:
        with suppress(ValueError):
            yield str(ip_interface(ip))


def _data(interface: PreparedClaimInterface) -> dict[str, Any]:
    data: dict[str, Any] = {"pci": interface.pci}
    if interface.rdma_device:
        data["rdmaDevice"] = interface.rdma_device
    data |= {"minTxRate": interface.min_tx_rate, "maxTxRate": interface.max_tx_rate}
    enforcers = {"min": interface.min_enforced, "max": interface.max_enforced}
    enforced = {rate: enforcer for rate, enforcer in enforcers.items() if enforcer}
    return data | ({"enforced": enforced} if enforced else {})


def _key(device: dict[str, Any]) -> DeviceKey:
    pool, name, share_id = (str(device.get(key) or "") for key in ("pool", "device", "shareID"))
    return DeviceKey(pool, name, share_id)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
