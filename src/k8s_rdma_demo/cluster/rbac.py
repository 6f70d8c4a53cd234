"""Authorization by the roles and bindings in the store.

Only rules about resources count. Aggregated ClusterRoles are not aggregated.

Source: `pkg/registry/rbac/validation/rule.go`, `plugin/pkg/auth/authorizer/rbac`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from k8s_rdma_demo.cluster.objects import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    ROLE_BINDINGS,
    ROLES,
    JsonObject,
    Target,
    namespace_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma_demo.cluster.store import Store

MASTERS = "system:masters"
"""The group that may do everything."""

_AUTHENTICATED = "system:authenticated"


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A user and its groups."""

    name: str
    groups: frozenset[str] = frozenset()


ADMIN = User(name="admin", groups=frozenset({MASTERS, _AUTHENTICATED}))
ANONYMOUS = User(name="system:anonymous", groups=frozenset({"system:unauthenticated"}))


def service_account(namespace: str, name: str) -> User:
    """The user that a service account is."""
    groups = {"system:serviceaccounts", f"system:serviceaccounts:{namespace}", _AUTHENTICATED}
    return User(name=f"system:serviceaccount:{namespace}:{name}", groups=frozenset(groups))


class Rule(msgspec.Struct, frozen=True, rename="camel"):
    """A rule: `rbac/v1.PolicyRule`."""

    verbs: tuple[str, ...]
    api_groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    resource_names: tuple[str, ...] = ()

    def allows(self, verb: str, target: Target) -> bool:
        """Report whether the rule allows the verb on the target."""
        plural, sub = target.resource.plural, target.subresource
        named = {f"{plural}/{sub}", f"*/{sub}", "*"} if sub else {plural, "*"}
        return (
            not {verb, "*"}.isdisjoint(self.verbs)
            and not {target.resource.group, "*"}.isdisjoint(self.api_groups)
            and not named.isdisjoint(self.resources)
            and (not self.resource_names or target.name in self.resource_names)
        )


class Role(msgspec.Struct, frozen=True):
    """A Role or ClusterRole."""

    rules: tuple[Rule, ...] | None = None


class Subject(msgspec.Struct, frozen=True):
    """A user, a group or a service account that a binding names."""

    kind: str
    name: str
    namespace: str = ""

    def covers(self, user: User) -> bool:
        """Report whether the subject is that user."""
        match self.kind:
            case "User":
                return user.name == self.name
            case "Group":
                return self.name in user.groups
            case "ServiceAccount":
                return user.name == service_account(self.namespace, self.name).name
        return False


class RoleRef(msgspec.Struct, frozen=True):
    """The role that a binding grants."""

    kind: str
    name: str


class RoleBinding(msgspec.Struct, frozen=True, rename="camel"):
    """A RoleBinding or ClusterRoleBinding."""

    role_ref: RoleRef
    subjects: tuple[Subject, ...] | None = None


def allowed(user: User, verb: str, target: Target, store: Store) -> bool:
    """Report whether the roles in the store allow the request."""
    if MASTERS in user.groups:
        return True
    return any(rule.allows(verb, target) for rule in _rules(user, target.namespace, store))


def _rules(user: User, namespace: str, store: Store) -> Iterator[Rule]:
    """Return the user's rules for the cluster and for the namespace."""
    bindings = store.items(CLUSTER_ROLE_BINDINGS)
    if namespace:
        bindings += store.items(ROLE_BINDINGS, namespace)
    for obj in bindings:
        binding = msgspec.convert(obj, RoleBinding)
        if any(subject.covers(user) for subject in binding.subjects or ()):
            yield from _rules_of(binding.role_ref, obj, store)


def _rules_of(ref: RoleRef, binding: JsonObject, store: Store) -> tuple[Rule, ...]:
    if ref.kind == "ClusterRole":
        role = store.get(CLUSTER_ROLES, ("", ref.name))
    else:
        role = store.get(ROLES, (namespace_of(binding), ref.name))
    return (msgspec.convert(role, Role).rules or ()) if role else ()
