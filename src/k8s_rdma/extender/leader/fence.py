"""Write to a pod, so that no Binding of it that is under way can take effect any more.

A Binding carries the version of the pod that it was decided on (`metadata.resourceVersion`), which is a
precondition (kube-apiserver, pkg/registry/core/pod/storage, BindingREST): whoever writes to the pod later
refuses it for ever, wherever it is: in a queue, in the network, or in a process that was stopped.

A pod's annotations may be as long as they may be, by its owner's doing: then it is a label that is written.
The pod may also be as long as etcd takes: then no Binding takes effect either, which writes more to it than
the fence does, its placement above all.

Verbs: patch and get on `pods`. Without patch a pod is only read, and what is under way has to be waited for.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import structlog

from k8s_rdma.kube.api import TOO_LARGE, ApiRefusedError, ClusterApi, PodView

if TYPE_CHECKING:
    from k8s_rdma.core.ledger import Pod

FENCE_ANNOTATION = "k8s-rdma.io/fence"
"""The label's key, too. Its value means nothing but that it is another one each time: a write that changes
nothing is none."""

_INVALID = 422
_log = structlog.get_logger()


def fence_token() -> str:
    """Draw the annotation's value, which deploy/policies/extender.yaml holds to this form."""
    return secrets.token_hex(6)


class Look(NamedTuple):
    """A pod as it is now; None when it does not exist any more.

    Unbound and of another version than a Binding's, that Binding will never take effect; nor will any of it
    where it is `full`.
    """

    pod: PodView | None
    full: bool


@dataclass(frozen=True, slots=True)
class Fence:
    """Touches pods. token: a value that was never used before."""

    api: ClusterApi
    token: Callable[[], str] = fence_token

    async def look(self, pod: Pod) -> Look:
        """The pod as it is now, touched if the API server lets us. API_ERRORS."""
        full = False
        try:
            seen: PodView | None = await self._touch(pod)
        except ApiRefusedError as refused:
            full = refused.status == TOO_LARGE
            seen = await self.api.get_pod(pod.namespace, pod.name)
            if seen is not None and seen.uid == pod.uid:
                _log.warning("pod_not_touched", pod=f"{pod.namespace}/{pod.name}", error=refused.message)
        return Look(seen if seen is not None and seen.uid == pod.uid else None, full=full)

    async def _touch(self, pod: Pod) -> PodView:
        try:
            return await self.api.touch_pod(pod, FENCE_ANNOTATION, self.token())
        except ApiRefusedError as refused:
            if refused.status != _INVALID:
                raise
            return await self.api.label_pod(pod, FENCE_ANNOTATION, self.token())
