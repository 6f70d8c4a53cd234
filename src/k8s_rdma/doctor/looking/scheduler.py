"""Where kube-scheduler's configuration may be: in a file that is named, or where kubeadm's manifest says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from k8s_rdma.config.yaml_text import read_yaml
from k8s_rdma.doctor.cluster.scheduler import SchedulerFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from k8s_rdma.doctor.looking.host import Host

MANIFEST = "/etc/kubernetes/manifests/kube-scheduler.yaml"
_OPTION = "--config"


def named_file(path: Path) -> SchedulerFile:
    """The file that the command line names. OSError where it cannot be read."""
    return SchedulerFile(where=str(path), text=path.read_text(encoding="utf-8"))


def of_kubeadm(host: Host) -> SchedulerFile | None:
    """That of the static pod of this control-plane node; None where there is none.

    OSError where the manifest cannot be read, ValueError where it is none.
    """
    text = host.read_if_any(MANIFEST)
    if text is None:
        return None
    pod = read_yaml(text)
    if not isinstance(pod, dict) or pod.get("kind") != "Pod":
        return SchedulerFile(where=MANIFEST, text=None, why="no manifest of a pod")
    container = (pod.get("spec", {}).get("containers") or [{}])[0]
    path = _config_of(container)
    if path is None:
        return SchedulerFile(where=MANIFEST, text=None, unset=True)
    here = _on_the_host(path, container, pod)
    if here is None:
        return SchedulerFile(
            where=MANIFEST,
            text=None,
            why=f"{_OPTION}={path} is in no volume of the pod: mount it by hostPath",
        )
    found = host.read_if_any(here)
    why = f"{_OPTION}={path} of {MANIFEST}: there is no {here} on the host"
    return SchedulerFile(where=here, text=found, why=why if found is None else "")


def _config_of(container: dict[str, Any]) -> str | None:
    arguments = [*(container.get("command") or ()), *(container.get("args") or ())]
    for place, argument in enumerate(arguments):
        name, equals, value = str(argument).partition("=")
        if name == _OPTION and (equals or place + 1 < len(arguments)):
            return value if equals else str(arguments[place + 1])
    return None


def _on_the_host(path: str, container: dict[str, Any], pod: dict[str, Any]) -> str | None:
    """By the mount that it is in, the longest of several; None where it is in none of a hostPath."""
    volumes = {each.get("name"): each.get("hostPath", {}) for each in pod["spec"].get("volumes") or ()}
    for mount, inside, volume in sorted(_mounts(container), key=lambda each: -len(each[0])):
        if (path == mount or path.startswith(f"{mount}/")) and "path" in volumes.get(volume, {}):
            return f"{volumes[volume]['path']}{inside}{path.removeprefix(mount)}"
    return None


def _mounts(container: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Where, which part of the volume (`/x` or nothing), and the volume's name."""
    for each in container.get("volumeMounts") or ():
        inside = each.get("subPath", "")
        yield str(each["mountPath"]).rstrip("/"), f"/{inside}" if inside else "", each["name"]
