"""Rights of each process at the API server, which the roles of deploy/rbac grant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from k8s_rdma.core.types import GangApi
from k8s_rdma.doctor.subject import Subject
from k8s_rdma.wire.rdma_node import GROUP, PLURAL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from k8s_rdma.doctor.finding import Finding


RIGHTS = Subject(
    "rights",
    "Rights",
    "Of the three service accounts, without those for `stuckAfterS` and `vfResource`.",
)
RIGHTS_OK = RIGHTS.ok()
RIGHT_MISSING = RIGHTS.error("missing")
NO_ACCOUNT = RIGHTS.warning("no-account")

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """A verb on a resource of an API group, in a namespace or in all.

    name: the object; empty for all objects.
    """

    group: str
    resource: str
    verb: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        scope = f" in {self.namespace}" if self.namespace else ""
        named = f" {self.name}" if self.name else ""
        group = f".{self.group}" if self.group else ""
        return f"{self.verb} {self.resource}{group}{named}{scope}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RightsFacts:
    """The account of each process, `namespace/name` (empty if it does not exist), and missing rights."""

    processes: tuple[tuple[str, str, tuple[Right, ...]], ...]


@RIGHTS.check(RightsFacts)
def check_rights(facts: RightsFacts) -> Iterator[Finding]:
    """Check the rights of each process that calls the API server."""
    for process, account, missing in facts.processes:
        if not account:
            yield NO_ACCOUNT(
                f"no service account k8s-rdma-{process}",
                about=process,
                source="serviceaccounts",
                expected=f"deploy/rbac/{process}.yaml, where the process has inCluster",
                fix=f"kubectl apply -f deploy/rbac/{process}.yaml",
            )
        elif missing:
            yield RIGHT_MISSING(
                f"may not: {'; '.join(map(str, missing))}",
                about=f"{process} ({account})",
                source="SubjectAccessReview",
                expected=f"the role of deploy/rbac/{process}.yaml",
                fix=f"kubectl apply -f deploy/rbac/{process}.yaml",
            )
        else:
            yield RIGHTS_OK(
                "may do all that it needs", about=f"{process} ({account})", source="SubjectAccessReview"
            )


def rights(process: str, *, leases: str, lease_of_binder: tuple[str, str], crd: bool) -> tuple[Right, ...]:
    """Return the rights that a process needs, without those of optional settings (stuckAfterS, vfResource).

    leases: the namespace of nodes' Leases.
    lease_of_binder: namespace and name of the extender's Lease.
    crd: whether nodes publish themselves, and the extender reads that.
    """
    match process:
        case "agent":
            return (*_agent(), *(_publisher(leases) if crd else ()))
        case "extender":
            return (*_extender(*lease_of_binder), *(_reader(leases) if crd else ()))
        case _:
            return tuple(_events("default"))


def _agent() -> Iterator[Right]:
    yield from _rights("", "pods", ("get", *_WATCH, "patch"))
    yield from _events()


def _publisher(leases: str) -> Iterator[Right]:
    yield from _rights("", "nodes", _WATCH)
    yield from _rights(GROUP, PLURAL, ("get", "list", "create"))
    yield Right(group=GROUP, resource=f"{PLURAL}/status", verb="update")
    yield from _rights(_COORDINATION, "leases", ("get", "create", "patch", "delete"), leases)


def _extender(namespace: str, name: str) -> Iterator[Right]:
    yield from _rights("", "pods", ("get", *_WATCH, "patch"))
    yield Right(group="", resource="pods/binding", verb="create")
    yield from _rights("", "nodes", (*_WATCH, "patch"))
    yield from _rights(_POLICY, "poddisruptionbudgets", _WATCH)
    for api in GangApi:
        yield Right(group=api.value, resource="podgroups", verb="get")
    yield Right(group=_COORDINATION, resource="leases", verb="create", namespace=namespace)
    for verb in ("get", "patch"):
        yield Right(group=_COORDINATION, resource="leases", verb=verb, namespace=namespace, name=name)


def _reader(leases: str) -> Iterator[Right]:
    yield from _rights(GROUP, PLURAL, _WATCH)
    yield from _rights(_COORDINATION, "leases", _WATCH, leases)


def _events(namespace: str = "") -> Iterator[Right]:
    yield from _rights("", "events", ("create", "patch"), namespace)


def _rights(group: str, resource: str, verbs: tuple[str, ...], namespace: str = "") -> Iterator[Right]:
    for verb in verbs:
        yield Right(group=group, resource=resource, verb=verb, namespace=namespace)
