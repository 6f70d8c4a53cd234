"""The container runtime that kubelet uses, and its configuration.

Sources: containerd `docs/cri/config.md` (1.6 to 2.2), crio.conf(5), `KubeletConfiguration` (v1beta1).
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
import yaml

from k8s_rdma.core.node_paths import CNI_BIN_DIR, CNI_CONF_DIR
from k8s_rdma.doctor.node.runtime import Runtime
from k8s_rdma.wire.yaml import read_yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from k8s_rdma.doctor.collectors.host import Host, Process

RUNTIMES = frozenset({"containerd", "crio"})
_CONFIG = {"containerd": "/etc/containerd/config.toml", "crio": "/etc/crio/crio.conf"}
_SOCKETS = {"containerd": "/run/containerd/containerd.sock", "crio": "/var/run/crio/crio.sock"}
_SOCKET_OPTIONS = {"containerd": ("--address", "-a"), "crio": ("--listen",)}
_CRI_PLUGINS = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")
_UNIX = "unix://"
_KUBELET_ENDPOINT = "unix:///run/containerd/containerd.sock"
"""kubelet's default of `containerRuntimeEndpoint` (pkg/kubelet/apis/config/v1beta1/defaults.go)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSetup:
    """A runtime, its socket, and its directories of networks and plugins."""

    runtime: Runtime
    socket: str
    conf_dir: str = CNI_CONF_DIR
    bin_dirs: tuple[str, ...] = (CNI_BIN_DIR,)


def find_runtimes(host: Host, kubelet_config: Callable[[], str] = str) -> tuple[RuntimeSetup, ...]:
    """Find the runtime that kubelet uses; the first of each if no running one has kubelet's socket.

    Other runtimes start no pods; for example, Docker's containerd. OSError if processes cannot be read.

    kubelet_config: returns the runtime that kubelet reports, `containerd://2.2.1`; called if a program does
        not report its version.
    """
    setups = [_setup(host, process) for process in host.processes(RUNTIMES)]
    socket = _socket_of_kubelet(host)
    used = [setup for setup in setups if socket and host.path_of(setup.socket) == host.path_of(socket)]
    first: dict[str, RuntimeSetup] = {}
    for setup in used[:1] or setups:
        first.setdefault(setup.runtime.name, setup)
    return tuple(_of_kubelet(setup, kubelet_config) for setup in first.values())


def _socket_of_kubelet(host: Host) -> str:
    """Return the runtime's socket by kubelet's command line or configuration; empty if it is not known."""
    kubelet = next(host.processes(frozenset({"kubelet"})), None)
    if kubelet is None:
        return ""
    try:
        endpoint = kubelet.option("--container-runtime-endpoint") or _configured_endpoint(host, kubelet)
    except (OSError, yaml.YAMLError):
        return ""
    return endpoint.removeprefix(_UNIX)


def _configured_endpoint(host: Host, kubelet: Process) -> str:
    """Return the configured endpoint; drop-ins override the file, and the last one overrides all."""
    file, drop_ins = kubelet.option("--config"), kubelet.option("--config-dir")
    paths = [file] if file else []
    paths += sorted(_matching(host, f"{drop_ins}/*.conf")) if drop_ins else ()
    documents = [read_yaml(host.read(path)) for path in reversed(paths)]
    endpoints = [found.get("containerRuntimeEndpoint") for found in documents if isinstance(found, dict)]
    return next(
        (endpoint for endpoint in endpoints if endpoint and isinstance(endpoint, str)), _KUBELET_ENDPOINT
    )


def _of_kubelet(setup: RuntimeSetup, kubelet_config: Callable[[], str]) -> RuntimeSetup:
    if setup.runtime.version or setup.runtime.fault:
        return setup
    scheme, _, version = kubelet_config().partition("://")
    if scheme.replace("-", "") != setup.runtime.name:
        return setup
    return replace(setup, runtime=replace(setup.runtime, version=version, source="kubelet"))


class _Cni(msgspec.Struct, frozen=True):
    conf_dir: str = ""
    bin_dir: str = ""
    bin_dirs: tuple[str, ...] = ()


class _Cri(msgspec.Struct, frozen=True):
    enable_cdi: bool | None = None
    cdi_spec_dirs: tuple[str, ...] = ()
    cni: _Cni = _Cni()


class _Grpc(msgspec.Struct, frozen=True):
    address: str = ""


class _Containerd(msgspec.Struct, frozen=True):
    grpc: _Grpc = _Grpc()
    imports: tuple[str, ...] = ()
    plugins: dict[str, Any] = {}


class _CrioNetwork(msgspec.Struct, frozen=True):
    network_dir: str = ""
    plugin_dirs: tuple[str, ...] = ()


class _CrioRuntime(msgspec.Struct, frozen=True):
    default_ulimits: tuple[str, ...] | None = None
    cdi_spec_dirs: tuple[str, ...] = ()


class _CrioApi(msgspec.Struct, frozen=True):
    listen: str = ""


class _CrioTable(msgspec.Struct, frozen=True):
    api: _CrioApi = _CrioApi()
    network: _CrioNetwork = _CrioNetwork()
    runtime: _CrioRuntime = _CrioRuntime()


class _Crio(msgspec.Struct, frozen=True):
    crio: _CrioTable = _CrioTable()


def _setup(host: Host, process: Process) -> RuntimeSetup:
    path = process.option("--config", "-c") or _CONFIG[process.name]
    runtime = Runtime(name=process.name, version=_version(host, process), config=path)
    read = _containerd if process.name == "containerd" else _crio
    try:
        found = read(host, runtime)
    except (OSError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        found = RuntimeSetup(runtime=replace(runtime, fault=str(error)), socket="")
    socket = process.option(*_SOCKET_OPTIONS[process.name]) or found.socket or _SOCKETS[process.name]
    return replace(found, socket=socket.removeprefix(_UNIX))


def _toml(host: Host, path: str) -> dict[str, Any]:
    return tomllib.loads(host.read_if_any(path) or "")


def _matching(host: Host, pattern: str) -> Iterator[str]:
    """List the files of a pattern, whose last part may begin with `*`, in order."""
    directory, _, last = pattern.rpartition("/")
    for name in host.names(directory):
        if last == name or (last.startswith("*") and name.endswith(last[1:])):
            yield f"{directory}/{name}"


def _containerd(host: Host, runtime: Runtime) -> RuntimeSetup:
    """Read containerd's configuration.

    Version 2 of the file has all settings in one section, version 3 has images and the runtime in two. An
    imported file overrides the file that imports it.
    """
    document = msgspec.convert(_toml(host, runtime.config), _Containerd)
    imported = (path for pattern in document.imports for path in _matching(host, pattern))
    imports = [msgspec.convert(_toml(host, path), _Containerd) for path in imported]
    layers = (*reversed(imports), document)
    sections = [
        msgspec.convert(layer.plugins[name], _Cri)
        for layer in layers
        for name in _CRI_PLUGINS
        if name in layer.plugins
    ]
    cnis = [section.cni for section in sections]
    one_dir = next((cni.bin_dir for cni in cnis if cni.bin_dir), CNI_BIN_DIR)
    return RuntimeSetup(
        runtime=replace(
            runtime,
            enable_cdi=next(
                (section.enable_cdi for section in sections if section.enable_cdi is not None), None
            ),
            cdi_dirs=next((section.cdi_spec_dirs for section in sections if section.cdi_spec_dirs), ()),
        ),
        socket=next((layer.grpc.address for layer in layers if layer.grpc.address), ""),
        conf_dir=next((cni.conf_dir for cni in cnis if cni.conf_dir), CNI_CONF_DIR).rstrip("/"),
        bin_dirs=next((cni.bin_dirs for cni in cnis if cni.bin_dirs), (one_dir,)),
    )


def _crio(host: Host, runtime: Runtime) -> RuntimeSetup:
    """Read CRI-O's configuration; drop-ins override the file, and the last one overrides all."""
    paths = (runtime.config, *_matching(host, f"{runtime.config}.d/*.conf"))
    tables = [msgspec.convert(_toml(host, path), _Crio).crio for path in reversed(paths)]
    networks = [table.network for table in tables]
    cdi_dirs = (table.runtime.cdi_spec_dirs for table in tables if table.runtime.cdi_spec_dirs)
    ulimits = (table.runtime.default_ulimits for table in tables if table.runtime.default_ulimits is not None)
    set_by_name = dict(ulimit.split("=", 1) for ulimit in next(ulimits, ()) if "=" in ulimit)
    return RuntimeSetup(
        runtime=replace(runtime, cdi_dirs=next(cdi_dirs, ()), memlock=set_by_name.get("memlock", "")),
        socket=next((table.api.listen for table in tables if table.api.listen), ""),
        conf_dir=next(
            (network.network_dir for network in networks if network.network_dir), CNI_CONF_DIR
        ).rstrip("/"),
        bin_dirs=next((network.plugin_dirs for network in networks if network.plugin_dirs), (CNI_BIN_DIR,)),
    )


def _version(host: Host, process: Process) -> str:
    """Return the version that the program prints; empty if it is unknown or cannot be run.

    The path of a process's executable is visible only to those who may inspect the process; its command line
    is visible to all.
    """
    places = (host.program(process.pid), *process.arguments[:1])
    absolute = (path for path in places if path and path.startswith("/"))
    program = next((path for path in absolute if host.path_of(path).exists()), None)
    if program is None:
        return ""
    try:
        output = host.run([program, "--version"], environment={}).decode(errors="replace")
    except OSError:
        return ""
    fields = (field.removeprefix("v") for field in output.split())
    return next((field for field in fields if field[:1].isdigit()), "")
