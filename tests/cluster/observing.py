"""An observer from outside, and the crowd that it watches."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

import httpx2

from cluster.control_plane import Json
from cluster.world import Cluster, placement

LINK_MBPS = 10_000
_CROWD = 40
_COMING = 0.6
_PAUSE_S = 0.03
_LATE_S = 0.3


@dataclass
class Observer:
    """Adds up, at every change of a pod, the Mb/s of each PF promised to bound pods and given by nodes.

    seen: how many changes. most: the largest sum by node and PF. wrong: sums that were too large, in words.
    """

    c: Cluster
    seen: int = 0
    most: int = 0
    wrong: list[str] = field(default_factory=list)
    _promised: dict[str, tuple[str, list[Json]]] = field(default_factory=dict)

    async def run(self) -> NoReturn:
        while True:
            with suppress(httpx2.TransportError):
                async with self.c.http.stream("GET", "/api/v1/pods?watch=1", timeout=None) as stream:
                    async for line in stream.aiter_lines():
                        self._take(**json.loads(line))
            await asyncio.sleep(0.05)

    def _take(self, type: str, object: Json) -> None:  # noqa: A002  the words of a watch
        uid, node = object["metadata"]["uid"], object["spec"].get("nodeName", "")
        self.seen += 1
        if type == "DELETED" or not node:
            self._promised.pop(uid, None)
        else:
            self._promised[uid] = node, placement(object)
        self._check("promised", self._sums())
        for name, each in self.c.nodes.items():
            self._check("given", {(name, pf): mbps for pf, mbps in each.reserved().items()})

    def _sums(self) -> dict[tuple[str, str], int]:
        sums: dict[tuple[str, str], int] = {}
        for node, interfaces in self._promised.values():
            for each in interfaces:
                key = node, each["pf"]
                sums[key] = sums.get(key, 0) + each["min_tx_rate"]
        return sums

    def _check(self, what: str, sums: dict[tuple[str, str], int]) -> None:
        self.most = max([self.most, *sums.values()])
        self.wrong += [f"{what} of {key}: {mbps}" for key, mbps in sums.items() if mbps > LINK_MBPS]


@dataclass
class Crowd:
    """Pods that come and go, of one to three interfaces each.

    The interfaces of every third come home some time after its object went. alive: UIDs by name.
    """

    c: Cluster
    random: random.Random
    alive: dict[str, str] = field(default_factory=dict)
    made: int = 0

    async def mill(self, seconds: float) -> None:
        """Come and go for so long."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            with suppress(httpx2.TransportError, AssertionError):  # the API server may be away
                if len(self.alive) < _CROWD and self.random.random() < _COMING:
                    await self._come()
                elif self.alive:
                    await self._go(self.random.choice(list(self.alive)))
            await asyncio.sleep(_PAUSE_S)

    async def leave(self) -> None:
        """All go."""
        for name in list(self.alive):
            await self._go(name)

    async def _come(self) -> None:
        self.made += 1
        name = f"crowd{self.made}"
        rates = [self.random.choice([0, 500, 1_500, 3_000, 6_000]) for _ in range(self.random.randint(1, 3))]
        uid = (await self.c.create_pod(name, *rates))["metadata"]["uid"]
        self.alive[name] = uid
        if self.made % 3 == 0:
            for node in self.c.nodes.values():
                node.keeps.add(uid)

    async def _go(self, name: str) -> None:
        if await self.c.pod(name) is not None:
            await self.c.delete_pod(name)
        uid = self.alive.pop(name)
        for node in self.c.nodes.values():
            asyncio.get_running_loop().call_later(_LATE_S, node.release, uid)
