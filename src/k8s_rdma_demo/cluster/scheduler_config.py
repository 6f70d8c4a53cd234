"""KubeSchedulerConfiguration: the file that a real kube-scheduler is configured with.

Source: `k8s.io/kube-scheduler/config/v1`. Of the file, the extenders, the backoffs and the first profile's
name are heeded; what else kube-scheduler knows is passed over, but not an extender's unknown key.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from k8s_rdma.errors import MalformedError
from k8s_rdma_demo.cluster.extender_client import ExtenderConfig
from k8s_rdma_demo.cluster.scheduler import SchedulerConfig

if TYPE_CHECKING:
    from pathlib import Path

_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


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
    """How this project's extender is registered, short of a file; url_prefix: e.g. `http://host/scheduler`."""
    return ExtenderConfig(
        url_prefix=url_prefix,
        filter_verb="rdma_scheduling",
        prioritize_verb="prioritize",
        preempt_verb="preempt",
        bind_verb="bind",
        node_cache_capable=True,
    )


def load_scheduler_config(path: Path, *, seed: int | None = None) -> SchedulerConfig:
    """Read a KubeSchedulerConfiguration file; MalformedError names what is wrong in it."""
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
