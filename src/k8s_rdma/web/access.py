"""Access of viewers: everyone on this host, or users whom the API server knows by their bearer token.

A user sees the pods of the namespaces in which they may list pods, and sums of all others.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from k8s_rdma.kube.access_reviews import ReviewsApi, User

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from k8s_rdma.http_server.asgi import Scope

REVIEW_S = 60.0
"""Seconds for which an answer of the API server counts; a right that is withdrawn lasts no longer."""

MAX_REVIEWS = 4096
"""Answers that are kept, of tokens and of namespaces each."""

MAX_IN_FLIGHT = 8
MAX_NAMESPACES = 100
"""Namespaces that one request may ask about; pods of others count as hidden."""

LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
_SCHEME = "bearer "

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Viewer(Protocol):
    """Someone whose request is admitted."""

    async def visible(self, namespaces: Collection[str]) -> frozenset[str]:
        """Return the namespaces of these whose pods they may list. Raises `kube.api.API_ERRORS`."""
        ...


@dataclass(frozen=True, slots=True)
class Denial:
    """An HTTP status, and why."""

    status: int
    message: str


class Access(Protocol):
    """The rule by which requests are admitted."""

    async def admit(self, scope: Scope) -> Viewer | Denial:
        """Return the viewer of a request. Raises `kube.api.API_ERRORS`."""
        ...


class Everyone:
    """A viewer who sees everything."""

    async def visible(self, namespaces: Collection[str]) -> frozenset[str]:
        """Return all of them."""
        return frozenset(namespaces)


class LoopbackAccess:
    """Admits requests to a name of this host.

    A page of another site may have its own name resolve to 127.0.0.1 (DNS rebinding), and would read this
    one in the viewer's browser: such a request names that site in `Host`.
    """

    async def admit(self, scope: Scope) -> Viewer | Denial:
        """Check the header `Host`."""
        host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
        if _host_name(host) in LOCAL_HOSTS:
            return Everyone()
        return Denial(403, "Host: this page is for this host alone; open it as http://127.0.0.1:PORT")


def _host_name(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()


class ReviewedAccess:
    """Admits users whom the API server knows, and has it decide on each namespace."""

    def __init__(self, api: ReviewsApi, clock: Callable[[], float]) -> None:
        self._api = api
        self._users: Recent[bytes, User | None] = Recent(clock)
        self._permissions: Recent[tuple[User, str], bool] = Recent(clock)
        self._calls = asyncio.Semaphore(MAX_IN_FLIGHT)

    async def admit(self, scope: Scope) -> Viewer | Denial:
        """Check the bearer token."""
        values = [value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"]
        if len(values) != 1 or not values[0].lower().startswith(_SCHEME):
            return Denial(401, "this page requires `Authorization: Bearer` with a token of the cluster")
        token = values[0][len(_SCHEME) :].strip()
        digest = sha256(token.encode("latin-1")).digest()
        if digest not in self._users:
            async with self._calls:
                self._users[digest] = await self._api.authenticate(token) if token else None
        user = self._users[digest]
        if user is None:
            return Denial(401, "the API server does not accept this token")
        return _ReviewedViewer(self, user)

    async def may_list_pods(self, user: User, namespace: str) -> bool:
        """Report whether a user may list pods of a namespace; of all for an empty one."""
        if (user, namespace) not in self._permissions:
            async with self._calls:
                self._permissions[user, namespace] = await self._api.may_list_pods(user, namespace)
        return self._permissions[user, namespace]


@dataclass(frozen=True, slots=True)
class _ReviewedViewer:
    access: ReviewedAccess
    user: User

    async def visible(self, namespaces: Collection[str]) -> frozenset[str]:
        """Ask about all namespaces at once, then about each."""
        if not namespaces or await self.access.may_list_pods(self.user, ""):
            return frozenset(namespaces)
        candidates = sorted(namespaces)[:MAX_NAMESPACES]
        answers = await asyncio.gather(
            *(self.access.may_list_pods(self.user, namespace) for namespace in candidates)
        )
        return frozenset(name for name, allowed in zip(candidates, answers, strict=True) if allowed)


class Recent(Generic[Key, Value]):
    """Values of the last `REVIEW_S`, the latest `MAX_REVIEWS` of them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._values: OrderedDict[Key, tuple[float, Value]] = OrderedDict()

    def __contains__(self, key: Key) -> bool:
        """Report whether there is a value that still counts."""
        entry = self._values.get(key)
        return entry is not None and self._clock() - entry[0] < REVIEW_S

    def __getitem__(self, key: Key) -> Value:
        return self._values[key][1]

    def __setitem__(self, key: Key, value: Value) -> None:
        self._values[key] = self._clock(), value
        self._values.move_to_end(key)
        while len(self._values) > MAX_REVIEWS:
            self._values.popitem(last=False)
