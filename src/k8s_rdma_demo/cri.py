"""The container runtime interface, CRI v1; `pb/cri.proto` has its messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from google.protobuf.message import Message

from k8s_rdma.core.devices.pod_devices import DeviceSpec, Mount
from k8s_rdma.wire.protobuf import Form, Method, empty_form, form
from k8s_rdma_demo.pb import cri_pb2 as pb

RUNTIME_SERVICE = "runtime.v1.RuntimeService"
M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSandboxConfig:
    """A sandbox that shall be made. attempt: which of the pod's it is, from 0."""

    namespace: str
    name: str
    uid: str
    attempt: int = 0
    annotations: Mapping[str, str] = field(default_factory=dict)
    cgroup_parent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSandbox:
    """A sandbox that there is. ready: whether its process and its network are there."""

    id: str
    uid: str
    attempt: int
    ready: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSandboxStatus:
    """ips: of the pod's own interface. info: the runtime's extra information, by name."""

    sandbox: PodSandbox
    ips: tuple[str, ...]
    info: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerConfig:
    """A container that shall be made. command, args, user: the image's own if empty or unset."""

    name: str
    image: str
    attempt: int = 0
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    envs: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceSpec, ...] = ()
    cdi_devices: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    privileged: bool = False
    user: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewContainer:
    """sandbox: the id of the one that it is made in, which was made of `pod`."""

    sandbox: str
    pod: PodSandboxConfig
    container: ContainerConfig


class RuntimeCondition(NamedTuple):
    """`RuntimeReady`, `NetworkReady`, and why not."""

    type: str
    status: bool
    reason: str
    message: str


def _pod_to(pod: PodSandboxConfig) -> pb.PodSandboxConfig:
    return pb.PodSandboxConfig(
        metadata=pb.PodSandboxMetadata(
            name=pod.name, uid=pod.uid, namespace=pod.namespace, attempt=pod.attempt
        ),
        hostname=pod.name,
        annotations=pod.annotations,
        linux=pb.LinuxPodSandboxConfig(cgroup_parent=pod.cgroup_parent),
    )


def _pod_from(message: pb.PodSandboxConfig) -> PodSandboxConfig:
    return PodSandboxConfig(
        namespace=message.metadata.namespace,
        name=message.metadata.name,
        uid=message.metadata.uid,
        attempt=message.metadata.attempt,
        annotations=dict(message.annotations),
        cgroup_parent=message.linux.cgroup_parent,
    )


def _sandbox_from(message: pb.PodSandbox | pb.PodSandboxStatus) -> PodSandbox:
    return PodSandbox(
        id=message.id,
        uid=message.metadata.uid,
        attempt=message.metadata.attempt,
        ready=message.state == pb.SANDBOX_READY,
    )


def _state(sandbox: PodSandbox) -> pb.PodSandboxState:
    return pb.SANDBOX_READY if sandbox.ready else pb.SANDBOX_NOTREADY


def _metadata(sandbox: PodSandbox) -> pb.PodSandboxMetadata:
    return pb.PodSandboxMetadata(uid=sandbox.uid, attempt=sandbox.attempt)


def _sandboxes_to(sandboxes: Sequence[PodSandbox]) -> pb.ListPodSandboxResponse:
    items = [
        pb.PodSandbox(id=sandbox.id, metadata=_metadata(sandbox), state=_state(sandbox))
        for sandbox in sandboxes
    ]
    return pb.ListPodSandboxResponse(items=items)


def _sandboxes_from(message: pb.ListPodSandboxResponse) -> Sequence[PodSandbox]:
    return tuple(_sandbox_from(sandbox) for sandbox in message.items)


def _status_to(status: PodSandboxStatus) -> pb.PodSandboxStatusResponse:
    first, *additional = status.ips or ("",)
    network = pb.PodSandboxNetworkStatus(ip=first, additional_ips=[pb.PodIP(ip=ip) for ip in additional])
    sandbox = status.sandbox
    return pb.PodSandboxStatusResponse(
        status=pb.PodSandboxStatus(
            id=sandbox.id, metadata=_metadata(sandbox), state=_state(sandbox), network=network
        ),
        info=status.info,
    )


def _status_from(message: pb.PodSandboxStatusResponse) -> PodSandboxStatus:
    network = message.status.network
    every = (network.ip, *(pod_ip.ip for pod_ip in network.additional_ips))
    return PodSandboxStatus(
        sandbox=_sandbox_from(message.status), ips=tuple(filter(None, every)), info=dict(message.info)
    )


def _container_to(container: ContainerConfig) -> pb.ContainerConfig:
    return pb.ContainerConfig(
        metadata=pb.ContainerMetadata(name=container.name, attempt=container.attempt),
        image=pb.ImageSpec(image=container.image, user_specified_image=container.image),
        command=container.command,
        args=container.args,
        envs=[pb.KeyValue(key=key, value=value) for key, value in container.envs.items()],
        mounts=[
            pb.Mount(container_path=entry.path, host_path=entry.host_path, readonly=entry.read_only)
            for entry in container.mounts
        ],
        devices=[
            pb.Device(
                container_path=device.path,
                host_path=device.host_path or device.path,
                permissions=device.permissions,
            )
            for device in container.devices
        ],
        annotations=container.annotations,
        linux=pb.LinuxContainerConfig(
            security_context=pb.LinuxContainerSecurityContext(
                capabilities=pb.Capability(add_capabilities=container.capabilities),
                privileged=container.privileged,
                run_as_user=None if container.user is None else pb.Int64Value(value=container.user),
            )
        ),
        CDI_devices=[pb.CDIDevice(name=device) for device in container.cdi_devices],
    )


def _container_from(message: pb.ContainerConfig) -> ContainerConfig:
    security = message.linux.security_context
    return ContainerConfig(
        name=message.metadata.name,
        image=message.image.image,
        attempt=message.metadata.attempt,
        command=tuple(message.command),
        args=tuple(message.args),
        envs={entry.key: entry.value for entry in message.envs},
        annotations=dict(message.annotations),
        mounts=tuple(
            Mount(path=mount.container_path, host_path=mount.host_path, read_only=mount.readonly)
            for mount in message.mounts
        ),
        devices=tuple(
            DeviceSpec(path=device.container_path, host_path=device.host_path, permissions=device.permissions)
            for device in message.devices
        ),
        cdi_devices=tuple(device.name for device in message.CDI_devices),
        capabilities=tuple(security.capabilities.add_capabilities),
        privileged=security.privileged,
        user=security.run_as_user.value if security.HasField("run_as_user") else None,
    )


def _new_to(new: NewContainer) -> pb.CreateContainerRequest:
    return pb.CreateContainerRequest(
        pod_sandbox_id=new.sandbox, config=_container_to(new.container), sandbox_config=_pod_to(new.pod)
    )


def _new_from(message: pb.CreateContainerRequest) -> NewContainer:
    return NewContainer(
        sandbox=message.pod_sandbox_id,
        pod=_pod_from(message.sandbox_config),
        container=_container_from(message.config),
    )


def _conditions_to(conditions: Sequence[RuntimeCondition]) -> pb.StatusResponse:
    messages = [pb.RuntimeCondition(**condition._asdict()) for condition in conditions]
    return pb.StatusResponse(status=pb.RuntimeStatus(conditions=messages))


def _conditions_from(message: pb.StatusResponse) -> Sequence[RuntimeCondition]:
    return tuple(
        RuntimeCondition(condition.type, condition.status, condition.reason, condition.message)
        for condition in message.status.conditions
    )


def _id(message: type[M], name: str) -> Form[str]:
    """Return the form of a message with one field, an id."""
    return form(message, lambda value: message(**{name: value}), lambda read: str(getattr(read, name)))


RUN_POD_SANDBOX = Method(
    service=RUNTIME_SERVICE,
    name="RunPodSandbox",
    request=form(
        pb.RunPodSandboxRequest,
        lambda pod: pb.RunPodSandboxRequest(config=_pod_to(pod)),
        lambda message: _pod_from(message.config),
    ),
    answer=_id(pb.RunPodSandboxResponse, "pod_sandbox_id"),
)
STOP_POD_SANDBOX = Method(
    service=RUNTIME_SERVICE,
    name="StopPodSandbox",
    request=_id(pb.StopPodSandboxRequest, "pod_sandbox_id"),
    answer=empty_form(pb.StopPodSandboxResponse),
)
REMOVE_POD_SANDBOX = Method(
    service=RUNTIME_SERVICE,
    name="RemovePodSandbox",
    request=_id(pb.RemovePodSandboxRequest, "pod_sandbox_id"),
    answer=empty_form(pb.RemovePodSandboxResponse),
)
POD_SANDBOX_STATUS = Method(
    service=RUNTIME_SERVICE,
    name="PodSandboxStatus",
    request=form(
        pb.PodSandboxStatusRequest,
        lambda sandbox: pb.PodSandboxStatusRequest(pod_sandbox_id=sandbox, verbose=True),
        lambda message: message.pod_sandbox_id,
    ),
    answer=form(pb.PodSandboxStatusResponse, _status_to, _status_from),
)
LIST_POD_SANDBOX = Method(
    service=RUNTIME_SERVICE,
    name="ListPodSandbox",
    request=empty_form(pb.ListPodSandboxRequest),
    answer=form(pb.ListPodSandboxResponse, _sandboxes_to, _sandboxes_from),
)
CREATE_CONTAINER = Method(
    service=RUNTIME_SERVICE,
    name="CreateContainer",
    request=form(pb.CreateContainerRequest, _new_to, _new_from),
    answer=_id(pb.CreateContainerResponse, "container_id"),
)
START_CONTAINER = Method(
    service=RUNTIME_SERVICE,
    name="StartContainer",
    request=_id(pb.StartContainerRequest, "container_id"),
    answer=empty_form(pb.StartContainerResponse),
)
STATUS = Method(
    service=RUNTIME_SERVICE,
    name="Status",
    request=empty_form(pb.StatusRequest),
    answer=form(pb.StatusResponse, _conditions_to, _conditions_from),
)
