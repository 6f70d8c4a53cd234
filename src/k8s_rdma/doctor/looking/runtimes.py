"""Facts of the container runtimes that run on the node, and how they are configured.

Source: containerd `docs/cri/config.md` (1.6 to 2.2), crio.conf(5).
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from k8s_rdma.config.devices import ExactResource, ExclusiveResource, SharedResource
from k8s_rdma.core.devices.seen import NetnsMode
from k8s_rdma.doctor.node.memlock import LockingProcess, MemlockFacts
from k8s_rdma.doctor.node.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma.config.devices import DevicePluginConfig
    from k8s_rdma.doctor.looking.host import Host, Process

RUNTIMES = frozenset({"containerd", "crio"})
_STARTERS = RUNTIMES | {"dockerd"}
_CONFIG = {"containerd": "/etc/containerd/config.toml", "crio": "/etc/crio/crio.conf"}
_PROGRAMS = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin")


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSetup:
    """A runtime, and where it looks for networks and plugins."""

    runtime: Runtime
    conf_dir: str = "/etc/cni/net.d"
    bin_dirs: tuple[str, ...] = ("/opt/cni/bin",)


def find_runtimes(host: Host) -> tuple[RuntimeSetup, ...]:
    """One of each that runs. OSError where processes cannot be looked at."""
    first: dict[str, Process] = {}
    for process in host.processes(RUNTIMES):
        first.setdefault(process.name, process)
    return tuple(_setup(host, process) for process in first.values())


def memlock_facts(host: Host) -> MemlockFacts:
    """The limits of the processes that start containers."""
    return MemlockFacts(
        processes=tuple(
            LockingProcess(name=each.name, pid=each.pid, soft_bytes=host.memlock(each.pid))
            for each in host.processes(_STARTERS)
        )
    )


def needs_cdi(plugin: DevicePluginConfig | None, mode: NetnsMode | None) -> tuple[str, ...]:
    """The resources of the device plugin that come by CDI, by name."""
    return tuple(_by_cdi(plugin, mode)) if plugin else ()


def _by_cdi(plugin: DevicePluginConfig, mode: NetnsMode | None) -> Iterator[str]:
    for each in plugin.resources:
        match each:
            case ExactResource() | SharedResource(cdi=True):
                yield each.name
            case ExclusiveResource(cdi=cdi) if cdi or (cdi is None and mode is NetnsMode.EXCLUSIVE):
                yield each.name
            case _:
                pass


def _setup(host: Host, process: Process) -> RuntimeSetup:
    path = process.option("--config", "-c") or _CONFIG[process.name]
    version = _version(host, process)
    try:
        documents = tuple(_documents(host, process.name, path))
    except (OSError, tomllib.TOMLDecodeError) as error:
        return RuntimeSetup(
            runtime=Runtime(name=process.name, version=version, config=path, fault=str(error))
        )
    read = _containerd if process.name == "containerd" else _crio
    return read(Runtime(name=process.name, version=version, config=path), documents)


def _documents(host: Host, name: str, path: str) -> Iterator[dict[str, Any]]:
    """The file, and what it takes in by other files, in the order in which they count."""
    text = host.read_if_any(path)
    document = tomllib.loads(text) if text else {}
    yield document
    patterns = document.get("imports", []) if name == "containerd" else [f"{path}.d/*.conf"]
    for pattern in patterns:
        directory, _, last = str(pattern).rpartition("/")
        for each in host.names(directory):
            if last == each or (last.startswith("*") and each.endswith(last[1:])):
                yield tomllib.loads(host.read(f"{directory}/{each}"))


def _containerd(runtime: Runtime, documents: tuple[dict[str, Any], ...]) -> RuntimeSetup:
    """Version 2 of the file has all in one section, version 3 images and the runtime in two."""
    settings: dict[str, Any] = {}
    for document in documents:
        plugins = document.get("plugins", {})
        for name in ("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"):
            section = plugins.get(name, {})
            settings |= {key: section[key] for key in ("enable_cdi", "cdi_spec_dirs") if key in section}
            settings |= section.get("cni", {})
    bin_dirs = settings.get("bin_dirs") or [settings.get("bin_dir") or "/opt/cni/bin"]
    return RuntimeSetup(
        runtime=_with_cdi(runtime, settings.get("enable_cdi"), settings.get("cdi_spec_dirs")),
        conf_dir=settings.get("conf_dir") or "/etc/cni/net.d",
        bin_dirs=tuple(bin_dirs),
    )


def _crio(runtime: Runtime, documents: tuple[dict[str, Any], ...]) -> RuntimeSetup:
    network: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for document in documents:
        network |= document.get("crio", {}).get("network", {})
        own |= document.get("crio", {}).get("runtime", {})
    return RuntimeSetup(
        runtime=_with_cdi(runtime, None, own.get("cdi_spec_dirs")),
        conf_dir=network.get("network_dir", "/etc/cni/net.d").rstrip("/"),
        bin_dirs=tuple(network.get("plugin_dirs") or ["/opt/cni/bin"]),
    )


def _with_cdi(runtime: Runtime, enabled: bool | None, dirs: list[str] | None) -> Runtime:
    return Runtime(
        name=runtime.name,
        version=runtime.version,
        config=runtime.config,
        enable_cdi=enabled,
        cdi_dirs=tuple(dirs or ()),
    )


def _version(host: Host, process: Process) -> str:
    """As the program itself says it; empty where it cannot be run."""
    places = (host.program(process.pid), *(f"{each}/{process.name}" for each in _PROGRAMS))
    program = next((each for each in places if each and host.here(each).exists()), None)
    if program is None:
        return ""
    try:
        said = host.run([program, "--version"], environment={}).decode(errors="replace")
    except OSError:
        return ""
    words = (word.removeprefix("v") for word in said.split())
    return next((word for word in words if word[:1].isdigit()), "")
