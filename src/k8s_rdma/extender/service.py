"""The extender put together, and running."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, cast

from k8s_rdma.extender.accounts import open_accounts
from k8s_rdma.extender.assembly import Assembly
from k8s_rdma.extender.cluster.following import NodeTracker, PodTracker, follow
from k8s_rdma.extender.leader.fence import Fence
from k8s_rdma.extender.leader.leading import Leading
from k8s_rdma.extender.leader.lease import Lease
from k8s_rdma.extender.readiness import Readiness
from k8s_rdma.extender.sources.crd_states import CrdNodeStates
from k8s_rdma.extender.sources.http_states import HttpNodeStates
from k8s_rdma.extender.sources.node_access import asking_of
from k8s_rdma.extender.telling.counted_api import counted
from k8s_rdma.extender.verbs.commit import Commits
from k8s_rdma.wire.placement_keys import UNSIGNED, KeySource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from k8s_rdma.extender.accounts import Accounts
    from k8s_rdma.extender.cluster.state import ClusterState
    from k8s_rdma.extender.config import ExtenderConfig
    from k8s_rdma.extender.serving.app import Extender
    from k8s_rdma.kube.api import ClusterApi
    from k8s_rdma.kube.published import PublishedApi

    Source: TypeAlias = HttpNodeStates | CrdNodeStates


def CLOCK() -> float:  # noqa: N802  a constant to all who use it
    """The one clock that all times here are of: seconds, monotonic; the machine's sleep counts, too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """What makes this process's promises count.

    keys: sign and verify placements. lease: to be held before anything is promised, and given back in the
    end if nothing is in doubt then; None where nobody else can bind. api_failures: as of `counted`, where
    the Lease's are counted already.
    """

    keys: KeySource = UNSIGNED
    lease: Lease | None = None
    api_failures: Counter[tuple[str, ...]] | None = None


NOBODY_ELSE = Authority()
"""Neither signatures nor a Lease."""


@asynccontextmanager
async def running(
    config: ExtenderConfig, api: ClusterApi, authority: Authority = NOBODY_ELSE
) -> AsyncIterator[Extender]:
    """An extender that follows the cluster until the block ends.

    A defect in what runs beside the block ends the block, too.
    """
    api_failures = Counter() if authority.api_failures is None else authority.api_failures
    api = counted(api, api_failures)
    accounts = open_accounts(
        config,
        api,
        CLOCK,
        exists=lambda node: nodes.may_exist(node),  # noqa: PLW0108  they are made below
    )
    fence = Fence(api)
    commits = Commits(
        accounts.state,
        api,
        fence,
        CLOCK,
        keys=authority.keys,
        policies=accounts.requests.policies,
        settle_s=config.settle_s,
    )
    async with _states(config, accounts.state, api) as states, commits:
        pods = _pods(config, accounts, authority.keys)
        nodes = NodeTracker(state=accounts.state, states=states)
        leading = Leading(
            pods=pods,
            fence=fence if config.binder == "extender" else None,
            follow=lambda: follow("pods", lambda: pods.stream(api), pods.take),
            clock=CLOCK,
            lease=authority.lease,
            settle_s=config.settle_s,
            on_ready=lambda: accounts.toucher.try_all(nodes.names) if len(pods.unbound) else None,
        )
        assembly = Assembly(
            config=config,
            api=api,
            clock=CLOCK,
            keys=authority.keys,
            lease=authority.lease,
            api_failures=api_failures,
            accounts=accounts,
            commits=commits,
            readiness=Readiness(api=config.api, leading=leading, pods=pods, nodes=nodes, states=states),
        )
        extender = assembly.extender()
        async with asyncio.TaskGroup() as beside:
            tasks = [beside.create_task(each) for each in assembly.beside()]
            yield extender
            for task in tasks:
                task.cancel()
        if not commits.undecided():
            await leading.release()


def _pods(config: ExtenderConfig, accounts: Accounts, keys: KeySource) -> PodTracker:
    return PodTracker(
        state=accounts.state,
        requests=accounts.requests,
        toucher=accounts.toucher,
        gangs=accounts.gangs,
        clock=CLOCK,
        attempts=accounts.attempts,
        keys=keys,
        occupants=accounts.occupants,
        bound_pods=accounts.bound_pods,
        nominations=accounts.nominations,
        unplaced=accounts.unplaced if config.allows_unplaced(signed=keys() is not None) else None,
    )


def _states(config: ExtenderConfig, state: ClusterState, api: ClusterApi) -> Source:
    """Where the nodes' states come from; the client of the API server has all of its Protocols."""
    if config.source == "http":
        return HttpNodeStates(state, asking_of(config), CLOCK)
    namespace = config.node_lease_namespace
    published = cast("PublishedApi", api)
    return CrdNodeStates(state, published, CLOCK, stale_s=config.stale_s, namespace=namespace)
