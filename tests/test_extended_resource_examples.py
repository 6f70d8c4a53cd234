"""Every file of examples/extended-resources/: pods by limits alone, from kube-scheduler to the interface.

kube-scheduler and API server are stand-ins, which make the claim as `tests/cluster/test_claims_diagnosis.py`
has the real one make it; the rest is the agent.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
import yaml

from agent.machine import Machine, call
from agent.test_claims import Running, scenario
from cdi_documents import decode_specification
from cluster.allocations import pfs
from deploy.rendering.chart import documents, render
from k8s_rdma.core.pf_selection import PfRule
from k8s_rdma.core.types import PfUse, PodUid
from k8s_rdma.errors import MalformedError
from k8s_rdma.planning.manifest_workloads import read_workloads
from k8s_rdma.wire.claims import DRIVER, ClaimName, Prepare
from k8s_rdma_demo.cluster.api import serving_api
from k8s_rdma_demo.cluster.dynamic_resources import controlling_claims
from k8s_rdma_demo.cluster.scheduler import SchedulerConfig, scheduling

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
FILES = sorted((EXAMPLES / "extended-resources").iterdir())
API, PODS = "/apis/resource.k8s.io/v1", "/api/v1/namespaces/default/pods"
EXPECTED = {"hustcat.yaml": [0, 0], "mellanox.yaml": [20_000], "pod.yaml": [0]}
"""The caps of the pod's interfaces in Mb/s, 0 without a cap."""
Json = dict[str, Any]

of_each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)


def objects(path: Path) -> list[Json]:
    """Return the objects of a file, with the DeviceClass of the chart if the file lacks one."""
    found: list[Json] = [each for each in yaml.safe_load_all(path.read_text()) if each]
    if not any(each["kind"] == "DeviceClass" for each in found):
        values = {"dra": {"enabled": True, "extendedResourceName": "k8s-rdma.io/vf"}}
        found += [each for each in documents(render(values)) if each["kind"] == "DeviceClass"]
    return found


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Two PFs for claims, with 4 VFs each and links of 100 Gb/s."""
    made = Machine(tmp_path, rdma=True)
    made.rules = (PfRule(use=PfUse.CLAIMS),)
    return made


async def bound(http: httpx2.AsyncClient, name: str) -> Json:
    """The pod, once it has a node."""
    parameters = {"watch": "true", "fieldSelector": f"metadata.name={name}"}
    async with http.stream("GET", PODS, params=parameters, timeout=None) as answer:
        async for line in answer.aiter_lines():
            pod: Json = msgspec.json.decode(line)["object"]
            if pod["spec"].get("nodeName"):
                return pod
    raise AssertionError


async def post(http: httpx2.AsyncClient, path: str, document: Json) -> None:
    made = await http.post(path, json=document)
    assert made.status_code == 201, made.text


async def prepared_by(agent: Running, path: Path) -> tuple[Json, ClaimName]:
    """Schedule the file's pod, and prepare its claim; the pod, and the claim's name."""
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(serving_api())
        http = await stack.enter_async_context(httpx2.AsyncClient(base_url=api.url, trust_env=False))
        await post(http, "/api/v1/nodes", {"metadata": {"name": "w1"}, "status": {"allocatable": {"cpu": 8}}})
        pool = {"name": "w1", "generation": 1, "resourceSliceCount": 1}
        devices = pfs(100_000, 100_000)
        spec = {"driver": DRIVER, "nodeName": "w1", "pool": pool, "devices": devices}
        await post(http, f"{API}/resourceslices", {"metadata": {"name": "w1"}, "spec": spec})
        await stack.enter_async_context(controlling_claims(api.url))
        await stack.enter_async_context(scheduling(api.url, SchedulerConfig()))
        for each in objects(path):
            await post(http, PODS if each["kind"] == "Pod" else f"{API}/deviceclasses", each)
        [name] = [each["metadata"]["name"] for each in objects(path) if each["kind"] == "Pod"]
        pod = await bound(http, name)
        claim_name = pod["status"]["extendedResourceClaimStatus"]["resourceClaimName"]
        answer = await http.get(f"{API}/namespaces/default/resourceclaims/{claim_name}")
        uid = answer.json()["metadata"]["uid"]
        claim = ClaimName(namespace="default", name=claim_name, uid=uid)
        document = msgspec.Raw(answer.content)
        of = msgspec.Raw(msgspec.json.encode(pod))
        await agent.claims.prepare(Prepare(claim=claim, resource=document, pod=of, wait_s=0.0))
        return pod, claim


@of_each_file
def test_pod_gets_its_vfs_by_its_limits_alone(path: Path, machine: Machine):
    async def play(agent: Running) -> None:
        pod, claim = await prepared_by(agent, path)
        prepared = agent.node.ledger.prepared_for(PodUid(pod["metadata"]["uid"]))
        assert [each.placed.max_tx_rate_mbps for each in prepared] == EXPECTED[path.name]
        assert {each.placed.min_tx_rate_mbps for each in prepared} == {0}
        assert len({each.placed.pf for each in prepared}) == len(prepared)
        assert {each.request for each in prepared} == {"container-0-request-0"}
        found = machine.directory / f"host/var/run/cdi/k8s-rdma.io-claim_{claim.uid}.json"
        _, devices = decode_specification(found.read_bytes())
        variable = "K8S_RDMA_CLAIM_EXTENDED_RESOURCES_CONTAINER_0_REQUEST_0"
        numbers = [f"__{number}" for number in range(1, 3)] if len(prepared) > 1 else [""]
        assert [each.container_edits.env for each in devices] == [
            (f"{variable}{number}={each.pci}",) for number, each in zip(numbers, prepared, strict=True)
        ]
        mounts = [mount.container_path for each in devices for mount in each.container_edits.mounts]
        assert [f"/resourceclaims/{claim.name}/container-0-request-0/" in mount for mount in mounts] == [True]
        netns = machine.sandboxes[machine.sandbox("c1")]
        meta = pod["metadata"]
        add = call("ADD", "c1", meta["uid"], name=meta["name"])
        await agent.verbs.add(add, netns, machine.stdin({}), lambda: True)
        assert len(agent.vfs()) == len(prepared)

    scenario(machine, play)


@of_each_file
def test_whatif_says_that_it_places_no_such_pods(path: Path):
    with pytest.raises(MalformedError) as refused:
        read_workloads(path.read_text())
    assert "asks for any; Pod" in refused.value.message
    assert "alone are not placed" in refused.value.message


def test_readme_has_the_files():
    readme = (EXAMPLES / "README.md").read_text()
    assert not [path.name for path in FILES if f"| `{path.name}` |" not in readme]
