"""Where configurations of kube-scheduler may be.

In a file that is named, where kubeadm's manifest says, and in ConfigMaps; kubeadm's pods tell whether they
have any.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import yaml

from k8s_rdma.config.yaml_text import read_yaml
from k8s_rdma.doctor.cluster.scheduler_file import SchedulerFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from k8s_rdma.doctor.looking.host import Host
    from k8s_rdma.kube.documents import Documents

MANIFEST = "/etc/kubernetes/manifests/kube-scheduler.yaml"
_OPTION = "--config"
_STATIC_PODS = "/api/v1/namespaces/kube-system/pods"
_OF_KUBEADM = {"labelSelector": "component=kube-scheduler"}
_CONFIGURATION = re.compile(r"^kind: *[\"']?KubeSchedulerConfiguration", re.MULTILINE)


class _Mount(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    mount_path: str
    sub_path: str = ""


class _Container(msgspec.Struct, frozen=True, rename="camel"):
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    volume_mounts: tuple[_Mount, ...] = ()


class _HostPath(msgspec.Struct, frozen=True):
    path: str


class _Volume(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    host_path: _HostPath | None = None


class _Spec(msgspec.Struct, frozen=True):
    containers: Annotated[tuple[_Container, ...], msgspec.Meta(min_length=1)]
    volumes: tuple[_Volume, ...] = ()


class _Pod(msgspec.Struct, frozen=True):
    spec: _Spec


class _Manifest(_Pod, frozen=True):
    kind: Literal["Pod"]


def seen_files(
    api: Documents, host: Host, *, namespaces: Sequence[str], named: Path | None
) -> Iterator[SchedulerFile]:
    """Those of the first scheduler, then those of ConfigMaps in these namespaces.

    The first one's is the file that is named, else that of this control-plane node; elsewhere its pods tell
    when they have none. OSError and K8sRdmaError where they cannot be looked at.
    """
    if named is not None:
        yield named_file(named)
    elif (found := of_kubeadm(host)) is not None:
        yield found
    else:
        yield from of_static_pods(api)
    for namespace in namespaces:
        yield from of_config_maps(api, namespace)


def of_static_pods(api: Documents) -> Iterator[SchedulerFile]:
    """Those of kubeadm that were started without a configuration; of others only their node knows it."""
    for pod in api.items(_STATIC_PODS, _OF_KUBEADM):
        if _config_of(msgspec.convert(pod, _Pod).spec.containers[0]) is None:
            where = f"pod kube-system/{pod['metadata']['name']}"
            yield SchedulerFile(where=where, text=None, unset=True)


def of_config_maps(api: Documents, namespace: str) -> Iterator[SchedulerFile]:
    """Configurations under whatever key."""
    for each in api.items(f"/api/v1/namespaces/{namespace}/configmaps"):
        for key, text in (each.get("data") or {}).items():
            if _CONFIGURATION.search(text):
                yield SchedulerFile(
                    where=f"ConfigMap {namespace}/{each['metadata']['name']}, {key}", text=text
                )


def named_file(path: Path) -> SchedulerFile:
    """The file that the command line names. OSError where it cannot be read."""
    return SchedulerFile(where=str(path), text=path.read_text(encoding="utf-8"))


def of_kubeadm(host: Host) -> SchedulerFile | None:
    """That of the static pod of this control-plane node; None where there is none.

    OSError where the manifest cannot be read.
    """
    text = host.read_if_any(MANIFEST)
    if text is None:
        return None
    try:
        spec = msgspec.convert(read_yaml(text), _Manifest).spec
    except (msgspec.ValidationError, ValueError, yaml.YAMLError) as error:
        return SchedulerFile(where=MANIFEST, text=None, why=f"no manifest of a pod: {error}")
    path = _config_of(spec.containers[0])
    if path is None:
        return SchedulerFile(where=MANIFEST, text=None, unset=True)
    here = _on_the_host(path, spec)
    if here is None:
        why = f"{_OPTION}={path} is in no volume of the pod: mount it by hostPath"
        return SchedulerFile(where=MANIFEST, text=None, why=why)
    found = host.read_if_any(here)
    why = f"{_OPTION}={path} of {MANIFEST}: there is no {here} on the host"
    return SchedulerFile(where=here, text=found, why=why if found is None else "")


def _config_of(container: _Container) -> str | None:
    arguments = (*container.command, *container.args)
    for place, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == _OPTION and (equals or place + 1 < len(arguments)):
            return value if equals else arguments[place + 1]
    return None


def _on_the_host(path: str, spec: _Spec) -> str | None:
    """By the mount that it is in, the longest of several; None where it is in none of a hostPath."""
    volumes = {each.name: each.host_path.path for each in spec.volumes if each.host_path}
    for mount in sorted(spec.containers[0].volume_mounts, key=lambda each: -len(each.mount_path)):
        where = mount.mount_path.rstrip("/")
        if (path == where or path.startswith(f"{where}/")) and mount.name in volumes:
            inside = f"/{mount.sub_path}" if mount.sub_path else ""
            return f"{volumes[mount.name]}{inside}{path.removeprefix(where)}"
    return None
