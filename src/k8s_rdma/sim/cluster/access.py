"""Who asks the API server stand-in, and whether roles allow it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from k8s_rdma.sim.cluster.rbac import ADMIN, ANONYMOUS, User, allowed
from k8s_rdma.sim.cluster.status import forbidden, unauthorized

if TYPE_CHECKING:
    from k8s_rdma.sim.cluster.http_server import Request
    from k8s_rdma.sim.cluster.resources import Target
    from k8s_rdma.sim.cluster.store import Store

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True, slots=True)
class Access:
    """The bearer tokens that are known, and whose each is."""

    users: dict[str, User] = field(default_factory=dict)

    def token_for(self, user: User = ADMIN) -> str:
        """A new token."""
        token = secrets.token_urlsafe(24)
        self.users[token] = user
        return token

    def user_of(self, request: Request) -> User:
        """Whoever sends this; StatusError 401 for a token that is not known."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return ANONYMOUS
        if token not in self.users:
            raise unauthorized()
        return self.users[token]

    def check(self, request: Request, target: Target, store: Store) -> None:
        """StatusError 401 or 403 unless the roles in the store allow it."""
        user, verb = self.user_of(request), _verb(request, target)
        if not allowed(user, verb, target, store):
            raise forbidden(user.name, verb, target)


def _verb(request: Request, target: Target) -> str:
    if request.method != "GET":
        return _VERBS.get(request.method, request.method.lower())
    if target.name:
        return "get"
    return "watch" if request.query.get("watch") in {"1", "true"} else "list"
