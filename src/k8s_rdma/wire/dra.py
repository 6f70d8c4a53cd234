"""Kubelet's APIs for DRA drivers: DRAPlugin (v1), devices' health, registration; `pb` has the messages.

Sources: k8s.io/kubelet/pkg/apis/dra/v1, dra-health/v1alpha1, pluginregistration/v1 (Kubernetes 1.36).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from k8s_rdma.wire.claims import ClaimAnswer, ClaimName, PreparedDevice
from k8s_rdma.wire.pb import dra_health_pb2 as health_pb
from k8s_rdma.wire.pb import dra_pb2 as pb
from k8s_rdma.wire.pb import plugin_registration_pb2 as registration_pb
from k8s_rdma.wire.protobuf import Method, empty_form, form

PLUGIN = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
HEALTH = "v1alpha1.DRAResourceHealth"
REGISTRATION = "pluginregistration.Registration"

TYPE = "DRAPlugin"
VERSIONS = ("v1.DRAPlugin", "v1alpha1.DRAResourceHealth")
"""The services that kubelet may call, as it names them."""

Claims = tuple[ClaimName, ...]
Answers = Mapping[str, ClaimAnswer]
"""Answers by the UID of the claim."""

_WATCH = empty_form(health_pb.NodeWatchResourcesRequest)
_INFO = empty_form(registration_pb.InfoRequest)
_NOTED = empty_form(registration_pb.RegistrationStatusResponse)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginInfo:
    """A plugin as it presents itself. endpoint: the path of its socket."""

    name: str
    endpoint: str
    kind: str = TYPE
    versions: tuple[str, ...] = VERSIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationStatus:
    """Kubelet's answer to a registration. error: why it refused; empty when it did not."""

    registered: bool
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHealth:
    """The health of a device of a pool. updated_s: since 1970. timeout_s: after which kubelet forgets it."""

    pool: str
    device: str
    healthy: bool
    message: str
    updated_s: int
    timeout_s: int


def _claims_from(message: pb.NodePrepareResourcesRequest | pb.NodeUnprepareResourcesRequest) -> Claims:
    return tuple(
        ClaimName(namespace=claim.namespace, name=claim.name, uid=claim.uid) for claim in message.claims
    )


def _claims_to(claims: Claims) -> list[pb.Claim]:
    return [pb.Claim(namespace=claim.namespace, name=claim.name, uid=claim.uid) for claim in claims]


def _devices_to(answer: ClaimAnswer) -> pb.NodePrepareResourceResponse:
    devices = [
        pb.Device(
            request_names=[device.request.partition("/")[0]],  # without the alternative
            pool_name=device.pool,
            device_name=device.device,
            cdi_device_ids=device.cdi,
            share_id=device.share_id or None,
        )
        for device in answer.devices
    ]
    return pb.NodePrepareResourceResponse(devices=devices, error=answer.error)


def _devices_from(message: pb.NodePrepareResourceResponse) -> ClaimAnswer:
    devices = (
        PreparedDevice(
            request=device.request_names[0] if device.request_names else "",
            pool=device.pool_name,
            device=device.device_name,
            share_id=device.share_id,
            cdi=tuple(device.cdi_device_ids),
        )
        for device in message.devices
    )
    return ClaimAnswer(devices=tuple(devices), error=message.error)


def _health_to(devices: tuple[DeviceHealth, ...]) -> health_pb.NodeWatchResourcesResponse:
    states = {True: health_pb.HEALTHY, False: health_pb.UNHEALTHY}
    return health_pb.NodeWatchResourcesResponse(
        devices=[
            health_pb.DeviceHealth(
                device=health_pb.DeviceIdentifier(pool_name=device.pool, device_name=device.device),
                health=states[device.healthy],
                last_updated_time=device.updated_s,
                health_check_timeout_seconds=device.timeout_s,
                message=device.message,
            )
            for device in devices
        ]
    )


def _health_from(message: health_pb.NodeWatchResourcesResponse) -> tuple[DeviceHealth, ...]:
    return tuple(
        DeviceHealth(
            pool=device.device.pool_name,
            device=device.device.device_name,
            healthy=device.health == health_pb.HEALTHY,
            message=device.message,
            updated_s=device.last_updated_time,
            timeout_s=device.health_check_timeout_seconds,
        )
        for device in message.devices
    )


def _info_to(info: PluginInfo) -> registration_pb.PluginInfo:
    return registration_pb.PluginInfo(
        type=info.kind, name=info.name, endpoint=info.endpoint, supported_versions=info.versions
    )


def _info_from(message: registration_pb.PluginInfo) -> PluginInfo:
    return PluginInfo(
        name=message.name,
        endpoint=message.endpoint,
        kind=message.type,
        versions=tuple(message.supported_versions),
    )


def _status_to(status: RegistrationStatus) -> registration_pb.RegistrationStatus:
    return registration_pb.RegistrationStatus(plugin_registered=status.registered, error=status.error)


def _status_from(message: registration_pb.RegistrationStatus) -> RegistrationStatus:
    return RegistrationStatus(registered=message.plugin_registered, error=message.error)


PREPARE: Method[Claims, Answers] = Method(
    service=PLUGIN,
    name="NodePrepareResources",
    request=form(
        pb.NodePrepareResourcesRequest,
        lambda claims: pb.NodePrepareResourcesRequest(claims=_claims_to(claims)),
        _claims_from,
    ),
    answer=form(
        pb.NodePrepareResourcesResponse,
        lambda answers: pb.NodePrepareResourcesResponse(
            claims={uid: _devices_to(answer) for uid, answer in answers.items()}
        ),
        lambda message: {uid: _devices_from(answer) for uid, answer in message.claims.items()},
    ),
)
UNPREPARE: Method[Claims, Answers] = Method(
    service=PLUGIN,
    name="NodeUnprepareResources",
    request=form(
        pb.NodeUnprepareResourcesRequest,
        lambda claims: pb.NodeUnprepareResourcesRequest(claims=_claims_to(claims)),
        _claims_from,
    ),
    answer=form(
        pb.NodeUnprepareResourcesResponse,
        lambda answers: pb.NodeUnprepareResourcesResponse(
            claims={
                uid: pb.NodeUnprepareResourceResponse(error=answer.error) for uid, answer in answers.items()
            }
        ),
        lambda message: {uid: ClaimAnswer(error=answer.error) for uid, answer in message.claims.items()},
    ),
)
WATCH_HEALTH: Method[None, tuple[DeviceHealth, ...]] = Method(
    service=HEALTH,
    name="NodeWatchResources",
    request=_WATCH,
    answer=form(health_pb.NodeWatchResourcesResponse, _health_to, _health_from),
    streams=True,
)
GET_INFO: Method[None, PluginInfo] = Method(
    service=REGISTRATION,
    name="GetInfo",
    request=_INFO,
    answer=form(registration_pb.PluginInfo, _info_to, _info_from),
)
NOTIFY: Method[RegistrationStatus, None] = Method(
    service=REGISTRATION,
    name="NotifyRegistrationStatus",
    request=form(registration_pb.RegistrationStatus, _status_to, _status_from),
    answer=_NOTED,
)
