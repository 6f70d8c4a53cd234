"""Pods by limits alone: a real kube-scheduler makes their claims, which the agent reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from cluster.test_dra_examples import API, NODE, WHY_NOT, pf, scheduled
from cluster.world import collection
from k8s_rdma.core.types import NodeName
from k8s_rdma.wire.claims import ClaimName, Prepare
from k8s_rdma.wire.resource_claim import decode_prepare
from test_extended_resource_examples import EXAMPLES, EXPECTED, objects, of_each_file

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.control_plane import Json
    from cluster.world import Cluster
    from k8s_rdma.core.claims import AllocatedClaim

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(WHY_NOT), reason=f"no real cluster: {WHY_NOT}"),
]


async def create_all(c: Cluster, found: list[Json]) -> str:
    """Create the objects, but for a class that is there, which is changed instead; the pod's name."""
    [name] = [each["metadata"]["name"] for each in found if each["kind"] == "Pod"]
    for each in found:
        path = f"{API}/deviceclasses" if each["kind"] == "DeviceClass" else collection(each)
        made = await c.http.post(path, json=each)
        if made.status_code == 409:
            await c.patch(f"{path}/{each['metadata']['name']}", {"spec": each["spec"]})
        else:
            assert made.status_code == 201, made.text
    return name


async def claimed(c: Cluster, name: str) -> AllocatedClaim:
    """The claim that kube-scheduler made for a pod, as the agent reads it."""
    pod = await c.bound(name)
    claim = pod["status"]["extendedResourceClaimStatus"]["resourceClaimName"]
    found = (await c.http.get(f"{API}/namespaces/default/resourceclaims/{claim}")).json()
    question = Prepare(
        claim=ClaimName(namespace="default", name=claim, uid=found["metadata"]["uid"]),
        resource=msgspec.Raw(msgspec.json.encode(found)),
        pod=msgspec.Raw(msgspec.json.encode(pod)),
    )
    return decode_prepare(question, NodeName(NODE)).claim


@of_each_file
async def test_examples_have_their_vfs_by_a_claim_that_kube_scheduler_makes(path: Path, tmp_path: Path):
    async with scheduled(tmp_path, pf(0, 100_000), pf(1, 100_000)) as c:
        name = await create_all(c, objects(path))
        claim = await claimed(c, name)
        assert [each.interface.max_tx_rate_mbps for each in claim.interfaces] == EXPECTED[path.name]
        assert {each.interface.min_tx_rate_mbps for each in claim.interfaces} == {0}
        assert len({each.device for each in claim.interfaces}) == len(claim.interfaces)


async def test_pod_waits_until_a_vf_is_free(tmp_path: Path):
    """Of one PF with one VF, the second pod has it after the first one's end."""
    [pod, device_class] = objects(EXAMPLES / "extended-resources" / "pod.yaml")
    one = msgspec.structs.replace(pf(0, 100_000), vfs=1)
    async with scheduled(tmp_path, one) as c:
        await create_all(c, [device_class, pod])
        await c.bound("one-vf")
        second = {**pod, "metadata": {"name": "second"}}
        await c.create(second)
        await c.event("second", "FailedScheduling", "cannot allocate all claims")
        assert await c.node_of("second") is None
        await c.delete_pod("one-vf")
        await c.bound("second")
