"""One key for placements replaces another while pods come and go: no pod is refused, no forgery taken."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

import pytest

from cluster.extenders import Extender, registration
from cluster.nodes import node_object
from cluster.publishers import AGENT, prepare
from cluster.world import Cluster, cluster
from e2e.conftest import build_dir, make_node, program
from e2e.node import Node
from k8s_rdma.config.placement_keys import extender_keys
from k8s_rdma.core.placement import PlacedInterface, Placement
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, encode
from k8s_rdma_demo.cluster.cni_runtime import AttachError
from k8s_rdma_demo.cluster.sandboxes import PodRef
from key_volume import Volume, pair

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path


__all__ = ["build_dir", "make_node", "program"]

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

Entries = dict[str, bytes]
OLD, NEW, STRANGE = b"the secret of before", b"the secret that follows", b"nobody's secret here"
WORKERS, PODS_A_STEP = 3, 5


@dataclass
class Rotation:
    """A node, an extender, their volumes of keys, and pods that come and go."""

    c: Cluster
    node: Node
    extender: Extender
    accepted: Volume
    signing: Volume
    ended: int = 0
    _names: count[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self._runtime = self.node.runtime(chained=False)

    async def come_and_go(self) -> None:
        """Pods, one after the other, without end; a refusal ends it."""
        while True:
            name = f"p{next(self._names)}"
            await self.c.create_pod(name, 50)
            pod = await self._bound(name)
            await self._runtime.delete(await self._runtime.add(pod))
            await self._delete(name)
            self.ended += 1

    async def hold(self, accepted: Entries, signing: Entries | None = None) -> None:
        """Have both volumes hold these; wait until the processes do, and for pods that come and go so."""
        log = self.node.directory / "agent.log"
        before = _reloads(log)
        self.accepted.hold(accepted)
        await self.sign(accepted, signing or {})
        while _reloads(log) <= before:  # noqa: ASYNC110  another process reads it
            await asyncio.sleep(0.05)
        await self.pods(PODS_A_STEP)

    async def sign(self, accepted: Entries, signing: Entries) -> None:
        """Have the extender alone hold another key to sign by."""
        before = _reloads(log := self.extender.directory / "extender.log")
        self.signing.hold({**accepted, **signing})
        while _reloads(log) <= before:  # noqa: ASYNC110  another process reads it
            await asyncio.sleep(0.05)
        await self.pods(PODS_A_STEP)

    async def pods(self, number: int) -> None:
        """Wait until so many more have come and gone."""
        wanted = self.ended + number
        while self.ended < wanted:  # noqa: ASYNC110  they are other tasks'
            await asyncio.sleep(0.05)

    async def signed(self) -> dict[str, float]:
        """Pods by the use of the key that signed them, as the extender's metrics report."""
        text = (await self.c.http.get(f"{self.extender.url}/metrics")).text
        sums: dict[str, float] = {}
        for use, number in re.findall(r'_pods_signed\{.*use="(\w+)"\} (\S+)', text):
            sums[use] = sums.get(use, 0) + float(number)
        return sums

    async def until_nobody_depends_on_another(self) -> None:
        """Wait until no pod has a placement by another key than the one that signs."""
        while (await self.signed()).get("verifies"):  # noqa: ASYNC110  another process counts
            await asyncio.sleep(0.05)

    async def bind(self, name: str) -> PodRef:
        """A pod that is bound and not started: its placement is all that there is of it."""
        await self.c.create_pod(name, 50)
        return await self._bound(name)

    async def start(self, pod: PodRef) -> None:
        await self._runtime.delete(await self._runtime.add(pod))
        await self._delete(pod.name)

    async def refuses(self, signing: Entries) -> None:
        """A placement that is signed by these keys does not count for the agent, whoever it is of."""
        directory = self.c.directory / f"forger{next(self._names)}"
        volume = Volume(directory)
        volume.hold(signing)
        keys = extender_keys(str(directory))()
        placement = Placement(node=NodeName("w1"), interfaces=(PlacedInterface(pf=self.node.pfs[0].pci),))
        text = encode(placement, PodUid("forged"), keys)
        annotations = {PLACEMENT_ANNOTATION: text, "rdma_interfaces_required": "[{}]"}
        pod = PodRef(namespace="default", name="forged", uid="forged", annotations=annotations)
        with pytest.raises(AttachError, match="not made with this cluster's key"):
            await self._runtime.add(pod)

    async def _bound(self, name: str) -> PodRef:
        meta = (await self.c.bound(name))["metadata"]
        return PodRef(namespace="default", name=name, uid=meta["uid"], annotations=meta["annotations"])

    async def _delete(self, name: str) -> None:
        url = f"/api/v1/namespaces/default/pods/{name}?gracePeriodSeconds=0"
        assert (await self.c.http.delete(url)).status_code == 200


def _reloads(log: Path) -> int:
    return log.read_text().count('"reloaded"')


@asynccontextmanager
async def rotation(
    kind: str, directory: Path, node: Node, entries: Mapping[str, bytes]
) -> AsyncIterator[Rotation]:
    accepted, signing = Volume(directory / "accepted"), Volume(directory / "signing")
    accepted.hold(entries)
    signing.hold(entries)
    async with cluster(kind, directory) as c:
        await prepare(c)
        await c.create(node_object("w1", "127.0.0.1", {}))
        node.settings = {
            "kubeconfig": str(directory / f"{AGENT}.kubeconfig"),
            "placementKeyFile": str(accepted.directory),
            "publish": {"rdmaNode": True},
        }
        await asyncio.to_thread(node.start_agent)
        extender = c.extender(source="crd", nodePort=1, placementKeyFile=str(signing.directory))
        await extender.start()
        await extender.ready()
        made = Rotation(c, node, extender, accepted, signing)
        async with c.plane.scheduler(registration(extender.url)), asyncio.TaskGroup() as coming:
            pods = [coming.create_task(made.come_and_go()) for _ in range(WORKERS)]
            yield made
            for each in pods:
                each.cancel()


async def test_keys_change_under_load_and_no_pod_is_refused_for_it(
    kind: str, make_node: Callable[[int], Node], tmp_path: Path
):
    private, public = pair()
    async with rotation(kind, tmp_path, make_node(8), {"placement.key": OLD}) as r:
        await r.pods(PODS_A_STEP)
        waiting = await r.bind("waiting")

        await r.hold({"placement.key": OLD, "next.key": NEW})
        await r.sign({"placement.key": NEW, "previous.key": OLD}, {})
        await r.hold({"placement.key": NEW, "previous.key": OLD})
        assert (await r.signed())["verifies"] >= 1
        await r.refuses({"placement.key": STRANGE})
        await r.start(waiting)
        await r.until_nobody_depends_on_another()
        await r.hold({"placement.key": NEW})
        await r.refuses({"placement.key": OLD})

        waiting = await r.bind("waiting-too")
        both = {"placement.key": NEW, "ed25519.pub": public}
        await r.hold(both)
        await r.sign(both, {"signing.key": private})
        await r.refuses({"placement.key": STRANGE})
        await r.start(waiting)
        await r.until_nobody_depends_on_another()
        await r.hold({"ed25519.pub": public}, {"signing.key": private})
        for secret in (OLD, NEW):
            await r.refuses({"placement.key": secret})
        await r.refuses({"signing.key": pair()[0]})


async def test_broken_keys_are_reported_and_have_no_effect(
    kind: str, make_node: Callable[[int], Node], tmp_path: Path
):
    async with rotation(kind, tmp_path, make_node(8), {"placement.key": OLD}) as r:
        r.accepted.hold({"placement.key": b"short"})
        r.signing.hold({"placement.key": b"short"})
        url = f"{r.extender.url}/readyz"
        while "warning: placementKeyFile" not in (told := (await r.c.http.get(url)).text):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert told.startswith("ok\n")
        await r.pods(PODS_A_STEP)
        metrics = (await r.c.http.get(f"{r.extender.url}/metrics")).text
        assert "k8s_rdma_extender_placement_keys_not_reloaded 1" in metrics
        assert any(each["event"] == "not_reloaded" for each in r.node.log())


async def test_placements_by_a_key_of_before_count_after_a_restart_of_the_extender(
    kind: str, make_node: Callable[[int], Node], tmp_path: Path
):
    async with rotation(kind, tmp_path, make_node(8), {"placement.key": OLD}) as r:
        waiting = await r.bind("waiting")
        await r.hold({"placement.key": OLD, "next.key": NEW})
        await r.hold({"placement.key": NEW, "previous.key": OLD})
        await r.extender.end(9)
        await r.extender.start()
        await r.extender.ready()
        assert (await r.signed())["verifies"] >= 1
        await r.pods(PODS_A_STEP)
        await r.start(waiting)
        await r.until_nobody_depends_on_another()
