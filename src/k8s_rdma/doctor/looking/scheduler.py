"""Where kube-scheduler's configuration may be: in a file that is named, or where kubeadm's manifest says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import yaml

from k8s_rdma.config.yaml_text import read_yaml
from k8s_rdma.doctor.cluster.scheduler import SchedulerFile

if TYPE_CHECKING:
    from pathlib import Path

    from k8s_rdma.doctor.looking.host import Host

MANIFEST = "/etc/kubernetes/manifests/kube-scheduler.yaml"
_OPTION = "--config"


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
    kind: Literal["Pod"]
    spec: _Spec


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
        spec = msgspec.convert(read_yaml(text), _Pod).spec
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
