"""The container runtimes that tests of several of them run on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from e2e.containerd import Containerd
from e2e.crio import Crio
from e2e.neighbours import missing

if TYPE_CHECKING:
    from e2e.container_runtime import ContainerRuntime

RUNTIMES: dict[str, type[ContainerRuntime]] = {each.name: each for each in (Containerd, Crio)}
_PROGRAMS = {
    Containerd.name: ("containerd", "containerd-shim-runc-v2", "ctr", "runc"),
    Crio.name: ("crio", "pinns", "conmon", "runc", "buildah"),
}


def runtime_obstacle(name: str) -> str | None:
    """Return the reason why a runtime cannot be run here, if there is one."""
    return missing(*_PROGRAMS[name])
