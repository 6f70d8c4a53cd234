"""Facts of the container runtimes that run on the node, and how they are configured.

Source: containerd `docs/cri/config.md` (1.6 to 2.2), crio.conf(5).
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from k8s_rdma.config.devices import ExactResource, ExclusiveResource, SharedResource
from k8s_rdma.core.devices.rdma_devices import NetnsMode
from k8s_rdma.doctor.node.memlock import LockingProcess, MemlockFacts
from k8s_rdma.doctor.node.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from k8s_rdma.config.devices import DevicePluginConfig
    from k8s_rdma.doctor.collectors.host import Host, Process

RUNTIMES = frozenset({"containerd", "crio"})
_STARTERS = RUNTIMES | {"dockerd"}
_CONFIG = {"containerd": "/etc/containerd/config.toml", "crio": "/etc/crio/crio.conf"}
_CRI_PLUGINS = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")
_CONF_DIR, _BIN_DIR = "/etc/cni/net.d", "/opt/cni/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSetup:
    """A runtime, and where it looks for networks and plugins."""

    runtime: Runtime
    conf_dir: str = _CONF_DIR
    bin_dirs: tuple[str, ...] = (_BIN_DIR,)


def find_runtimes(host: Host, kubelet_config: Callable[[], str] = str) -> tuple[RuntimeSetup, ...]:
    """One of each that runs. OSError where processes cannot be looked at.

    kubelet_config: what kubelet says of its runtime, `containerd://2.2.1`; asked where a program does not say
        its own.
    """
    first: dict[str, Process] = {}
    for process in host.processes(RUNTIMES):
        first.setdefault(process.name, process)
    return tuple(_of_kubelet(_setup(host, process), kubelet_config) for process in first.values())


def _of_kubelet(setup: RuntimeSetup, kubelet_config: Callable[[], str]) -> RuntimeSetup:
    if setup.runtime.version or setup.runtime.fault:
        return setup
    scheme, _, version = kubelet_config().partition("://")
    if scheme.replace("-", "") != setup.runtime.name:
        return setup
    return replace(setup, runtime=replace(setup.runtime, version=version, source="kubelet"))


def memlock_facts(host: Host) -> MemlockFacts:
    """The limits of the processes that start containers."""
    return MemlockFacts(
        processes=tuple(
            LockingProcess(name=process.name, pid=process.pid, soft_bytes=host.memlock(process.pid))
            for process in host.processes(_STARTERS)
        )
    )


def needs_cdi(plugin: DevicePluginConfig | None, mode: NetnsMode | None) -> tuple[str, ...]:
    """The resources of the device plugin that come by CDI, by name."""
    return tuple(_by_cdi(plugin, mode)) if plugin else ()


def _by_cdi(plugin: DevicePluginConfig, mode: NetnsMode | None) -> Iterator[str]:
    for resource in plugin.resources:
        match resource:
            case ExactResource() | SharedResource(cdi=True):
                yield resource.name
            case ExclusiveResource(cdi=cdi) if cdi or (cdi is None and mode is NetnsMode.EXCLUSIVE):
                yield resource.name
            case _:
                pass


class _Cni(msgspec.Struct, frozen=True):
    conf_dir: str = ""
    bin_dir: str = ""
    bin_dirs: tuple[str, ...] = ()


class _Cri(msgspec.Struct, frozen=True):
    enable_cdi: bool | None = None
    cdi_spec_dirs: tuple[str, ...] = ()
    cni: _Cni = _Cni()


class _Containerd(msgspec.Struct, frozen=True):
    imports: tuple[str, ...] = ()
    plugins: dict[str, Any] = {}


class _CrioNetwork(msgspec.Struct, frozen=True):
    network_dir: str = ""
    plugin_dirs: tuple[str, ...] = ()


class _CrioRuntime(msgspec.Struct, frozen=True):
    cdi_spec_dirs: tuple[str, ...] = ()


class _CrioTable(msgspec.Struct, frozen=True):
    network: _CrioNetwork = _CrioNetwork()
    runtime: _CrioRuntime = _CrioRuntime()


class _Crio(msgspec.Struct, frozen=True):
    crio: _CrioTable = _CrioTable()


def _setup(host: Host, process: Process) -> RuntimeSetup:
    path = process.option("--config", "-c") or _CONFIG[process.name]
    runtime = Runtime(name=process.name, version=_version(host, process), config=path)
    read = _containerd if process.name == "containerd" else _crio
    try:
        return read(host, runtime)
    except (OSError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        return RuntimeSetup(runtime=replace(runtime, fault=str(error)))


def _toml(host: Host, path: str) -> dict[str, Any]:
    return tomllib.loads(host.read_if_any(path) or "")


def _matching(host: Host, pattern: str) -> Iterator[str]:
    """Files that a pattern names, of which the last part may begin with `*`, in order."""
    directory, _, last = pattern.rpartition("/")
    for name in host.names(directory):
        if last == name or (last.startswith("*") and name.endswith(last[1:])):
            yield f"{directory}/{name}"


def _containerd(host: Host, runtime: Runtime) -> RuntimeSetup:
    """Version 2 of the file has all in one section, version 3 images and the runtime in two.

    What is imported stands above the file.
    """
    document = msgspec.convert(_toml(host, runtime.config), _Containerd)
    imported = (path for pattern in document.imports for path in _matching(host, pattern))
    imports = [msgspec.convert(_toml(host, path), _Containerd) for path in imported]
    sections = [
        msgspec.convert(each.plugins[name], _Cri)
        for each in (*reversed(imports), document)
        for name in _CRI_PLUGINS
        if name in each.plugins
    ]
    cnis = [each.cni for each in sections]
    one_dir = next((each.bin_dir for each in cnis if each.bin_dir), _BIN_DIR)
    return RuntimeSetup(
        runtime=replace(
            runtime,
            enable_cdi=next((each.enable_cdi for each in sections if each.enable_cdi is not None), None),
            cdi_dirs=next((each.cdi_spec_dirs for each in sections if each.cdi_spec_dirs), ()),
        ),
        conf_dir=next((each.conf_dir for each in cnis if each.conf_dir), _CONF_DIR).rstrip("/"),
        bin_dirs=next((each.bin_dirs for each in cnis if each.bin_dirs), (one_dir,)),
    )


def _crio(host: Host, runtime: Runtime) -> RuntimeSetup:
    """Drop-ins stand above the file, the last one above all."""
    paths = (runtime.config, *_matching(host, f"{runtime.config}.d/*.conf"))
    tables = [msgspec.convert(_toml(host, path), _Crio).crio for path in reversed(paths)]
    networks = [each.network for each in tables]
    cdi_dirs = (each.runtime.cdi_spec_dirs for each in tables if each.runtime.cdi_spec_dirs)
    return RuntimeSetup(
        runtime=replace(runtime, cdi_dirs=next(cdi_dirs, ())),
        conf_dir=next((each.network_dir for each in networks if each.network_dir), _CONF_DIR).rstrip("/"),
        bin_dirs=next((each.plugin_dirs for each in networks if each.plugin_dirs), (_BIN_DIR,)),
    )


def _version(host: Host, process: Process) -> str:
    """As the program itself says it; empty where it is not known, or cannot be run.

    What a process runs is for those alone who may look into it, as what it was called by is not.
    """
    places = (host.program(process.pid), *process.arguments[:1])
    absolute = (each for each in places if each and each.startswith("/"))
    program = next((each for each in absolute if host.path_of(each).exists()), None)
    if program is None:
        return ""
    try:
        output = host.run([program, "--version"], environment={}).decode(errors="replace")
    except OSError:
        return ""
    fields = (field.removeprefix("v") for field in output.split())
    return next((word for word in fields if word[:1].isdigit()), "")
