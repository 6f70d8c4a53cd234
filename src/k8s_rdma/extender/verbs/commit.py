"""Write a Binding, and know what became of it.

A reservation is held before its write begins, and is given up only when the pod is surely not bound
here: the API server refused the write, never got it, or shows the pod elsewhere, gone, or unbound and of
another version than the one that the write was made of, which it will refuse from then on (see `fence`).
So a write without an answer (a time-out) is settled at once by touching the pod. Only where that is refused,
or the API server is away, the reservation stands until the pod is read after all that was sent must be over
(a minute by default, kube-apiserver `--request-timeout`).

Verbs: create on `pods/binding`, get and patch on `pods`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self
from weakref import WeakValueDictionary

import structlog

from k8s_rdma.core.namespace_policy import NO_POLICIES
from k8s_rdma.core.placement import Placement
from k8s_rdma.extender.telling.outcomes import Refusal
from k8s_rdma.extender.verbs.held import Bind, Held
from k8s_rdma.kube.api import API_ERRORS, ApiRefusedError, ApiUncertainError, ApiUnreachableError, PodBinding
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, encode
from k8s_rdma.wire.placement_keys import UNSIGNED

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from k8s_rdma.core.ids import PodUid
    from k8s_rdma.core.namespace_policy import NamespacePolicies
    from k8s_rdma.errors import K8sRdmaError
    from k8s_rdma.extender.cluster.state import ClusterState, Reservation
    from k8s_rdma.extender.leader.fence import Fence
    from k8s_rdma.kube.api import ClusterApi, PodView
    from k8s_rdma.wire.placement_keys import KeySource

_log = structlog.get_logger()
_CONFLICT = 409
_READ_AGAIN_S = 5.0
_LOOK_S = 0.05


class Commits:
    """The writes; an async context manager that owns the settling of those in doubt.

    keys: sign placements. policies: bound what one takes that nobody signs. settle_s: how long a write
    without an answer may still take effect where pods may not be touched. doubts: what settles, one for each
    write without an answer.

    The state is in memory only: whoever comes after this process counts what is written, and must not
    promise anything while there is something `undecided` that is not fenced.
    """

    def __init__(  # noqa: PLR0913 - what writes need
        self,
        state: ClusterState,
        api: ClusterApi,
        fence: Fence,
        clock: Callable[[], float],
        *,
        keys: KeySource = UNSIGNED,
        policies: Callable[[], NamespacePolicies] = lambda: NO_POLICIES,
        settle_s: float = 60.0,
    ) -> None:
        self._state = state
        self._api = api
        self._fence = fence
        self._clock = clock
        self._keys = keys
        self._held = Held(state=state, clock=clock, keys=keys, policies=policies)
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

    def doubted(self, uid: PodUid) -> bool:
        """Whether an earlier bind of the pod may still take effect."""
        return self._held.doubted(uid)

    async def read(self, bind: Bind) -> PodView | str:
        """The pod, unbound, as a bind may be decided on it; or the answer of the bind (see `Held.settle`).

        What an earlier bind of it left in doubt is settled first. API_ERRORS.
        """
        if self._held.doubted(bind.uid):
            return self._held.settle(bind, (await self._fence.look(bind.identity)).pod)
        return self._held.settle(bind, await self._api.get_pod(bind.namespace, bind.name))

    async def write_plain(self, bind: Bind) -> str:
        """Bind a pod that asks for nothing; answers the error's text, empty on success."""
        try:
            await self._api.bind_pod(self._binding(bind, None))
        except API_ERRORS as error:
            if isinstance(error, ApiUnreachableError):
                return Refusal(error.message, error.reason)
            pod = await self._api.get_pod(bind.namespace, bind.name)
            bound = pod is not None and pod.uid == bind.uid and pod.node == bind.node
            return "" if bound else Refusal(error.message, error.reason)
        return ""

    async def write(self, bind: Bind, reservation: Reservation) -> PodView | str:
        """Bind the pod; answers the error's text, empty on success.

        reservation: is held in the state already. A pod: it was written to since the version that the
        reservation is of, is this now, and holds nothing; decide anew.
        """
        self._under_way.append(bind)  # stays there when this is cancelled: nobody knows what became of it
        try:
            answer = await self._write(bind, reservation)
        except asyncio.CancelledError:
            self._state.doubt(bind.node, bind.uid)
            raise
        self._under_way.remove(bind)
        return answer

    async def _write(self, bind: Bind, reservation: Reservation) -> PodView | str:
        try:
            await self._api.bind_pod(self._binding(bind, reservation))
        except ApiUnreachableError as error:
            return self._not_written(bind, reservation, error)
        except ApiRefusedError as error:
            if error.status == _CONFLICT:
                return await self._conflict(bind, reservation, error)
            return self._not_written(bind, reservation, error)
        except ApiUncertainError as error:
            return await self._uncertain(bind, error)
        self._state.written(bind.node, bind.uid)
        return ""

    def _binding(self, bind: Bind, reservation: Reservation | None) -> PodBinding:
        annotations = {}
        if reservation is not None:
            placement = Placement(
                node=bind.node, interfaces=reservation.interfaces, policy=reservation.policy
            )
            annotations[PLACEMENT_ANNOTATION] = encode(placement, bind.uid, self._keys())
        return PodBinding(
            namespace=bind.namespace,
            name=bind.name,
            uid=bind.uid,
            node=bind.node,
            annotations=annotations,
            version=reservation.version if reservation else "",
        )

    def give_up(self, bind: Bind, reservation: Reservation) -> None:
        """No write of this reservation happened or will; one before it, of the same version, still may."""
        if reservation.in_doubt:
            self._doubt(bind)
        else:
            self._state.withdraw(bind.node, bind.uid)

    def _not_written(self, bind: Bind, reservation: Reservation, why: K8sRdmaError) -> str:
        self.give_up(bind, reservation)
        return Refusal(why.message, why.reason)

    async def _conflict(self, bind: Bind, reservation: Reservation, why: ApiRefusedError) -> PodView | str:
        """The pod is bound, gone, going, or of another version."""
        try:
            pod = await self._api.get_pod(bind.namespace, bind.name)
        except API_ERRORS as error:
            self._not_written(bind, reservation, why)
            return Refusal(f"{why.message}; then {error.message}", error.reason)
        settled = self._held.settle(bind, pod)
        if isinstance(settled, str):
            return settled
        if settled.version == reservation.version:
            return self._not_written(bind, reservation, why)
        return settled

    async def _uncertain(self, bind: Bind, why: ApiUncertainError) -> str:
        """Have it settled at once, if the API server answers at all."""
        self._state.doubt(bind.node, bind.uid)
        try:
            settled = self._held.settle(bind, (await self._fence.look(bind.identity)).pod)
        except API_ERRORS as error:
            self._doubt(bind)
            return Refusal(f"{why.message}; then {error.message}", error.reason)
        self._doubt(bind)
        return settled if isinstance(settled, str) else Refusal(why.message, why.reason)

    def _doubt(self, bind: Bind) -> None:
        """Have what is held for the bind settled, unless it is already."""
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
        """Look at the pod until the write can take no effect any more, or is seen to have taken it."""
        late = self._clock() + self._settle_s
        while self._stands(bind, doubted):
            await asyncio.sleep(min(_READ_AGAIN_S, self._settle_s))
            async with self.lock(bind.uid):
                if self._stands(
                    bind, doubted
                ):  # else the pod was seen bound or gone, or a later bind took over
                    await self._look(bind, late=self._clock() >= late)

    async def _look(self, bind: Bind, *, late: bool) -> None:
        """late: no write can be under way any more."""
        try:
            pod, full = await self._fence.look(bind.identity)
        except API_ERRORS as error:
            _log.warning("bind_still_in_doubt", pod=bind.pod, node=bind.node, error=error.message)
            return
        settled = self._held.settle(bind, pod)
        if (late or full) and not isinstance(settled, str):
            self._held.drop(bind.uid)
        _log.info("bind_settled", pod=bind.pod, node=bind.node, bound=settled == "")
