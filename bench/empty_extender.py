"""An extender without decisions: the limit of any extender beside kube-scheduler.

    python empty_extender.py KUBECONFIG PORT

Every node fits every pod, all with the same score, and a bind is one POST of a Binding. HTTP server and
client of the API server are those of the product.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import msgspec
import uvloop

from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.http_server import Answer, HttpServer, listen
from k8s_rdma.http_server.bodies import Bodies
from k8s_rdma.kube.api import PodBinding
from k8s_rdma.kube.client import Client, connect
from k8s_rdma.wire.extender import HostPriority, decode_binding

if TYPE_CHECKING:
    from k8s_rdma.wire.json import Buffer


class Names(msgspec.Struct, rename="pascal"):
    """The candidates of a request, and the answer that all of them fit."""

    node_names: list[str]


_names = msgspec.json.Decoder(Names)
_encode = msgspec.json.encode


class EmptyExtender:
    """The ASGI application; requests for other paths than verbs are answered with success."""

    def __init__(self, api: Client) -> None:
        self._api = api
        self._bodies = Bodies(1 << 24, bound="16 MiB")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        async with self._bodies.reading(scope, receive) as body:
            answer = Answer(await self._answer(scope["path"], body), content_type="application/json")
        await answer(scope, receive, send)

    async def _answer(self, path: str, body: Buffer) -> bytes:
        match path.rpartition("/")[2]:
            case "rdma_scheduling":
                return _encode(_names.decode(body))
            case "prioritize":
                return _encode([HostPriority(name, 1) for name in _names.decode(body).node_names])
            case "bind":
                args = decode_binding(body)
                await self._api.bind_pod(
                    PodBinding(
                        namespace=args.pod_namespace,
                        name=args.pod_name,
                        uid=PodUid(args.pod_uid),
                        node=NodeName(args.node),
                        annotations={},
                    )
                )
        return b"{}"


async def serve(kubeconfig: str, port: int) -> None:
    """Serve until killed."""
    with listen("127.0.0.1", port) as listener:
        await HttpServer(EmptyExtender(connect(kubeconfig)), shutdown_s=1).serve(listener)


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], int(sys.argv[2])))
