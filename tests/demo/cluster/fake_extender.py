"""An extender whose answers a test gives, and the scheduler beside it."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from k8s_rdma_demo.cluster.extender_client import ExtenderConfig
from k8s_rdma_demo.cluster.http_server import HttpService, Request, Response, serving
from k8s_rdma_demo.cluster.scheduler import SchedulerConfig, scheduling


@dataclass
class Extender:
    """An extender whose answers a test gives; without one, every node is fine and no score is better.

    calls: verb and pod of every call, in order; asked: its body. A verb's answer may wait.
    """

    answers: dict[str, Any] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    config: ExtenderConfig | None = None

    async def handle(self, request: Request) -> Response:
        verb = request.path.rpartition("/")[2]
        asked = json.loads(request.body)
        self.asked.append((verb, asked))
        self.calls.append((verb, asked.get("PodName") or asked["Pod"]["metadata"]["name"]))
        answer = self.answers.get(verb, _DEFAULTS[verb])(asked)
        if asyncio.iscoroutine(answer):
            answer = await answer
        if isinstance(answer, int):
            return Response(status=answer, body=b"")
        return Response(status=200, body=json.dumps(answer).encode())

    def verbs(self, pod: str) -> list[str]:
        return [verb for verb, name in self.calls if name == pod]


_DEFAULTS = {
    "filter": lambda asked: {"NodeNames": asked["NodeNames"], "Nodes": asked["Nodes"]},
    "prioritize": lambda asked: [],
    "preempt": lambda asked: {
        "NodeNameToMetaVictims": asked["NodeNameToMetaVictims"]
        or {
            node: {"Pods": [{"UID": pod["metadata"]["uid"]} for pod in victims["Pods"]]}
            for node, victims in asked["NodeNameToVictims"].items()
        }
    },
    "bind": lambda asked: {"Error": ""},
}


@asynccontextmanager
async def serving_extender(answers: dict[str, Any] | None = None, **config):
    extender = Extender(answers=answers or {})
    service = HttpService(handle=extender.handle, refuse=lambda status: Response(status=status, body=b""))
    async with serving(service, "127.0.0.1", 0) as port:
        verbs = {"filter_verb": "filter", "prioritize_verb": "prioritize", "node_cache_capable": True}
        extender.config = ExtenderConfig(url_prefix=f"http://127.0.0.1:{port}/x", **(verbs | config))
        yield extender


@asynccontextmanager
async def scheduled(c, *extenders: Extender, **config):
    full = SchedulerConfig(extenders=tuple(e.config for e in extenders), initial_backoff_s=0.01, **config)
    async with scheduling(c.api.url, full):
        yield


def bound_to(node: str):
    return lambda pod: pod.get("spec", {}).get("nodeName") == node


def refused(pod: dict) -> bool:
    return any(x["type"] == "PodScheduled" and x["status"] == "False" for x in condition_list(pod))


def condition_list(pod: dict) -> list[dict]:
    return pod.get("status", {}).get("conditions", [])


def refusing(**messages: str):
    """A filter answer that refuses the nodes given by name, with `-` for `_`."""
    by_node = {name.replace("_", "-"): message for name, message in messages.items()}

    def answer(asked: dict) -> dict:
        left = [name for name in asked["NodeNames"] if name not in by_node]
        return {"NodeNames": left, "FailedNodes": by_node}

    return answer
