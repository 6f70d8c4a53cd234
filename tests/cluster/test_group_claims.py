"""Claims of PodGroups (KEP 5729, gate DRAWorkloadResourceClaims): refused, by the policy and by the agent."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pytest

from claim_cases import devices, request, template
from cluster.controllers import controllers
from cluster.policies import apply_policies, until
from cluster.real import GANGS, Real, real
from cluster.test_dra_examples import SCHEDULER, WHY_NOT
from cluster.test_dra_policies import API, DRY, SLICES, TEMPLATES, allocated, status_of
from cluster.test_gangs import API as GANGS_API
from cluster.test_gangs import group
from cluster.world import cluster
from deviceplugin.offered_pf import offer
from k8s_rdma.core.types import NodeName
from k8s_rdma.errors import MalformedError
from k8s_rdma.wire.claims import DRIVER, ClaimName, Offers, Prepare
from k8s_rdma.wire.resource_claim import decode_prepare
from k8s_rdma.wire.resource_slice import slice_specs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from cluster.control_plane import Json
    from cluster.world import Cluster

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(WHY_NOT), reason=f"no real cluster: {WHY_NOT}"),
]
GATES = (*GANGS, "DRAWorkloadResourceClaims")


@asynccontextmanager
async def sharing(directory: Path, *policies: str) -> AsyncIterator[Cluster]:
    """A gang of two pods whose PodGroup has a claim of an interface, on a node with a PF."""
    plane = partial(real, gates=GATES, served=(GANGS_API,))
    async with cluster(plane, directory, "w1") as c:
        assert isinstance(c.plane, Real)
        [spec] = slice_specs(Offers(node="w1", pfs=(offer(),)))
        body = {"metadata": {"name": "s"}, "spec": spec | {"pool": spec["pool"] | {"generation": 1}}}
        selector = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
        device_class = {"metadata": {"name": "rdma"}, "spec": {"selectors": [selector]}}
        found = template(devices(request(bandwidth="1G")), "net")
        for path, document in ((SLICES, body), (f"{API}/deviceclasses", device_class), (TEMPLATES, found)):
            made = await c.http.post(path, json=document)
            assert made.status_code == 201, made.text
        for name in policies:
            await apply_policies(c, name)
            await in_force(c)
        entry = {"name": "net", "resourceClaimTemplateName": "net"}
        await group(c, "g", {"gang": {"minCount": 2}}, resourceClaims=[entry])
        async with controllers(c.plane, "resourceclaim-controller"), c.plane.scheduler(SCHEDULER):
            for number in range(2):
                await c.create_pod(
                    f"g-{number}", schedulingGroup={"podGroupName": "g"}, resourceClaims=[entry]
                )
            yield c


async def in_force(c: Cluster) -> None:
    """Wait until the policy `one-pod` is, by a claim that is gone afterwards."""
    path = await allocated(c, "probe", "w1", "p")
    two = {"status": {"reservedFor": status_of("w1", "p", "q")["reservedFor"]}}
    headers = {"Content-Type": "application/merge-patch+json"}

    async def refused() -> bool:
        return (await c.http.patch(f"{path}{DRY}", json=two, headers=headers)).status_code == 422

    await until(refused)
    assert (await c.http.delete(path.removesuffix("/status"))).status_code == 200


async def claim_of(c: Cluster) -> Json:
    """The one claim of the group."""
    [found] = (await c.http.get(f"{API}/namespaces/default/resourceclaims")).json()["items"]
    return found


async def test_policy_keeps_the_pods_pending_with_a_sentence(tmp_path: Path):
    async with sharing(tmp_path, "one-pod") as c:
        said = "a PodGroup shares its claims: write no resourceClaims in the PodGroup"
        await c.event("g-0", "FailedScheduling", said)
        assert [await c.node_of(f"g-{number}") for number in range(2)] == [None, None]
        assert "reservedFor" not in (await claim_of(c)).get("status", {})


async def test_agent_refuses_the_claim_without_the_policy(tmp_path: Path):
    async with sharing(tmp_path) as c:
        pods = [await c.bound(f"g-{number}") for number in range(2)]
        found = await claim_of(c)
        [consumer] = found["status"]["reservedFor"]
        assert (consumer["apiGroup"], consumer["resource"], consumer["name"]) == (
            "scheduling.k8s.io",
            "podgroups",
            "g",
        )
        meta = found["metadata"]
        for pod in pods:
            question = Prepare(
                claim=ClaimName(namespace="default", name=meta["name"], uid=meta["uid"]),
                resource=msgspec.Raw(msgspec.json.encode(found)),
                pod=msgspec.Raw(msgspec.json.encode(pod)),
            )
            with pytest.raises(MalformedError) as refused:
                decode_prepare(question, NodeName("w1"))
            assert "is reserved for PodGroup g; an RDMA interface is of one pod" in refused.value.message
