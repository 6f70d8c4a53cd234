"""What each process asks of the API server; deploy/rbac grants it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.core.gang import GangApi
from k8s_rdma.doctor.cluster.objects import Right
from k8s_rdma.wire.rdma_node import GROUP, PLURAL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_COORDINATION, _POLICY = "coordination.k8s.io", "policy"
_WATCH = ("list", "watch")

ACCOUNTS: Mapping[str, str] = {
    "agent": "k8s-rdma-agent",
    "extender": "k8s-rdma-extender",
    "device-plugin": "k8s-rdma-device-plugin",
}
"""The service account of each process, by its name."""
OPTIONAL = frozenset({"device-plugin"})
"""Processes that do their work without an account: Events are all that they need one for."""


def rights(process: str, *, leases: str, lease_of_binder: tuple[str, str], crd: bool) -> tuple[Right, ...]:
    """What a process cannot do without; what only some settings need (stuckAfterS, vfResource) is left out.

    leases: the namespace of nodes' Leases. lease_of_binder: namespace and name of the extender's. crd:
    whether nodes publish themselves, and the extender reads that.
    """
    match process:
        case "agent":
            return (*_agent(), *(_publisher(leases) if crd else ()))
        case "extender":
            return (*_extender(*lease_of_binder), *(_reader(leases) if crd else ()))
        case _:
            return tuple(_events("default"))


def _agent() -> Iterator[Right]:
    yield from _each("", "pods", ("get", *_WATCH, "patch"))
    yield from _events()


def _publisher(leases: str) -> Iterator[Right]:
    yield from _each("", "nodes", _WATCH)
    yield from _each(GROUP, PLURAL, ("get", "create"))
    yield Right(group=GROUP, resource=f"{PLURAL}/status", verb="update")
    yield from _each(_COORDINATION, "leases", ("get", "create", "patch"), leases)


def _extender(namespace: str, name: str) -> Iterator[Right]:
    yield from _each("", "pods", ("get", *_WATCH, "patch"))
    yield Right(group="", resource="pods/binding", verb="create")
    yield from _each("", "nodes", (*_WATCH, "patch"))
    yield from _each(_POLICY, "poddisruptionbudgets", _WATCH)
    for api in GangApi:
        yield Right(group=api.value, resource="podgroups", verb="get")
    yield Right(group=_COORDINATION, resource="leases", verb="create", namespace=namespace)
    for verb in ("get", "patch"):
        yield Right(group=_COORDINATION, resource="leases", verb=verb, namespace=namespace, name=name)


def _reader(leases: str) -> Iterator[Right]:
    yield from _each(GROUP, PLURAL, _WATCH)
    yield from _each(_COORDINATION, "leases", _WATCH, leases)


def _events(namespace: str = "") -> Iterator[Right]:
    yield from _each("", "events", ("create", "patch"), namespace)


def _each(group: str, resource: str, verbs: tuple[str, ...], namespace: str = "") -> Iterator[Right]:
    for verb in verbs:
        yield Right(group=group, resource=resource, verb=verb, namespace=namespace)
