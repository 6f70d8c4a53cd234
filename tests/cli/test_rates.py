"""`k8s-rdma rates set`, against an API server and an extender."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Literal

import pytest
import yaml

from cli.asking import k8s_rdma
from extender.node_server import PF0, pf, report
from extender.test_rate_changes import KEY, asked, programs, status
from extender.world import World, world
from k8s_rdma.wire.claim_caps import CLAIM_CAPS_ANNOTATION, CLAIM_CAPS_STATUS_ANNOTATION
from k8s_rdma.wire.network_status import NETWORK_STATUS_ANNOTATION
from k8s_rdma.wire.rates_status import RatesStatus, digest, encode_rates_status
from k8s_rdma_demo.cluster.command import write_kubeconfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.anyio


@pytest.fixture
async def c() -> AsyncIterator[World]:
    """Gold, silver and bronze run with 300, 300 and 100 Mb/s of 1,000; gold has two interfaces."""
    async with world("w1", key=KEY) as made:
        made.nodes["w1"].report = report("w1", pf(PF0, mbps=1_000))
        await made.create_pod("probe", 1)
        pods = {"gold": ((200, 0), (100, 0)), "silver": ((300, 0),), "bronze": ((100, 0),)}
        for name, rates in pods.items():
            await made.create_pod(name, annotation=asked(*rates), labels={"app": "train"})
            assert await made.bind(name, "w1") == ""
        yield made


async def rates(c: World, directory: Path, *arguments: str) -> tuple[int, str]:
    """Run `k8s-rdma rates set`; its status and output."""
    kubeconfig = write_kubeconfig(directory / "kubeconfig", c.server.url)
    found = yaml.safe_load(kubeconfig.read_text())
    context = found["contexts"][0]["context"] | {"namespace": "other"}
    found["contexts"].append({"name": "elsewhere", "context": context})
    kubeconfig.write_text(yaml.safe_dump(found))
    ran = await k8s_rdma("rates", "set", *arguments, KUBECONFIG=str(kubeconfig))
    return ran.status, ran.out + ran.err


async def annotation(c: World, name: str) -> list[dict[str, int]]:
    return json.loads((await c.read_pod(name))["metadata"]["annotations"]["rdma_interfaces_required"])


async def test_rates_of_one_interface_change_and_the_outcome_is_printed(c: World, tmp_path: Path):
    code, output = await rates(
        c, tmp_path, "default/gold", "--interface", "1", "--min", "250", "--max", "400"
    )
    assert (code, output) == (0, "default/gold: admitted (generation 1)\n")
    assert await annotation(c, "gold") == [{"min_tx_rate": 200}, {"min_tx_rate": 250, "max_tx_rate": 400}]


async def test_pod_without_a_namespace_is_of_the_contexts_as_to_kubectl(c: World, tmp_path: Path):
    for options in ((), ("-n", "default"), ("--context", "elsewhere", "-n", "default")):
        code, output = await rates(c, tmp_path, "gold", "--min", "200", "--interface", "0", *options)
        assert (code, output) == (0, "default/gold: unchanged\n")
    code, output = await rates(c, tmp_path, "gold", "--min", "1", "--context", "elsewhere")
    assert (code, output) == (2, "k8s-rdma: pod other/gold does not exist\n")
    code, output = await rates(c, tmp_path, "-l", "app=x", "--min", "1", "--context", "elsewhere")
    assert (code, output) == (2, "k8s-rdma: no pod of namespace other has labels app=x\n")


async def test_refusal_is_printed_with_its_reason(c: World, tmp_path: Path):
    code, output = await rates(c, tmp_path, "default/silver", "--min", "601")
    assert code == 1
    assert output == (
        "default/silver: refused: PF enp3s0f0: 601 Mb/s needed, and others leave 600 of 1000 Mb/s to the "
        "pod; the pod has 300 Mb/s there now\n"
    )


async def test_command_waits_until_the_node_has_programmed_the_rates(c: World, tmp_path: Path):
    changing = asyncio.create_task(rates(c, tmp_path, "default/silver", "--max", "500", "--wait"))
    await status(c, "silver", "admitted")
    programs(c, ("silver", 1, 300))
    await c.fitting("probe")
    assert await changing == (0, "default/silver: programmed (generation 1)\n")


async def test_pods_are_changed_one_by_one_and_summed_up(c: World, tmp_path: Path):
    code, output = await rates(c, tmp_path, "-l", "app=train", "--min", "300")
    lines = output.splitlines()
    assert code == 1
    assert lines[0] == "1/3 default/bronze: admitted (generation 1)"
    assert lines[1].startswith("2/3 default/gold: refused: PF enp3s0f0: 600 Mb/s needed")
    assert lines[2] == "3/3 default/silver: unchanged"
    assert [line.split() for line in lines[3:]] == [
        ["STATE", "PODS"],
        ["admitted", "1"],
        ["refused", "1"],
        ["unchanged", "1"],
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("default/gold",), "--min or --max: say which rate changes, in Mb/s"),
        (("a/b/gold", "--min", "1"), "a/b/gold: wanted NAMESPACE/NAME, such as default/gold, or NAME"),
        (("default/gold", "-n", "x", "--min", "1"), "default/gold: names another namespace than --namespace"),
        (("gold", "-n", "x", "--min", "1"), "pod x/gold does not exist"),
        (("default/none", "--min", "1"), "pod default/none does not exist"),
        (("default/probe", "--min", "2"), "pod default/probe is not bound yet"),
        (
            ("default/gold", "--interface", "rdma7", "--min", "1"),
            "--interface rdma7: pod default/gold has no such interface; it has 0 to 1",
        ),
        (("default/gold", "--max", "150"), "interface 0: reservation 200 above cap 150 Mb/s"),
        (("-l", "app=none", "--min", "1"), "no pod of namespace default has labels app=none"),
    ],
)
async def test_impossible_rate_is_refused_before_any_write(
    c: World, tmp_path: Path, arguments: tuple[str, ...], message: str
):
    before = await c.read_pod("gold")
    code, output = await rates(c, tmp_path, *arguments)
    assert code == 2
    assert message in output
    assert await c.read_pod("gold") == before


PODS = "/api/v1/namespaces/default/pods"


async def create_claiming(c: World, *names: str, **annotations: str) -> None:
    """A pod whose interfaces are by claim; its node has reported these."""
    reported = json.dumps([{"interface": name} for name in names])
    pod = {
        "metadata": {"name": "claims", "annotations": {NETWORK_STATUS_ANNOTATION: reported, **annotations}},
        "spec": {
            "nodeName": "w1",
            "containers": [{"name": "c", "image": "lab.local/busybox:1"}],
            "resourceClaims": [{"name": "rdma", "resourceClaimName": "r"}],
        },
    }
    created = await c.http.post(PODS, json=pod)
    assert created.status_code == 201, created.text


async def annotations_of(c: World, name: str) -> dict[str, str]:
    return (await c.read_pod(name))["metadata"]["annotations"]


async def test_reservation_of_a_claim_is_refused_with_the_reason(c: World, tmp_path: Path):
    await create_claiming(c, "rdma0")
    for options in (("--min", "1"), ("--min", "1", "--max", "2")):
        code, output = await rates(c, tmp_path, "default/claims", *options)
        assert code == 2
        assert "what a claim reserves cannot change" in " ".join(output.split())
    assert CLAIM_CAPS_ANNOTATION not in await annotations_of(c, "claims")


@pytest.mark.parametrize(("state", "code"), [("programmed", 0), ("refused", 1)])
async def test_cap_of_a_claim_is_edited_and_its_agents_answer_awaited(
    c: World, tmp_path: Path, state: Literal["programmed", "refused"], code: int
):
    await create_claiming(c, "rdma0", "rdma1", **{CLAIM_CAPS_ANNOTATION: '{"rdma0": 700}'})
    changing = asyncio.create_task(
        rates(c, tmp_path, "default/claims", "--interface", "1", "--max", "800", "--wait")
    )
    text = ""
    while "rdma1" not in text:
        text = (await annotations_of(c, "claims"))[CLAIM_CAPS_ANNOTATION]
    assert json.loads(text) == {"rdma0": 700, "rdma1": 800}
    answer = RatesStatus(state=state, request=digest(text), message="why")
    patch = {"metadata": {"annotations": {CLAIM_CAPS_STATUS_ANNOTATION: encode_rates_status(answer)}}}
    headers = {"Content-Type": "application/merge-patch+json"}
    assert (await c.http.patch(f"{PODS}/claims", json=patch, headers=headers)).status_code == 200
    assert await changing == (code, f"default/claims: {state}: why\n")
    assert (await rates(c, tmp_path, "default/claims", "--interface", "rdma1", "--max", "800"))[1] == (
        "default/claims: unchanged\n"
    )


async def test_interfaces_that_cannot_be_read_have_no_names(c: World, tmp_path: Path):
    await create_claiming(c, **{NETWORK_STATUS_ANNOTATION: '[{"a":' + "[" * 100_000})
    code, output = await rates(c, tmp_path, "default/claims", "--interface", "rdma0", "--max", "1")
    assert code == 2
    assert "it has none that its node has reported" in output


async def test_interfaces_of_both_kinds_are_distinguished_by_name(c: World, tmp_path: Path):
    await create_claiming(c, "rdma0", "data", rdma_interfaces_required=asked((200, 0)))
    code, output = await rates(
        c, tmp_path, "default/claims", "--interface", "data", "--max", "800", "--timeout", "0.3"
    )
    assert (code, "within 0.3 s no agent has decided" in output) == (2, True)
    found = await annotations_of(c, "claims")
    assert found[CLAIM_CAPS_ANNOTATION] == '{"data":800}'
    assert found["rdma_interfaces_required"] == asked((200, 0))
    _, output = await rates(c, tmp_path, "default/claims", "--interface", "eth9", "--max", "1")
    assert "has no such interface" in output


async def test_command_reports_that_no_decision_was_made(tmp_path: Path):
    async with world("w1") as c:  # placements are not signed
        c.nodes["w1"].report = report("w1", pf(PF0, mbps=1_000))
        await c.create_pod("silver", 300)
        assert await c.bind("silver", "w1") == ""
        code, output = await rates(
            c, tmp_path, "default/silver", "--min", "200", "--timeout", "0.5", "--json"
        )
    [result] = json.loads(output)
    assert (code, result["state"]) == (2, "undecided")
    assert "within 0.5 s no extender has decided" in result["message"]
