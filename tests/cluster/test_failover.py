"""One replica stops leading: kube-scheduler comes to ask the other, and whoever waits is not forgotten.

The scheduler asks a Service, whose connections stay with their replica, as kube-proxy's do.
"""

from __future__ import annotations

import signal
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
import yaml

from cluster.extenders import Extender, registration
from cluster.relay import Relay, relaying, service_of
from cluster.world import Cluster, cluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path


pytestmark = pytest.mark.anyio

LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/k8s-rdma-extender"


@dataclass
class Replicated:
    """Two replicas, of which a scheduler asks the leader. network: the leader's way to the API server."""

    c: Cluster
    leader: Extender
    standby: Extender
    network: Relay

    def signal_leader(self, number: int) -> None:
        self.leader.program.process.send_signal(number)

    async def standby_leads(self) -> None:
        await self.standby.ready()


@asynccontextmanager
async def replicated(kind: str, directory: Path) -> AsyncIterator[Replicated]:
    async with cluster(kind, directory, "w1") as c:
        api_port = urlsplit(c.plane.url).port

        async def api() -> int | None:
            return api_port

        async with relaying(api) as network:
            kubeconfig = yaml.safe_load((directory / "k8s-rdma-extender.kubeconfig").read_text())
            server = kubeconfig["clusters"][0]["cluster"]
            server["server"] = server["server"].replace(f":{api_port}", f":{network.port}")
            path = directory / "leader.kubeconfig"
            path.write_text(yaml.safe_dump(kubeconfig))
            leader, standby = c.extender("one", kubeconfig=str(path)), c.extender("two")
            await leader.start()
            await leader.ready()
            await standby.start()
            async with service_of(leader, standby) as url, c.plane.scheduler(registration(url)):
                yield Replicated(c, leader, standby, network)


async def deleted_lease(r: Replicated) -> None:
    """Whoever looks first makes a new one: paused, that is not the leader of before."""
    r.signal_leader(signal.SIGSTOP)
    answer = await r.c.http.delete(LEASE)
    assert answer.status_code == 200, answer.text
    await r.standby_leads()
    r.signal_leader(signal.SIGCONT)


async def paused_and_resumed(r: Replicated) -> None:
    r.signal_leader(signal.SIGSTOP)
    await r.standby_leads()
    r.signal_leader(signal.SIGCONT)


async def paused(r: Replicated) -> None:
    r.signal_leader(signal.SIGSTOP)
    await r.standby_leads()


async def killed(r: Replicated) -> None:
    await r.leader.end(signal.SIGKILL)
    await r.standby_leads()


async def cut_off(r: Replicated) -> None:
    r.network.passes.clear()
    await r.standby_leads()


async def cut_off_for_a_while(r: Replicated) -> None:
    await cut_off(r)
    r.network.passes.set()


async def paused_while_a_pod_comes(r: Replicated) -> None:
    """Questions of a scheduler before the Service leads elsewhere are never answered."""
    r.signal_leader(signal.SIGSTOP)
    await r.c.create_pod("during", 1_000)
    await r.standby_leads()
    await r.c.bound("during")


async def restarted_api(r: Replicated) -> None:
    await _restart_api(r)


async def restarted_api_while_the_leader_is_killed(r: Replicated) -> None:
    await r.leader.end(signal.SIGKILL)
    await _restart_api(r)
    await r.standby_leads()


async def _restart_api(r: Replicated) -> None:
    if r.c.plane.restart_api is None:
        pytest.skip("the stand-in's API server keeps nothing through a restart")
    await r.c.plane.restart_api(signal.SIGKILL)


WAYS = [
    deleted_lease,
    paused_and_resumed,
    paused,
    paused_while_a_pod_comes,
    killed,
    cut_off,
    cut_off_for_a_while,
    restarted_api,
    restarted_api_while_the_leader_is_killed,
]


@pytest.mark.parametrize("way", WAYS)
async def test_scheduler_binds_by_the_other_replica_when_one_leads_no_more(
    kind: str,
    tmp_path: Path,
    way: Callable[[Replicated], Awaitable[None]],
    record_property: Callable[[str, object], None],
):
    """The property `seconds` is how long the fail-over took, to the bind of the last pod."""
    async with replicated(kind, tmp_path) as r:
        await r.c.create_pod("before", 1_000)
        await r.c.event("before", "Scheduled")  # no request is under way any more
        began = monotonic()
        await way(r)
        for name in ("after0", "after1"):
            await r.c.create_pod(name, 1_000)
        for name in ("after0", "after1"):
            await r.c.bound(name)
        record_property("seconds", round(monotonic() - began, 1))


async def test_pod_that_the_leader_of_before_refused_is_bound_when_its_room_comes_free(
    kind: str, tmp_path: Path
):
    """No event in the cluster has a scheduler try it again: VFs come home in silence."""
    async with replicated(kind, tmp_path) as r:
        node = r.c.nodes["w1"]
        uid = (await r.c.create_pod("first", 8_000))["metadata"]["uid"]
        await r.c.event("first", "Scheduled")
        node.keeps.add(uid)
        await r.c.delete_pod("first")
        await r.c.gone("first")
        await r.c.create_pod("second", 8_000)
        await r.c.event("second", "FailedScheduling", "RDMA Scheduler Extension")
        await paused_and_resumed(r)
        node.release(uid)
        await r.c.bound("second")
