"""Users by bearer tokens, authorization by the roles and bindings in the store, and reviews of both.

Only rules about resources count. Aggregated ClusterRoles are not aggregated.

Source: `pkg/registry/rbac/validation/rule.go`, `plugin/pkg/auth/authorizer/rbac`,
`pkg/registry/authorization`, `pkg/registry/authentication/selfsubjectreview`.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from k8s_rdma_demo.cluster.objects import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    ROLE_BINDINGS,
    ROLES,
    JsonObject,
    ResourceType,
    Target,
    namespace_of,
)
from k8s_rdma_demo.cluster.status import bad_request, forbidden, unauthorized

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_rdma_demo.cluster.http_server import Request
    from k8s_rdma_demo.cluster.store import Store

MASTERS = "system:masters"
"""The group that may do everything."""

_AUTHENTICATED = "system:authenticated"

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


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


@dataclass(frozen=True, slots=True)
class Access:
    """The known bearer tokens, and the user of each."""

    users: dict[str, User] = field(default_factory=dict)

    def token_for(self, user: User = ADMIN) -> str:
        """Make a new token."""
        token = secrets.token_urlsafe(24)
        self.users[token] = user
        return token

    def user_of(self, request: Request) -> User:
        """Return the user of a request; StatusError 401 for an unknown token."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return ANONYMOUS
        if token not in self.users:
            raise unauthorized()
        return self.users[token]

    def check(self, request: Request, target: Target, store: Store) -> None:
        """Refuse (StatusError 401 or 403) requests that no role in the store allows."""
        user, verb = self.user_of(request), verb_of(request, target)
        if not allowed(user, verb, target, store):
            raise forbidden(user.name, verb, target)


def verb_of(request: Request, target: Target) -> str:
    """Return the verb of a request, as roles name it."""
    if request.method == "DELETE" and not target.name:
        return "deletecollection"
    if request.method != "GET":
        return _VERBS.get(request.method, request.method.lower())
    if target.name:
        return "get"
    return "watch" if request.query.get("watch") in {"1", "true"} else "list"


class _Attributes(msgspec.Struct, frozen=True):
    verb: str
    resource: str = ""
    group: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""


class _NonResource(msgspec.Struct, frozen=True):
    verb: str
    path: str


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    resource_attributes: _Attributes | None = None
    non_resource_attributes: _NonResource | None = None
    user: str = ""
    groups: tuple[str, ...] = ()
    namespace: str = ""


class _Review(msgspec.Struct, frozen=True):
    spec: _Spec = _Spec()


def review(kind: str, document: JsonObject, user: User, store: Store) -> JsonObject:
    """Return a review with its status; StatusError 400 for a malformed one.

    user: the sender of the request, and its subject unless it is a SubjectAccessReview.
    """
    try:
        spec = msgspec.convert(document, _Review).spec
    except msgspec.ValidationError as error:
        raise bad_request(str(error)) from error
    match kind:
        case "SelfSubjectReview":
            status: JsonObject = {"userInfo": {"username": user.name, "groups": sorted(user.groups)}}
        case "SelfSubjectRulesReview":
            status = _rules_review(user, spec.namespace, store)
        case "SubjectAccessReview":
            status = _access_review(User(name=spec.user, groups=frozenset(spec.groups)), spec, store)
        case _:
            status = _access_review(user, spec, store)
    return document | {"status": status}


def _access_review(user: User, spec: _Spec, store: Store) -> JsonObject:
    attributes = spec.resource_attributes
    if attributes is None:
        if spec.non_resource_attributes is None:
            raise bad_request("spec: resourceAttributes or nonResourceAttributes is required")
        return {"allowed": MASTERS in user.groups}
    kind = ResourceType(
        group=attributes.group, version="", plural=attributes.resource, kind="", namespaced=True
    )
    target = Target(
        resource=kind,
        namespace=attributes.namespace,
        name=attributes.name,
        subresource=attributes.subresource,
    )
    return {"allowed": allowed(user, attributes.verb, target, store)}


def _rules_review(user: User, namespace: str, store: Store) -> JsonObject:
    rules = list(_rules(user, namespace, store))
    if MASTERS in user.groups:
        rules.append(Rule(verbs=("*",), api_groups=("*",), resources=("*",)))
    return {
        "resourceRules": [msgspec.to_builtins(rule) for rule in rules],
        "nonResourceRules": [],
        "incomplete": False,
    }
