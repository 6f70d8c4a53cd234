"""Facts of the processes on the node: container runtimes and their configuration, our own, and the ledger.

Source: containerd `docs/cri/config.md` (1.6 to 2.2), crio.conf(5).
"""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
import tomllib
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import msgspec

from k8s_rdma import __version__
from k8s_rdma.agent.ledger_store import DIRECTORY, deferred_deletes_in
from k8s_rdma.config.devices import ExactResource, ExclusiveResource, SharedResource
from k8s_rdma.core.devices.rdma_devices import NetnsMode
from k8s_rdma.core.ledger import Phase
from k8s_rdma.doctor.collectors.versions import in_metrics
from k8s_rdma.doctor.node.ledger import LedgerFacts
from k8s_rdma.doctor.node.memlock import LockingProcess, MemlockFacts
from k8s_rdma.doctor.node.processes import Answer, ProcessFacts
from k8s_rdma.doctor.node.runtime import Runtime
from k8s_rdma.errors import LedgerError, MalformedError
from k8s_rdma.linux.receipts import NewerLedgerError, Receipts
from k8s_rdma.wire.rest import NodeReport, decode_report
from k8s_rdma.wire.state import HEADER, Kind, decode_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from k8s_rdma.config.devices import DevicePluginConfig
    from k8s_rdma.doctor.collectors.host import Host, Process

_TIMEOUT_S = 5.0
_LEDGER_FILES = ("", "-wal")


def process_facts(state_socket: Path, *, server: str | None, plugin: str | None) -> ProcessFacts:
    """What the agent, and the two at these URLs, answer; None for those that should not be there."""
    report, why = ask_agent(state_socket)
    deletions = state_socket.with_name(DIRECTORY)
    return ProcessFacts(
        socket=str(state_socket),
        report=report,
        why=why,
        server=_fetch(server, version_at="/openapi.json", read=_in_openapi) if server else None,
        plugin=_fetch(plugin, version_at="/metrics", read=in_metrics) if plugin else None,
        version=__version__,
        leftovers=tuple(sorted(deferred_deletes_in(deletions))),
        left_in=str(deletions),
    )


def ledger_facts(path: Path, *, told_by: str) -> LedgerFacts:
    """told_by: the agent that has it open; empty when none answers. OSError where it cannot be read.

    A copy is read: looking must not lock it, nor bring the file of an older program up to date.
    """
    if told_by or not path.exists():
        return LedgerFacts(path=str(path), exists=bool(told_by), source=told_by)
    with tempfile.TemporaryDirectory(prefix="k8s-rdma-") as directory:
        copy = Path(directory) / path.name
        for suffix in _LEDGER_FILES:
            if (file := path.with_name(path.name + suffix)).exists():
                shutil.copyfile(file, copy.with_name(copy.name + suffix))
        try:
            with closing(Receipts(copy)) as receipts:
                found = tuple(receipts.load().receipts.values())
        except LedgerError as error:
            return LedgerFacts(
                path=str(path),
                exists=True,
                fault=str(error).replace(str(copy), str(path)),
                newer=isinstance(error, NewerLedgerError),
            )
    unfinished = (each for each in found if each.phase is not Phase.ATTACHED)
    return LedgerFacts(
        path=str(path),
        exists=True,
        receipts=len(found),
        unfinished=tuple(f"{each.pod.namespace}/{each.pod.name} ({each.phase})" for each in unfinished),
    )


def ask_agent(path: Path) -> tuple[NodeReport | None, str]:
    """What the agent says first at its `state.sock`; None, and why, when it says nothing."""
    try:
        with socket.socket(socket.AF_UNIX) as reader:
            reader.settimeout(_TIMEOUT_S)
            reader.connect(str(path))
            kind, length = decode_header(_receive(reader, HEADER.size))
            body = _receive(reader, length)
        return (decode_report(body), "") if kind is Kind.REPORT else (None, f"it says {kind.name} first")
    except OSError as error:
        return None, f"{path}: {error.strerror or error}"
    except MalformedError as error:
        return None, f"{path}: {error}; is it of another version?"


def _receive(reader: socket.socket, count: int) -> bytes:
    data = reader.recv(count, socket.MSG_WAITALL)
    if len(data) != count:
        msg = "closed before the report was whole"
        raise OSError(msg)
    return data


def _fetch(url: str, *, version_at: str, read: Callable[[str], str]) -> Answer:
    """Whether it is alive; its version where the document that has it is open to us.

    Whose certificate it shows does not matter: it is on this node, and is told nothing. One that ends a
    connection by TLS which it has taken demands a certificate of ours, and is alive.
    """
    try:
        with httpx2.Client(base_url=url, timeout=_TIMEOUT_S, trust_env=False, verify=False) as client:
            alive = client.get("/healthz")
            response = client.get(version_at)
    except (httpx2.HTTPError, OSError) as error:
        demanding = url.startswith("https:") and isinstance(
            error, httpx2.RemoteProtocolError | httpx2.ReadError
        )
        return Answer(url=f"{url}/healthz", why="" if demanding else str(error) or type(error).__name__)
    return Answer(
        url=f"{url}/healthz",
        version=read(response.text) if response.status_code == httpx2.codes.OK else "",
        why="" if alive.status_code == httpx2.codes.OK else f"HTTP {alive.status_code}",
    )


def _in_openapi(text: str) -> str:
    """Of an OpenAPI document; empty of anything else."""
    try:
        return str(json.loads(text)["info"]["version"])
    except (ValueError, LookupError, TypeError):
        return ""


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
