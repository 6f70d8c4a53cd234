"""Access of viewers: everyone on this host, or users whom the API server knows by their bearer token.

A user sees the pods of the namespaces in which they may list pods, and sums of all others.

Anyone may send tokens that are no user's. Reviews of such tokens are limited, for each peer and altogether,
and are kept apart from those of users who logged in.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Protocol

from k8s_rdma.kube.access_reviews import ReviewsApi, User
from k8s_rdma.web.parties import FairTurns, Recent, party_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from k8s_rdma.http_server.asgi import Scope

REVIEW_S = 60.0
"""Seconds for which an answer of the API server counts; a right that is withdrawn lasts no longer."""

MAX_USERS = 4096
"""Tokens of users that are kept."""

MAX_PERMISSIONS = 16_384
"""Answers that are kept about a user and a namespace, in 7 MiB."""

MAX_REFUSED = 256
"""Tokens that are kept because the API server does not accept them."""

MAX_REFUSED_OF_PEER = 100
"""Tokens of one peer that the API server may refuse in `REVIEW_S`; a proxy is the peer of all its users."""

MAX_IN_FLIGHT = 8
MAX_IN_FLIGHT_OF_USER = 6
MAX_LOGINS_IN_FLIGHT = 3
"""Reviews in flight of tokens that were not accepted before."""

MAX_LOGINS_OF_PEER = 2
"""The part of them that one peer may have."""

MAX_NAMESPACES = 100
"""Namespaces that one request may ask about; the next request goes on with others."""

LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
_SCHEME = "bearer "

_ALLOWED, _NEW, _REFUSED = range(3)


@dataclass(frozen=True, slots=True)
class Visibility:
    """The namespaces whose pods a viewer may list. undecided: how many were not asked about yet."""

    namespaces: frozenset[str]
    undecided: int = 0


class Viewer(Protocol):
    """Someone whose request is admitted."""

    @property
    def party(self) -> str:
        """The party as in `parties`: its share of the resources of all viewers is bounded."""
        ...

    async def visibility(self, namespaces: Collection[str]) -> Visibility:
        """Find those of the namespaces whose pods they may list. Raises `kube.errors.API_ERRORS`.

        namespaces: those to ask about first come first.
        """
        ...


@dataclass(frozen=True, slots=True)
class Denial:
    """An HTTP status, and why."""

    status: int
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)


class AccessRule(Protocol):
    """The rule by which requests are admitted."""

    async def admit(self, scope: Scope) -> Viewer | Denial:
        """Return the viewer of a request. Raises `kube.errors.API_ERRORS`."""
        ...


class Everyone:
    """A viewer who sees everything. All of this host are one party: a user there has all its addresses."""

    party = "this host"

    async def visibility(self, namespaces: Collection[str]) -> Visibility:
        """Return all of them."""
        return Visibility(frozenset(namespaces))


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


def _unauthorized(message: str) -> Denial:
    return Denial(401, message, {"www-authenticate": "Bearer"})


class ReviewedAccess:
    """Admits users whom the API server knows, and has it decide on each namespace."""

    def __init__(self, api: ReviewsApi, clock: Callable[[], float]) -> None:
        self._api = api
        self._clock = clock
        self._users: Recent[bytes, User] = Recent(clock, MAX_USERS, lasts_s=REVIEW_S)
        self._refused: Recent[bytes, Denial] = Recent(clock, MAX_REFUSED, lasts_s=REVIEW_S)
        self._refused_of: Counter[str] = Counter()
        self._refused_since = clock()
        self._permissions: Recent[tuple[User, str], bool] = Recent(clock, MAX_PERMISSIONS, lasts_s=REVIEW_S)
        self._calls = FairTurns(MAX_IN_FLIGHT, of_party=MAX_IN_FLIGHT_OF_USER)
        self._logins = FairTurns(MAX_LOGINS_IN_FLIGHT, of_party=MAX_LOGINS_OF_PEER)

    async def admit(self, scope: Scope) -> Viewer | Denial:
        """Check the bearer token."""
        values = [value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"]
        token = values[0][len(_SCHEME) :].strip() if len(values) == 1 else ""
        if not token or not values[0].lower().startswith(_SCHEME):
            return _unauthorized("this page requires `Authorization: Bearer` with a token of the cluster")
        found = await self._authenticate(token, peer=scope["client"][0] if scope["client"] else "")
        return found if isinstance(found, Denial) else _ReviewedViewer(self, found)

    async def _authenticate(self, token: str, peer: str) -> User | Denial:
        digest = sha256(token.encode("latin-1")).digest()
        if found := self._recent(digest):
            return found
        former = self._users.last(digest)
        turn = self._logins.turn(peer) if former is None else self._calls.turn(party_of(former[1].username))
        async with turn:
            if found := self._recent(digest):  # another request has asked meanwhile
                return found
            if former is None and self._refusals_of(peer) >= MAX_REFUSED_OF_PEER:
                message = "too many tokens from your address that the API server does not accept"
                return Denial(429, message, {"retry-after": f"{REVIEW_S:.0f}"})
            user = await self._api.authenticate(token)
            if user is not None:
                self._users.put(digest, user, party=party_of(user.username))
                return user
            self._refused_of[peer] += 1
            denial = _unauthorized("the API server does not accept this token")
            self._refused.put(digest, denial, party=peer)
            return denial

    def _recent(self, digest: bytes) -> User | Denial | None:
        """Return the latest answer about a token, while it counts."""
        return self._users.get(digest) or self._refused.get(digest)

    def _refusals_of(self, peer: str) -> int:
        """Return the number of a peer's refused tokens in the present period of `REVIEW_S`."""
        if self._clock() - self._refused_since >= REVIEW_S:
            self._refused_of.clear()
            self._refused_since = self._clock()
        return self._refused_of[peer]

    async def visibility(self, user: User, namespaces: Collection[str]) -> Visibility:
        """Find the namespaces whose pods a user may list, by answers that still count, and by new ones.

        Ask first about those that the user could see, then about new ones, then about those that were asked
        about longest ago. So visible namespaces stay visible, and after enough requests all that are allowed
        are visible.
        """
        current = {name: self._permissions.get((user, name)) for name in namespaces}
        last = {
            name: self._permissions.last((user, name)) for name, answer in current.items() if answer is None
        }
        queue = sorted(last, key=lambda name: _urgency(last[name]))
        candidates = queue[:MAX_NAMESPACES]
        answers = await asyncio.gather(*(self.may_list_pods(user, name) for name in candidates))
        current.update(zip(candidates, answers, strict=True))
        undecided = sum(_urgency(last[name])[0] < _REFUSED for name in queue[MAX_NAMESPACES:])
        return Visibility(frozenset(name for name, answer in current.items() if answer), undecided)

    async def may_list_pods(self, user: User, namespace: str) -> bool:
        """Report whether a user may list pods of a namespace; of all for an empty one."""
        allowed = self._permissions.get((user, namespace))
        if allowed is None:
            party = party_of(user.username)
            async with self._calls.turn(party):
                allowed = self._permissions.get((user, namespace))  # another request may have asked meanwhile
                if allowed is None:
                    allowed = await self._api.may_list_pods(user, namespace)
                    self._permissions.put((user, namespace), allowed, party=party)
        return allowed


@dataclass(frozen=True, slots=True)
class _ReviewedViewer:
    access: ReviewedAccess
    user: User

    @property
    def party(self) -> str:
        """Return the party of the user."""
        return party_of(self.user.username)

    async def visibility(self, namespaces: Collection[str]) -> Visibility:
        """Ask about all namespaces at once, then about each."""
        if not namespaces or await self.access.may_list_pods(self.user, ""):
            return Visibility(frozenset(namespaces))
        return await self.access.visibility(self.user, namespaces)


def _urgency(last: tuple[float, bool] | None) -> tuple[int, float]:
    """Order namespaces to ask about, by the time and the content of the last answer."""
    if last is None:
        return _NEW, 0.0
    answered_at, allowed = last
    return (_ALLOWED if allowed else _REFUSED), answered_at
