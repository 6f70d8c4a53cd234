"""Authentication of bearer tokens and authorization of their users, by the API server.

Sources: `authentication.k8s.io/v1` TokenReview and `authorization.k8s.io/v1` SubjectAccessReview.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from k8s_rdma.kube.documents import named_errors

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx2

_TOKEN_REVIEWS = "apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105  a path
_ACCESS_REVIEWS = "apis/authorization.k8s.io/v1/subjectaccessreviews"


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """The user of a token, as the authorizers identify them."""

    username: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class ReviewsApi(Protocol):
    """The reviews of the API server. Both raise `kube.errors.API_ERRORS`."""

    async def authenticate(self, token: str) -> User | None:
        """Return the token's user, if the API server accepts the token."""
        ...

    async def may_list_pods(self, user: User, namespace: str) -> bool:
        """Report whether the user may list pods of a namespace; of all namespaces for an empty one."""
        ...


class _UserInfo(msgspec.Struct, frozen=True):
    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] | None = None
    extra: dict[str, tuple[str, ...]] | None = None


class _TokenStatus(msgspec.Struct, frozen=True):
    authenticated: bool = False
    user: _UserInfo = _UserInfo()


class _TokenReview(msgspec.Struct, frozen=True):
    status: _TokenStatus = _TokenStatus()


class _AccessStatus(msgspec.Struct, frozen=True):
    allowed: bool = False


class _AccessReview(msgspec.Struct, frozen=True):
    status: _AccessStatus = _AccessStatus()


_token_review = msgspec.json.Decoder(_TokenReview)
_access_review = msgspec.json.Decoder(_AccessReview)


class AccessReviews:
    """Implements `ReviewsApi`."""

    _http: httpx2.AsyncClient

    async def authenticate(self, token: str) -> User | None:
        """`POST /apis/authentication.k8s.io/v1/tokenreviews`."""
        review = _review("authentication.k8s.io/v1", "TokenReview", {"token": token})
        with named_errors("review a token"):
            status = _token_review.decode(await self._post(_TOKEN_REVIEWS, review)).status
        if not (status.authenticated and status.user.username):
            return None
        extra = sorted((status.user.extra or {}).items())
        return User(
            username=status.user.username,
            uid=status.user.uid,
            groups=status.user.groups or (),
            extra=tuple(extra),
        )

    async def may_list_pods(self, user: User, namespace: str) -> bool:
        """`POST /apis/authorization.k8s.io/v1/subjectaccessreviews`."""
        spec = {
            "user": user.username,
            "uid": user.uid,
            "groups": list(user.groups),
            "extra": dict(user.extra),
            "resourceAttributes": {"verb": "list", "resource": "pods", "namespace": namespace},
        }
        review = _review("authorization.k8s.io/v1", "SubjectAccessReview", spec)
        with named_errors(f"review access of {user.username}"):
            return _access_review.decode(await self._post(_ACCESS_REVIEWS, review)).status.allowed

    async def _post(self, path: str, review: Mapping[str, Any]) -> bytes:
        reply = await self._http.post(path, json=dict(review))
        return reply.raise_for_status().content


def _review(version: str, kind: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "spec": dict(spec)}
