"""The command line of the stand-ins, their configuration files, and the kubeconfig for their clients.

Each stand-in is a process that reports when it is ready and stops cleanly on SIGTERM or SIGINT.

Source: `k8s.io/kube-scheduler/config/v1` for KubeSchedulerConfiguration. The extenders, the backoffs and
the name of the first profile are used. Other keys are ignored, but unknown keys of an extender are errors.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import signal
import sys
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import yaml

from k8s_rdma.errors import K8sRdmaError, MalformedError
from k8s_rdma_demo.cluster.api import ApiConfig, serving_api
from k8s_rdma_demo.cluster.controller_manager import GRACE_S, ManagerConfig, managing
from k8s_rdma_demo.cluster.dynamic_resources import controlling_claims
from k8s_rdma_demo.cluster.extender_client import ExtenderConfig
from k8s_rdma_demo.cluster.kubelet import running_kubelet
from k8s_rdma_demo.cluster.node_devices import CDI_DIRS, DevicesConfig, KubeletConfig
from k8s_rdma_demo.cluster.objects import JsonObject, parse_resource_type
from k8s_rdma_demo.cluster.pod_strategy import TOLERATED_S
from k8s_rdma_demo.cluster.scheduler import SchedulerConfig, scheduling
from k8s_rdma_demo.kubelet.device_manager import KUBELET_SOCKET, DeviceManagerConfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

SYSTEM_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
"""The namespaces that an API server makes at its first start."""

_NAME = "k8s-rdma-sim"


class _ManagedResource(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    name: str
    ignored_by_scheduler: bool = False


class _Extender(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    url_prefix: str = msgspec.field(name="urlPrefix")
    filter_verb: str = ""
    prioritize_verb: str = ""
    preempt_verb: str = ""
    bind_verb: str = ""
    weight: int = 1
    node_cache_capable: bool = False
    managed_resources: tuple[_ManagedResource, ...] = ()
    ignorable: bool = False
    http_timeout: str = msgspec.field(name="httpTimeout", default="5s")
    enable_https: bool = msgspec.field(name="enableHTTPS", default=False)


class _Profile(msgspec.Struct, frozen=True, rename="camel"):
    scheduler_name: str = "default-scheduler"


class _Configuration(msgspec.Struct, frozen=True, rename="camel"):
    kind: str
    extenders: tuple[_Extender, ...] = ()
    profiles: tuple[_Profile, ...] = (_Profile(),)
    pod_initial_backoff_seconds: float = 1
    pod_max_backoff_seconds: float = 10


def rdma_extender(url_prefix: str) -> ExtenderConfig:
    """Return the registration of this project's extender, as a file would have it; url_prefix: e.g. `http://host/scheduler`."""
    return ExtenderConfig(
        url_prefix=url_prefix,
        filter_verb="rdma_scheduling",
        prioritize_verb="prioritize",
        preempt_verb="preempt",
        bind_verb="bind",
        node_cache_capable=True,
    )


def load_scheduler_config(path: Path, *, seed: int | None = None) -> SchedulerConfig:
    """Read a KubeSchedulerConfiguration file; MalformedError names the fault in it."""
    try:
        document = msgspec.yaml.decode(path.read_bytes(), type=_Configuration)
    except msgspec.MsgspecError as error:
        msg = f"{path}: {error}"
        raise MalformedError(msg) from error
    if document.kind != "KubeSchedulerConfiguration":
        msg = f"{path}: kind: wanted KubeSchedulerConfiguration, found {document.kind}"
        raise MalformedError(msg)
    return SchedulerConfig(
        name=document.profiles[0].scheduler_name if document.profiles else _Profile().scheduler_name,
        extenders=tuple(_extender(path, extender) for extender in document.extenders),
        initial_backoff_s=document.pod_initial_backoff_seconds,
        max_backoff_s=document.pod_max_backoff_seconds,
        seed=seed,
    )


def _extender(path: Path, extender: _Extender) -> ExtenderConfig:
    if extender.enable_https or extender.url_prefix.startswith("https:"):
        msg = f"{path}: extender {extender.url_prefix}: TLS is not spoken here"
        raise MalformedError(msg)
    return ExtenderConfig(
        url_prefix=extender.url_prefix,
        filter_verb=extender.filter_verb,
        prioritize_verb=extender.prioritize_verb,
        preempt_verb=extender.preempt_verb,
        bind_verb=extender.bind_verb,
        weight=extender.weight,
        node_cache_capable=extender.node_cache_capable,
        managed_resources=frozenset(resource.name for resource in extender.managed_resources),
        ignored_resources=frozenset(
            resource.name for resource in extender.managed_resources if resource.ignored_by_scheduler
        ),
        ignorable=extender.ignorable,
        http_timeout_s=_seconds(path, extender.http_timeout),
    )


def _seconds(path: Path, duration: str) -> float:
    """`metav1.Duration`, e.g. `5s`, `1500ms`, `1m30s`."""
    parts = list(_DURATION.finditer(duration))
    if not parts or "".join(part[0] for part in parts) != duration:
        msg = f"{path}: httpTimeout: wanted a duration such as 5s or 1500ms, found {duration!r}"
        raise MalformedError(msg)
    return sum(float(part["number"]) * _SECONDS[part["unit"]] for part in parts)


def kubeconfig(server: str, *, namespace: str = "default", token: str = "") -> JsonObject:
    """A kubeconfig document with one context, without TLS.

    server: e.g. `http://127.0.0.1:8080`. token: identifies the user to the API server; empty: anonymous.
    """
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": _NAME,
        "clusters": [{"name": _NAME, "cluster": {"server": server}}],
        "users": [{"name": _NAME, "user": {"token": token} if token else {}}],
        "contexts": [{"name": _NAME, "context": {"cluster": _NAME, "user": _NAME, "namespace": namespace}}],
    }


def write_kubeconfig(path: Path, server: str, *, namespace: str = "default", token: str = "") -> Path:
    """Write `kubeconfig(server)` as YAML; returns the path."""
    document = kubeconfig(server, namespace=namespace, token=token)
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


def run(service: AbstractAsyncContextManager[str], ready_file: Path | None = None) -> None:
    """Run a service until the process gets a signal to stop.

    The service gives, once it is ready, its address or name as one word; `ready <word>` is then printed, and
    written to `ready_file`. An exception of the service ends the process.
    """
    asyncio.run(_run(service, ready_file))


async def _run(service: AbstractAsyncContextManager[str], ready_file: Path | None) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with service as address:
        _announce(f"ready {address}\n", ready_file)
        await stop.wait()


def _announce(line: str, ready_file: Path | None) -> None:
    if ready_file is not None:  # written atomically, for the process that waits for it
        written = ready_file.with_name(f".{ready_file.name}.new")
        written.write_text(line)
        written.replace(ready_file)
    sys.stdout.write(line)
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    """Run the stand-in that the arguments name until SIGTERM; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        service: AbstractAsyncContextManager[str] = options.service(options)
        run(service, options.ready_file)
    except (K8sRdmaError, OSError) as error:
        sys.stderr.write(f"{options.part}: {error}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m k8s_rdma_demo.cluster",
        description="The parts of Kubernetes that a test machine lacks. Each prints `ready <where>` once it "
        "works, and stops on SIGTERM.",
    )
    parts = parser.add_subparsers(dest="part", required=True)
    _add_api(parts.add_parser("api", help="the API server"))
    _add_scheduler(parts.add_parser("scheduler", help="the scheduler"))
    _add_controllers(parts.add_parser("controllers", help="the controller of ResourceClaims"))
    _add_workloads(
        parts.add_parser("workloads", help="the controllers of Deployments, ReplicaSets and nodes")
    )
    _add_kubelet(parts.add_parser("kubelet", help="the kubelet of one node, with its container runtime"))
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ready-file", type=Path, metavar="FILE", help="written once ready")


def _add_api(parser: argparse.ArgumentParser) -> None:
    _add_common(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0: any (%(default)s)")
    parser.add_argument("--kubeconfig", type=Path, metavar="FILE", help="write a kubeconfig for clients")
    parser.add_argument(
        "--resource",
        action="append",
        default=[],
        metavar="GROUP/VERSION/PLURAL/KIND[/namespaced]",
        help="serve this custom resource too; may be given repeatedly",
    )
    parser.add_argument(
        "--tolerated-s",
        type=int,
        default=TOLERATED_S,
        metavar="S",
        help="seconds for which pods tolerate a node that is not ready, unless they say so (%(default)s)",
    )
    parser.set_defaults(service=_api)


@asynccontextmanager
async def _api(options: argparse.Namespace) -> AsyncIterator[str]:
    config = ApiConfig(
        host=options.host,
        port=options.port,
        custom_resources=tuple(parse_resource_type(text) for text in options.resource),
        namespaces=SYSTEM_NAMESPACES,
        tolerated_s=options.tolerated_s,
    )
    async with serving_api(config) as api:
        if options.kubeconfig is not None:
            write_kubeconfig(options.kubeconfig, api.url)
        yield api.url


def _add_scheduler(parser: argparse.ArgumentParser) -> None:
    _add_common(parser)
    parser.add_argument("--server", required=True, metavar="URL", help="the API server")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--config", type=Path, metavar="FILE", help="KubeSchedulerConfiguration")
    source.add_argument(
        "--extender",
        metavar="URL",
        help="this project's extender, with all its verbs and nodes by name; e.g. http://127.0.0.1:8888/scheduler",
    )
    parser.add_argument("--seed", type=int, help="draw among equal nodes with this seed; else: first by name")
    parser.set_defaults(service=_scheduler)


@asynccontextmanager
async def _scheduler(options: argparse.Namespace) -> AsyncIterator[str]:
    if options.config is not None:
        config = load_scheduler_config(options.config, seed=options.seed)
    else:
        extenders = (rdma_extender(options.extender),) if options.extender else ()
        config = SchedulerConfig(seed=options.seed, extenders=extenders)
    async with scheduling(options.server, config):
        yield config.name


def _add_controllers(parser: argparse.ArgumentParser) -> None:
    _add_common(parser)
    parser.add_argument("--server", required=True, metavar="URL", help="the API server")
    parser.set_defaults(service=_controllers)


@asynccontextmanager
async def _controllers(options: argparse.Namespace) -> AsyncIterator[str]:
    async with controlling_claims(options.server):
        yield str(options.server)


def _add_workloads(parser: argparse.ArgumentParser) -> None:
    _add_common(parser)
    parser.add_argument("--server", required=True, metavar="URL", help="the API server")
    parser.add_argument(
        "--grace-s",
        type=float,
        default=GRACE_S,
        metavar="S",
        help="seconds after which a node that renews no Lease is unreachable (%(default)s)",
    )
    parser.set_defaults(service=_workloads)


@asynccontextmanager
async def _workloads(options: argparse.Namespace) -> AsyncIterator[str]:
    async with managing(options.server, ManagerConfig(grace_s=options.grace_s)):
        yield str(options.server)


def _add_kubelet(parser: argparse.ArgumentParser) -> None:
    _add_common(parser)
    parser.add_argument("--server", required=True, metavar="URL", help="the API server")
    parser.add_argument("--node", required=True, metavar="NAME", help="the node")
    parser.add_argument("--node-ip", metavar="ADDRESS", help="its address; default: of its Node object")
    _add_runtime(parser.add_argument_group("container runtime", "a real one, or one that only runs networks"))
    parser.add_argument(
        "--state-dir",
        type=Path,
        metavar="DIR",
        help="where sandboxes are recorded, one JSON file each (`sandboxes` beside the namespaces)",
    )
    parser.add_argument(
        "--lease-s",
        type=float,
        metavar="S",
        help="seconds for which the node's Lease lasts, renewed four times as often; none without",
    )
    parser.add_argument(
        "--late-delete-s",
        type=float,
        default=20.0,
        metavar="S",
        help="seconds from a pod's end to the DELs without a namespace; negative: none (%(default)s)",
    )
    _add_devices(parser.add_argument_group("device plugins", "without their directory, kubelet has none"))
    parser.set_defaults(service=_kubelet)


def _add_runtime(parser: argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--runtime-endpoint",
        type=Path,
        metavar="FILE",
        help="socket of a real one (/run/containerd/containerd.sock); needs devices and --state-dir",
    )
    parser.add_argument("--conflist", type=Path, metavar="FILE", help="the CNI network")
    parser.add_argument(
        "--cni-path",
        default=[],
        action="append",
        type=Path,
        metavar="DIR",
        help="directory with CNI plugins; may be given repeatedly",
    )
    parser.add_argument("--netns-dir", type=Path, metavar="DIR", help="where pods' namespaces are bound")


def _check_runtime(options: argparse.Namespace) -> None:
    real = options.runtime_endpoint is not None
    needed = ("device_plugin_dir", "state_dir") if real else ("conflist", "cni_path", "netns_dir")
    missing = [f"--{name.replace('_', '-')}" for name in needed if not getattr(options, name)]
    if missing:
        condition = "with" if real else "without"
        raise MalformedError(f"needed {condition} --runtime-endpoint: {', '.join(missing)}")


def _add_devices(parser: argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--device-plugin-dir",
        type=Path,
        metavar="DIR",
        help="of kubelet's and the plugins' sockets (/var/lib/kubelet/device-plugins on a real node)",
    )
    parser.add_argument(
        "--pod-resources-socket",
        type=Path,
        metavar="FILE",
        help="of the PodResources API (`pod-resources/kubelet.sock` beside that directory)",
    )
    parser.add_argument(
        "--cdi-dir",
        action="append",
        type=Path,
        metavar="DIR",
        help="directory with CDI specifications; may be given repeatedly (/etc/cdi and /var/run/cdi)",
    )
    parser.add_argument(
        "--host-root",
        type=Path,
        default=Path("/"),
        metavar="DIR",
        help="where the host's device nodes are (%(default)s)",
    )

    parser.add_argument(
        "--registry",
        type=Path,
        metavar="DIR",
        help="where drivers of ResourceClaims register (/var/lib/kubelet/plugins_registry on a real node)",
    )


def _devices(options: argparse.Namespace) -> DevicesConfig | None:
    plugin_dir: Path | None = options.device_plugin_dir
    if plugin_dir is None:
        return None
    default_socket = plugin_dir.parent / "pod-resources" / KUBELET_SOCKET
    return DevicesConfig(
        manager=DeviceManagerConfig(
            plugin_dir=plugin_dir, pod_resources=options.pod_resources_socket or default_socket
        ),
        cdi_dirs=tuple(options.cdi_dir) if options.cdi_dir else CDI_DIRS,
        host_root=options.host_root,
        registry=options.registry,
    )


@asynccontextmanager
async def _kubelet(options: argparse.Namespace) -> AsyncIterator[str]:
    _check_runtime(options)
    config = KubeletConfig(
        node=options.node,
        node_ip=options.node_ip,
        conflist=options.conflist,
        cni_path=options.cni_path,
        netns_dir=options.netns_dir,
        runtime_endpoint=options.runtime_endpoint,
        state_dir=options.state_dir,
        late_delete_s=None if options.late_delete_s < 0 else options.late_delete_s,
        devices=_devices(options),
        lease_s=options.lease_s,
    )
    async with running_kubelet(options.server, config):
        yield config.node
