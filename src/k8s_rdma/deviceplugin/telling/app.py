"""What the device plugin answers by HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.deviceplugin.telling.figures import render_figures
from k8s_rdma.http_server.access import EVERYBODY
from k8s_rdma.http_server.answer import Answer, error_answer
from k8s_rdma.http_server.exposition import CONTENT_TYPE
from k8s_rdma.wire.rest_error import Error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from k8s_rdma.deviceplugin.kubelet.keeper import Keeper
    from k8s_rdma.deviceplugin.seeing.looking import Looking
    from k8s_rdma.http_server.access import Access
    from k8s_rdma.http_server.asgi import Receive, Scope, Send

INDEX = """\
k8s-rdma: device plugin of this node

GET /metrics  resources, devices and kubelet in figures (Prometheus)
GET /healthz  whether this process runs, and what kubelet has of each resource
GET /readyz   whether kubelet follows all of them
"""

_METHODS = ("GET", "HEAD")


class PluginApp:
    """An ASGI application."""

    def __init__(self, keepers: Sequence[Keeper], looking: Looking, access: Access = EVERYBODY) -> None:
        self._keepers = keepers
        self._looking = looking
        self._access = access
        self._paths: dict[str, Callable[[], Answer]] = {
            "/": lambda: Answer(INDEX),
            "/metrics": lambda: Answer(render_figures(keepers, looking), content_type=CONTENT_TYPE),
            "/healthz": lambda: Answer(f"ok\n{self._state()}"),
            "/readyz": self._readyz,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        await self._answer(scope)(scope, receive, send)

    def _answer(self, scope: Scope) -> Answer:
        if refusal := self._access.refusal(scope["path"], scope["headers"]):
            return refusal
        if scope["path"] not in self._paths:
            return error_answer(404, Error(reason="not_found", message="there is no such path; / lists them"))
        if scope["method"] not in _METHODS:
            message = "this server changes nothing: GET and HEAD are all that it answers"
            error = Error(reason="method_not_allowed", message=message)
            return error_answer(405, error, headers={"allow": ", ".join(_METHODS)})
        return self._paths[scope["path"]]()

    def _readyz(self) -> Answer:
        ready = self._looking.succeeded and not any(keeper.problem for keeper in self._keepers)
        return Answer(f"{'ok' if ready else 'not ready'}\n{self._state()}", status=200 if ready else 503)

    def _state(self) -> str:
        """A line for each resource, and for each thing that cannot be looked at."""
        lines = [f"{_state(each)}\n" for each in self._keepers]
        lines += [f"unreadable: {why}\n" for why in self._looking.seen.unreadable]
        return "".join(lines)


def _state(keeper: Keeper) -> str:
    words = [keeper.problem or "kubelet follows it"]
    if keeper.resource.fault:
        words.append(f"no container can have it: {keeper.resource.fault}")
    elif keeper.resource.unhealthy:
        words.append(keeper.resource.unhealthy)
    return f"{keeper.resource.name}: {'; '.join(words)}"
