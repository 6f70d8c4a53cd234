"""Rates of running pods: a raise is reserved before it is programmed, a cut is released after it."""

from __future__ import annotations

import asyncio
import json
import math
import time
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from extender.changing_rates import (
    KEY,
    annotations_of,
    ask,
    asked,
    c,
    delivered,
    edit,
    programs,
    start,
    status,
    takes_placements,
    used_mbps,
)
from extender.faulty_api import Fault, FaultyApi
from extender.world import MERGE, World, cluster, extending, until, world
from k8s_rdma.config.extender import NamespaceLimit
from k8s_rdma.kube.leader_election import LeaderElectionConfig, LeaderElector
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, generation_in
from k8s_rdma.wire.rates_status import RATES_STATUS_ANNOTATION
from k8s_rdma.wire.report import RatesRefusal

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["c"]

pytestmark = pytest.mark.anyio


async def placed(c: World, name: str) -> dict[str, Any]:
    return json.loads((await annotations_of(c, name))[PLACEMENT_ANNOTATION])


def refuses(c: World, name: str, generation: int, message: str) -> None:
    """The node has not programmed that generation of the pod's rates."""
    node = c.nodes["w1"]
    epoch, _, counter = node.report.generation.partition(".")
    uid = c.pods[name]["metadata"]["uid"]
    refused = RatesRefusal(generation=generation, message=message)
    node.report = replace(
        node.report,
        generation=f"{epoch}.{int(counter) + 1}",
        allocations=tuple(
            replace(each, refused=refused if each.pod.uid == uid else None)
            for each in node.report.allocations
        ),
    )


async def events(c: World, reason: str) -> list[str]:
    """Wait for events with the reason, and return their messages."""
    while True:
        found = (await c.http.get("/api/v1/namespaces/default/events")).json()["items"]
        if messages := [each["message"] for each in found if each["reason"] == reason]:
            return messages
        await asyncio.sleep(0.01)


async def test_raise_is_reserved_before_it_is_programmed_and_signed_as_the_next_generation(c: World):
    await ask(c, "gold", (700, 900))
    found = await status(c, "gold", "admitted")
    assert (found.generation, found.message) == (1, "")
    document = await placed(c, "gold")
    [interface] = document["interfaces"]
    assert document["generation"] == 1
    assert (interface["min_tx_rate"], interface["max_tx_rate"]) == (700, 900)
    assert interface["previous_min_tx_rate"] == 500
    assert await used_mbps(c) == 1_000
    programs(c, ("gold", 1, 700), ("silver", 0, 300))
    await c.fitting("probe")
    assert (await status(c, "gold", "programmed")).generation == 1
    assert await used_mbps(c) == 1_000


async def test_outcome_is_written_at_once_when_the_node_has_programmed_it():
    """By the clock no retry is ever due."""
    now = 0.0
    async with cluster("w1") as made, extending(made, key=KEY, clock=lambda: now, max_age_s=0.1) as c:
        await start(c)
        await ask(c, "gold", (700, 900))
        await status(c, "gold", "admitted")
        now = 0.2
        programs(c, ("gold", 1, 700), ("silver", 0, 300))
        await c.fitting("probe")
        assert (await status(c, "gold", "programmed")).generation == 1


async def test_raise_beyond_the_link_is_refused_with_numbers_and_admitted_when_there_is_room(c: World):
    await ask(c, "gold", (701, 900))
    found = await status(c, "gold", "refused")
    assert found.message == (
        "PF enp3s0f0: 701 Mb/s needed, and others leave 700 of 1000 Mb/s to the pod; "
        "the pod has 500 Mb/s there now"
    )
    assert generation_in((await annotations_of(c, "gold"))[PLACEMENT_ANNOTATION]) == 0
    assert await used_mbps(c) == 800
    await c.delete_pod("silver")
    programs(c, ("gold", 0, 500))
    await c.fitting("probe")
    assert (await status(c, "gold", "admitted")).generation == 1


async def test_explanation_shows_the_generations_and_the_last_outcome(c: World):
    await ask(c, "gold", (600, 0))
    await status(c, "gold", "admitted")
    await ask(c, "gold", (5_000, 0))
    await status(c, "gold", "waiting")
    answer = await c.extender.views.explain({"type": "http", "query_string": b"pod=default/gold"})
    [place] = json.loads(answer.body)["places"]
    assert (place["generation"], place.get("programmed", 0)) == (1, 0)
    assert place["rates"] == "waiting: generation 1 is not programmed on node w1 yet"


async def test_bandwidth_of_a_cut_is_not_given_before_the_node_has_programmed_it(c: World):
    await c.create_pod("next", 400)
    await ask(c, "gold", (300, 600))
    await status(c, "gold", "admitted")
    assert await c.fitting("next") == []
    programs(c, ("gold", 1, 300), ("silver", 0, 300))
    assert await c.fitting("next") == ["w1"]


async def test_change_waits_for_the_one_before_to_be_programmed(c: World):
    await ask(c, "gold", (300, 0))
    await status(c, "gold", "admitted")
    await ask(c, "gold", (600, 0))
    found = await status(c, "gold", "waiting")
    assert found.message == "generation 1 is not programmed on node w1 yet"
    assert (await placed(c, "gold"))["generation"] == 1
    programs(c, ("gold", 1, 300), ("silver", 0, 300))
    await c.fitting("probe")
    assert (await status(c, "gold", "admitted")).generation == 2
    [interface] = (await placed(c, "gold"))["interfaces"]
    assert (interface["min_tx_rate"], interface["previous_min_tx_rate"]) == (600, 300)


@pytest.mark.parametrize(("refused_mbps", "counted_mbps"), [(650, 650), (300, 500)])
async def test_change_that_the_node_refuses_is_superseded_and_the_largest_counts_until_that_is_programmed(
    c: World, refused_mbps: int, counted_mbps: int
):
    await ask(c, "gold", (refused_mbps, 0))
    await status(c, "gold", "admitted")
    refuses(c, "gold", 1, "interface eth0: its link is\ndown")
    await c.fitting("probe")
    found = await status(c, "gold", "admitted", lambda now: bool(now.message))
    assert found.message == r"node w1 refuses it: interface eth0: its link is\ndown"
    await ask(c, "gold", (400, 0))
    await status(c, "gold", "admitted", lambda now: now.generation == 2)
    [interface] = (await placed(c, "gold"))["interfaces"]
    assert (interface["min_tx_rate"], interface["previous_min_tx_rate"]) == (400, counted_mbps)
    assert await used_mbps(c) == counted_mbps + 300
    programs(c, ("gold", 1, refused_mbps), ("silver", 0, 300))  # late, as the node tries again
    assert await used_mbps(c) == counted_mbps + 300
    programs(c, ("gold", 2, 400), ("silver", 0, 300))
    assert await used_mbps(c) == 700
    assert (await status(c, "gold", "programmed")).generation == 2


async def test_refused_change_is_not_superseded_by_more_than_the_link_has(c: World):
    await ask(c, "gold", (650, 0))
    await status(c, "gold", "admitted")
    refuses(c, "gold", 1, "no")
    await c.fitting("probe")
    await ask(c, "gold", (701, 0))
    found = await status(c, "gold", "refused")
    assert found.generation == 1
    assert found.message.endswith("others leave 700 of 1000 Mb/s to the pod; the pod has 650 Mb/s there now")
    assert await used_mbps(c) == 950


async def test_refusal_of_an_earlier_generation_does_not_let_another_change_supersede(c: World):
    await ask(c, "gold", (400, 0))
    await status(c, "gold", "admitted")
    refuses(c, "gold", 0, "no")
    await c.fitting("probe")
    await ask(c, "gold", (300, 0))
    await status(c, "gold", "waiting")


def refusal(document: object) -> bytes:
    body = json.dumps(document).encode()
    return b"HTTP/1.1 409 Conflict\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


async def test_placement_is_delivered_to_an_agent_without_credentials_until_it_is_programmed(c: World):
    await ask(c, "silver", (200, 0))
    await status(c, "silver", "admitted")
    assert c.nodes["w1"].delivered == []
    takes_placements(c)
    await c.fitting("probe")
    await ask(c, "gold", (700, 900))
    await status(c, "gold", "admitted")
    await delivered(c, 1)
    gold = [text for text in c.nodes["w1"].delivered if c.pods["gold"]["metadata"]["uid"] in text]
    assert gold[0] == (await annotations_of(c, "gold"))[PLACEMENT_ANNOTATION]
    c.nodes["w1"].delivered.clear()
    await delivered(c, 1)  # once more, as it is not programmed yet
    programs(c, ("gold", 1, 700), ("silver", 1, 200))
    takes_placements(c)
    await c.fitting("probe")
    await status(c, "gold", "programmed")


async def test_change_on_a_node_that_does_not_answer_keeps_no_change_on_another_waiting():
    async with world("w1", "w2", key=KEY, node_timeout_s=20.0) as c:
        await start(c)
        await c.create_pod("other", annotation=asked((100, 0)))
        assert await c.bind("other", "w2") == ""
        c.nodes["w1"].answering.clear()
        c.nodes["w1"].heard.clear()
        await ask(c, "gold", (400, 0))
        await c.nodes["w1"].heard.wait()
        await ask(c, "other", (200, 0))
        async with asyncio.timeout(120):
            await status(c, "other", "admitted")
        assert RATES_STATUS_ANNOTATION not in await annotations_of(c, "gold")
        c.nodes["w1"].answering.set()
        await status(c, "gold", "admitted")


@pytest.mark.parametrize(
    ("verdict", "why"),
    [
        (
            refusal({"error": {"reason": "not_allowed", "message": "no key \x1b"}}),
            r"node w1 refuses it: no key \x1b",
        ),
        (b"HTTP/1.1 403 F\r\nContent-Length: 1\r\n\r\nx", "/v1/placements answers HTTP 403"),
    ],
)
async def test_refused_delivery_is_shown_and_lets_the_next_edit_supersede(c: World, verdict: bytes, why: str):
    takes_placements(c)
    c.nodes["w1"].verdict = verdict
    await c.fitting("probe")
    await ask(c, "gold", (300, 0))
    found = await status(c, "gold", "admitted", lambda now: bool(now.message))
    assert why in found.message
    await ask(c, "gold", (400, 0))
    await status(c, "gold", "admitted", lambda now: now.generation == 2)
    assert await used_mbps(c) == 800


@pytest.mark.parametrize("verdict", [b"HTTP/1.1 503 S\r\nContent-Length: 0\r\n\r\n", b"nonsense\r\n\r\n"])
async def test_delivery_without_a_verdict_is_no_refusal(c: World, verdict: bytes):
    takes_placements(c)
    c.nodes["w1"].verdict = verdict
    await c.fitting("probe")
    await ask(c, "gold", (300, 0))
    await status(c, "gold", "admitted")
    await delivered(c, 1)
    await ask(c, "gold", (400, 0))
    await status(c, "gold", "waiting")


async def test_restarted_agent_gets_the_placement_at_once(c: World):
    takes_placements(c)
    await c.fitting("probe")
    await ask(c, "gold", (300, 0))
    await status(c, "gold", "admitted")
    await delivered(c, 1)
    while c.extender.rate_changes._busy:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    pending = c.extender.wanted_rates.pending.by_uid[c.pods["gold"]["metadata"]["uid"]]
    pending.due_at = math.inf  # its attempts have become rare
    node = c.nodes["w1"]
    node.delivered.clear()
    node.report = replace(node.report, generation="restarted.1")
    await c.fitting("probe")
    await delivered(c, 1)


async def test_outcomes_are_events_of_the_pod(c: World):
    await ask(c, "gold", (700, 900))
    await status(c, "gold", "admitted")
    assert await events(c, "RdmaRatesAdmitted") == [
        "the rates of generation 1 are reserved on node w1: 0: min 700, max 900 Mb/s"
    ]
    await ask(c, "silver", (5_000, 0))
    await status(c, "silver", "refused")
    [message] = await events(c, "RdmaRatesRefused")
    assert message.startswith("PF enp3s0f0: 5000 Mb/s needed, and others leave 300 of 1000 Mb/s")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (asked((500, 600), (1, 0)), "runs with 1 interfaces, and its annotation asks for 2"),
        ("[]", "runs with 1 interfaces, and its annotation asks for 0"),
        ('[{"min_tx_rate": 700, "vlan": 5}]', "interface 0 differs in more than its rates"),
        ('[{"min_tx_rate": 700, "pf": "enp9s0"}]', "interface 0 differs in more than its rates"),
        ('[{"min_tx_rate": 700, "enforce": "hardware"}]', "interface 0 differs in more than its rates"),
        ('[{"min_tx_rate": 700', "not JSON"),
        ('[{"min_tx_rate": -1}]', "-1 is negative"),
        ('[{"min_tx_rate": 5, "max_tx_rate": 4}]', "5 is above max_tx_rate 4"),
        (asked((5_000, 0)), "PF enp3s0f0: 5000 Mb/s needed"),
    ],
)
async def test_edit_of_more_than_rates_is_refused_without_effect(c: World, text: str, message: str):
    before = await placed(c, "gold")
    await edit(c, "gold", text)
    assert message in (await status(c, "gold", "refused")).message
    assert await placed(c, "gold") == before
    assert await used_mbps(c) == 800


@pytest.mark.parametrize("fault", Fault)
async def test_write_that_goes_wrong_is_settled_and_the_change_is_made_once(c: World, fault: Fault):
    c.api.rate_faults.append(fault)
    await ask(c, "gold", (700, 0))
    found = await status(c, "gold", "admitted")
    c.api.late.set()
    await asyncio.gather(*c.api.late_writes)
    assert found.generation == 1
    assert (await placed(c, "gold"))["generation"] == 1
    assert await used_mbps(c) == 1_000


async def test_write_in_doubt_is_reserved_until_it_is_settled(c: World):
    c.api.rate_faults.append(Fault.LATE)
    c.api.untouched = 10_000
    await ask(c, "gold", (700, 0))
    await until(lambda: bool(c.extender.pod_writer.undecided()))
    assert await used_mbps(c) == 1_000
    c.api.late.set()
    await asyncio.gather(*c.api.late_writes)
    c.api.untouched = 0
    assert (await status(c, "gold", "admitted")).generation == 1
    assert await used_mbps(c) == 1_000


async def test_operator_may_forbid_changes():
    async with world("w1", key=KEY, live_rates=False) as c:
        await start(c)
        await ask(c, "gold", (700, 0))
        assert (await status(c, "gold", "refused")).message == (
            "rates of running pods do not change here (liveRates)"
        )


async def test_policy_of_a_namespace_may_forbid_changes(tmp_path: Path):
    policies = tmp_path / "policies.yaml"
    policies.write_text("policies: [{name: fixed, namespaces: [default], liveRates: false}]")
    async with world("w1", key=KEY, policy_file=str(policies)) as c:
        await start(c)
        await ask(c, "gold", (700, 0))
        assert "liveRates" in (await status(c, "gold", "refused")).message


async def test_limit_of_the_namespace_holds_for_changes():
    limits = (NamespaceLimit(namespace="default", reserved_mbps=900),)
    async with world("w1", key=KEY, limits=limits) as c:
        await start(c)
        await ask(c, "gold", (601, 0))
        found = await status(c, "gold", "refused")
        assert found.message == "namespace default holds 300 of 900 reserved Mb/s; needs 601"
        await ask(c, "gold", (600, 0))
        await status(c, "gold", "admitted")


async def test_next_extender_counts_both_generations_and_goes_on(c: World):
    await ask(c, "gold", (200, 0))
    await status(c, "gold", "admitted")
    async with extending(c, KEY):
        assert await used_mbps(c) == 800
        programs(c, ("gold", 1, 200), ("silver", 0, 300))
        await c.fitting("probe")
        assert (await status(c, "gold", "programmed")).generation == 1
        assert await used_mbps(c) == 500


async def test_next_binder_touches_pods_whose_change_the_one_before_may_have_decided(c: World):
    c.api.rate_faults.append(Fault.LATE)
    c.api.untouched = 10_000
    await ask(c, "gold", (700, 0))
    await until(lambda: bool(c.extender.pod_writer.undecided()))
    other = World(
        api=FaultyApi(c.api.real, rate_faults=[Fault.UNREACHABLE] * 100),
        server=c.server,
        http=c.http,
        nodes=c.nodes,
        port=c.port,
        pods=c.pods,
    )
    async with extending(other, KEY):
        assert set(other.api.fenced) == {"gold", "probe"}
        c.api.late.set()
        await asyncio.gather(*c.api.late_writes)
        assert generation_in((await annotations_of(c, "gold"))[PLACEMENT_ANNOTATION]) == 0
    c.api.untouched = 0


async def test_no_change_is_decided_while_another_holds_the_lease():
    async with cluster("w1") as c:
        config = LeaderElectionConfig(namespace="default", name="l", holder="us", lease_s=3600)
        lease = LeaderElector(c.api.real, config, time.monotonic)
        async with extending(c, KEY, lease):
            await until(lambda: not c.extender.missing())
            await start(c)
            path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/l"
            taken = await c.http.patch(path, json={"spec": {"holderIdentity": "another"}}, headers=MERGE)
            assert taken.status_code == 200
            await ask(c, "gold", (700, 0))
            reads = c.api.reads
            await until(lambda: c.api.reads >= reads + 2)  # it was tried, and is tried again
            assert RATES_STATUS_ANNOTATION not in await annotations_of(c, "gold")
            assert await used_mbps(c) == 800
