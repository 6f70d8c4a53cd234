"""Write a Binding, and know what became of it.

A reservation is held before its write begins, and is given up only when the pod is surely not bound
here: the API server refused the write, never got it, or shows the pod elsewhere or gone. A write without
an answer (a time-out) may still take effect for as long as the API server works on it (a minute by
default, kube-apiserver `--request-timeout`), so the pod is read back, and when it is not bound yet the
reservation stands until it is read again after that time.

The only precondition of the write is the pod's UID. Its resourceVersion is none: the one in filter's pod
is stale as soon as the scheduler writes the pod's status (a condition, a nominated node), as it does
between filter and bind; and what it would guard, the request annotation, is compared by the pod watch
(`Requests.compare`) and has no say any more once the placement is written.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self
from weakref import WeakValueDictionary

import structlog

from k8s_rdma.core.ids import NodeName, PodUid
from k8s_rdma.core.placement import Placement
from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.api import API_ERRORS, ApiRefusedError, ApiUncertainError, ApiUnreachableError, PodBinding
from k8s_rdma.wire.annotation import ANNOTATION, read_request
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, decode, encode

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from k8s_rdma.core.placement import PlacedInterface
    from k8s_rdma.errors import K8sRdmaError
    from k8s_rdma.extender.state import ClusterState, Reservation
    from k8s_rdma.kube.api import ClusterApi, PodView

_log = structlog.get_logger()
_CONFLICT = 409
_READ_AGAIN_S = 5.0
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """A pod that is to be bound to a node."""

    namespace: str
    name: str
    uid: PodUid
    node: NodeName

    @property
    def pod(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


def promised_to(pod: PodView, key: bytes | None) -> tuple[PlacedInterface, ...] | None:
    """What a bound pod's placement annotation promises it; None when it has none that counts.

    Without a key anybody may have written it, so it counts only if it gives what the pod asks for: then
    it says no more than where. Agents judge placements by the same rule.
    """
    text = pod.annotations.get(PLACEMENT_ANNOTATION)
    if text is None or pod.node is None:
        return None
    try:
        placement = decode(text, uid=pod.uid, node=pod.node, key=key)
        if key is None:
            _check_rates(pod, placement)
    except MalformedError as error:
        _log.warning("placement_ignored", pod=f"{pod.namespace}/{pod.name}", error=error.message)
        return None
    return placement.interfaces


def _check_rates(pod: PodView, placement: Placement) -> None:
    """Refuse a placement that does not give what the pod asks for.

    Not strict: unknown keys say nothing of rates, and it may have been bound where they are tolerated.
    """
    if placement.request() != read_request(pod.annotations.get(ANNOTATION), strict=False).request:
        msg = f"{PLACEMENT_ANNOTATION}: not signed, and its rates are not those of {ANNOTATION}"
        raise MalformedError(msg)


class Commits:
    """The writes; an async context manager that owns the reading again of pods in doubt.

    key: signs placements; None leaves them unsigned. settle_s: how long a write without an answer may
    still take effect. doubts: what reads pods again, one for each write without an answer.

    The state is in memory only: whoever comes after this process counts what is written, and must not
    promise anything while there is something `undecided`.
    """

    def __init__(
        self,
        state: ClusterState,
        api: ClusterApi,
        clock: Callable[[], float],
        *,
        key: bytes | None = None,
        settle_s: float = 60.0,
    ) -> None:
        self._state = state
        self._api = api
        self._clock = clock
        self._key = key
        self._settle_s = settle_s
        self._locks: WeakValueDictionary[PodUid, asyncio.Lock] = WeakValueDictionary()
        self._tasks = asyncio.TaskGroup()
        self.doubts: dict[asyncio.Task[None], tuple[Bind, Reservation]] = {}
        self._under_way: list[Bind] = []

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self.doubts:
            task.cancel()
        await self._tasks.__aexit__(kind, error, trace)

    def undecided(self) -> list[str]:
        """The pods, `namespace/name`, that a write of this process may yet bind."""
        in_doubt = [bind for bind, doubted in self.doubts.values() if self._stands(bind, doubted)]
        return sorted({bind.pod for bind in (*self._under_way, *in_doubt)})

    async def finish(self, within_s: float) -> None:
        """Return when nothing is undecided any more, or after that time; logs what is left then."""
        began = self._clock()
        while self.undecided() and self._clock() - began < within_s:  # noqa: ASYNC110  it ends in many places
            await asyncio.sleep(min(_LOOK_S, within_s))
        if left := self.undecided():
            _log.error("binds_left_in_doubt", pods=left, settle_s=self._settle_s)

    def lock(self, uid: PodUid) -> asyncio.Lock:
        """To be held while the pod is bound: one bind of a pod at a time."""
        return self._locks.setdefault(uid, asyncio.Lock())

    async def write(self, bind: Bind, reservation: Reservation | None) -> str:
        """Bind the pod; answers the error's text, empty on success.

        reservation: is held in the state already; None for a pod that asks for nothing.
        """
        if reservation is None:
            return await self._write(bind, None)
        self._under_way.append(bind)  # stays there when this is cancelled: nobody knows what became of it
        error = await self._write(bind, reservation)
        self._under_way.remove(bind)
        return error

    async def _write(self, bind: Bind, reservation: Reservation | None) -> str:
        try:
            await self._api.bind_pod(self._binding(bind, reservation))
        except ApiUnreachableError as error:
            self._unbound(bind, reservation, sure=True)
            return error.message
        except ApiRefusedError as error:
            if error.status == _CONFLICT:
                return await self._read_back(bind, reservation, error, sure=True)
            self._unbound(bind, reservation, sure=True)
            return error.message
        except ApiUncertainError as error:
            return await self._read_back(bind, reservation, error, sure=False)
        self._state.written(bind.node, bind.uid)
        return ""

    def _binding(self, bind: Bind, reservation: Reservation | None) -> PodBinding:
        annotations = {}
        if reservation is not None:
            placement = Placement(node=bind.node, interfaces=reservation.interfaces)
            annotations[PLACEMENT_ANNOTATION] = encode(placement, bind.uid, self._key)
        return PodBinding(
            namespace=bind.namespace, name=bind.name, uid=bind.uid, node=bind.node, annotations=annotations
        )

    async def _read_back(
        self, bind: Bind, reservation: Reservation | None, why: K8sRdmaError, *, sure: bool
    ) -> str:
        """What became of a write that failed because of `why`; `sure`: that one did not happen itself."""
        try:
            pod = await self._api.get_pod(bind.namespace, bind.name)
        except API_ERRORS as error:
            self._unbound(bind, reservation, sure=False)
            return f"{why.message}; then {error.message}"
        if pod is None or pod.uid != bind.uid:
            self._state.withdraw(bind.node, bind.uid)
            return f"pod {bind.pod} with UID {bind.uid} does not exist any more"
        if pod.node is None:
            self._unbound(bind, reservation, sure=sure)
            return why.message
        if pod.node != bind.node:
            self._state.withdraw(bind.node, bind.uid)
            return f"pod {bind.pod} is already bound to node {pod.node}"
        return self._found_here(bind, reservation, pod)

    def _found_here(self, bind: Bind, reservation: Reservation | None, pod: PodView) -> str:
        """The pod is bound to the wanted node: by an earlier write of ours, or by someone else."""
        if reservation is None:
            return ""
        interfaces = promised_to(pod, self._key)
        if interfaces is None:
            self._state.withdraw(bind.node, bind.uid)
            return f"pod {bind.pod} is already bound to node {pod.node}, without a placement of this extender"
        self._state.written(bind.node, bind.uid, interfaces)
        return ""

    def _unbound(self, bind: Bind, reservation: Reservation | None, *, sure: bool) -> None:
        if reservation is None:
            return
        if sure and not reservation.in_doubt:
            self._state.withdraw(bind.node, bind.uid)
            return
        doubted = self._state.doubt(bind.node, bind.uid)
        if doubted is None:
            return
        task = self._tasks.create_task(self._settle(bind, doubted))
        self.doubts[task] = bind, doubted
        task.add_done_callback(self._forget)
        _log.warning("bind_in_doubt", pod=bind.pod, uid=bind.uid, node=bind.node)

    def _forget(self, task: asyncio.Task[None]) -> None:
        del self.doubts[task]

    def _stands(self, bind: Bind, doubted: Reservation) -> bool:
        return self._state.reservation(bind.node, bind.uid) is doubted

    async def _settle(self, bind: Bind, doubted: Reservation) -> None:
        """Read the pod again when no write of it can be under way any more, until the API server answers."""
        await asyncio.sleep(self._settle_s)
        while True:
            async with self.lock(bind.uid):
                if not self._stands(bind, doubted):
                    return  # the pod was seen bound or gone, or a later bind took over
                if await self._settled(bind, doubted):
                    return
            await asyncio.sleep(_READ_AGAIN_S)

    async def _settled(self, bind: Bind, doubted: Reservation) -> bool:
        try:
            pod = await self._api.get_pod(bind.namespace, bind.name)
        except API_ERRORS as error:
            _log.warning("bind_still_in_doubt", pod=bind.pod, node=bind.node, error=error.message)
            return False
        bound_here = pod is not None and pod.uid == bind.uid and pod.node == bind.node
        if pod is None or not bound_here or self._found_here(bind, doubted, pod):
            self._state.withdraw(bind.node, bind.uid)
        _log.info("bind_settled", pod=bind.pod, node=bind.node, bound=bound_here)
        return True
