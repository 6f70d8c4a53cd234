"""filter and prioritize, from the body to the reply, over real nodes."""

from __future__ import annotations

import itertools
import json

import pytest
from msgspec import structs

from extender.node_server import PF0, PF1, pf, rates, report
from extender.world import cluster, extending, interfaces, until, world
from k8s_rdma.core.types import NodeName
from k8s_rdma.extender.node_source import facts_of

pytestmark = pytest.mark.anyio

NOT_ENOUGH = "RDMA Scheduler Extension: Node did not have enough free RDMA resources. ("
UNREADABLE = "RDMA Scheduler Extension: Unable to collect information on available RDMA resources for node. ("
MALFORMED = "RDMA Scheduler Extension: 'rdma_interfaces_required' field in pod YAML file is malformatted. ("


async def test_filter_passes_the_nodes_that_fit_in_the_requests_order():
    async with world("w1", "w2", "w3") as w:
        w.nodes["w2"].holds(other=9_000)
        await w.create_pod("p", 5_000)
        result = await w.filter("p", "w3", "w2", "w1")
    assert result["NodeNames"] == ["w3", "w1"]
    assert result["Nodes"] is None
    assert list(result["FailedNodes"]) == ["w2"]
    assert result["FailedNodes"]["w2"].startswith(NOT_ENOUGH)
    assert result["FailedAndUnresolvableNodes"] == {}
    assert result["Error"] == ""


async def test_filter_shows_the_nodes_own_numbers_when_it_refuses():
    async with world("w1") as w:
        w.nodes["w1"].holds(other=9_000)
        await w.create_pod("p", 5_000)
        why = (await w.filter("p"))["FailedNodes"]["w1"]
    assert "5000 Mb/s" in why
    assert "1000 Mb/s" in why
    assert "3 VFs" in why


@pytest.mark.parametrize("pfs", [(), (pf(mbps=4_000),), (pf(vfs=0),)], ids=["no_pf", "slow_link", "no_vf"])
async def test_filter_calls_a_node_unresolvable_when_no_eviction_could_help(pfs):
    async with world("w1") as w:
        empty = report("w1", pf())
        w.nodes["w1"].report = type(empty)(node="w1", generation="epoch.2", ledger="ok", pfs=pfs)
        await w.create_pod("p", 5_000)
        result = await w.filter("p")
    assert result["FailedNodes"] == {}
    assert result["FailedAndUnresolvableNodes"]["w1"].startswith(NOT_ENOUGH)


async def test_filter_refuses_every_node_for_good_when_the_annotation_is_malformed():
    async with world("w1", "w2") as w:
        await w.create_pod("p", annotation='[{"min_tx_rate": -1}]')
        result = await w.filter("p")
        assert not w.nodes["w1"].asked
    refused = result["FailedAndUnresolvableNodes"]
    assert set(refused) == {"w1", "w2"}
    assert refused["w1"].startswith(MALFORMED)
    assert "rdma_interfaces_required[0].min_tx_rate" in refused["w1"]
    assert result["NodeNames"] == []
    assert result["FailedNodes"] == {}


@pytest.mark.parametrize("annotation", [None, "", "[]"])
async def test_filter_passes_every_node_unread_if_no_interface_is_requested(annotation):
    async with world("w1", "w2") as w:
        await w.create_pod("p", annotation=annotation)
        wanted = None if annotation is None else {"rdma_interfaces_required": annotation}
        w.pods["p"]["metadata"]["annotations"] = wanted
        assert await w.fitting("p") == ["w1", "w2"]
        assert await w.prioritize("p") == {"w1": 0, "w2": 0}
        assert not w.nodes["w1"].asked


async def test_filter_ignores_unknown_keys_when_configured_so():
    async with world("w1", strict=False) as w:
        await w.create_pod("p", annotation='[{"max-tx-rate": 5}]')
        assert await w.fitting("p") == ["w1"]


async def test_filter_refuses_only_the_node_that_does_not_answer():
    async with world("w1", "w2", node_timeout_s=0.1) as w:
        w.nodes["w1"].answering.clear()
        await w.create_pod("p", 1)
        result = await w.filter("p")
        assert result["NodeNames"] == ["w2"]
        why = result["FailedNodes"]["w1"]
        assert why.startswith(UNREADABLE)
        assert f"{w.nodes['w1'].address}:{w.port}: no answer in 0.1 s" in why


async def test_filter_leaves_a_node_that_timed_out_alone_for_a_while():
    async with world("w1", node_timeout_s=0.05, retry_s=3600) as w:
        w.nodes["w1"].answering.clear()
        await w.create_pod("p", 1)
        await w.filter("p")
        await w.filter("p")
        assert w.nodes["w1"].asked == 1


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n", "HTTP 500"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "node"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", "before the answer's end"),
        (b"HTTP/1.1 304 Not Modified\r\n\r\n", "HTTP 304"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "not HTTP"),
        (b"", "before the answer's end"),
    ],
)
async def test_filter_refuses_a_node_that_answers_nonsense(raw, why):
    async with world("w1") as w:
        w.nodes["w1"].raw = raw
        await w.create_pod("p", 1)
        refused = (await w.filter("p"))["FailedNodes"]["w1"]
    assert refused.startswith(UNREADABLE)
    assert why in refused


async def test_filter_refuses_a_node_whose_agent_is_down():
    async with world("w1") as w:
        up = w.nodes["w1"].report
        w.nodes["w1"].report = type(up)(node="w1", generation="epoch.2", ledger="unavailable", pfs=up.pfs)
        await w.create_pod("p", 1)
        assert "agent is down" in (await w.filter("p"))["FailedNodes"]["w1"]


async def test_filter_refuses_a_node_whose_address_answers_for_another():
    async with world("w1") as w:
        w.nodes["w1"].report = report("w2")
        await w.create_pod("p", 1)
        assert "answers for node 'w2'" in (await w.filter("p"))["FailedNodes"]["w1"]


async def test_filter_refuses_a_node_that_the_api_server_does_not_know():
    async with world("w1") as w:
        await w.create_pod("p", 1)
        result = await w.filter("p", "w1", "w9")
        assert result["NodeNames"] == ["w1"]
        assert result["FailedNodes"]["w9"].startswith(UNREADABLE)


async def test_filter_tries_a_nodes_addresses_in_turn_and_keeps_to_the_one_that_answers():
    async with world("w1") as w:
        node = w.nodes["w1"]
        await w.create_node("w2", "127.0.9.9", node.address)
        node.report = report("w2")
        await w.create_pod("p", 1)
        await until(w.expect(nodes_readable=0))
        assert await w.fitting("p", "w2") == ["w2"]
        assert await w.fitting("p", "w2") == ["w2"]
        assert node.connections == 1


async def test_filter_asks_conditionally_over_one_connection_when_it_asks_again():
    async with world("w1") as w:
        await w.create_pod("p", 1)
        for _ in range(3):
            assert await w.fitting("p") == ["w1"]
        node = w.nodes["w1"]
        assert node.asked == 3
        assert node.connections == 1
        assert node.conditions == [b'"epoch.1"'] * 2
        assert w.metric("node_unchanged_total") == 2


async def test_filter_connects_again_when_the_node_closed_the_connection():
    async with world("w1") as w:
        await w.create_pod("p", 1)
        w.nodes["w1"].raw = b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"
        assert await w.fitting("p") == []
        w.nodes["w1"].raw = None
        assert await w.fitting("p") == ["w1"]
        assert w.nodes["w1"].connections == 2


async def test_prioritize_does_not_read_again_nodes_that_filter_just_read():
    async with world("w1", max_age_s=3600.0) as w:
        await w.create_pod("p", 1)
        await w.filter("p")
        assert set(await w.prioritize("p")) == {"w1"}
        assert w.nodes["w1"].asked == 1


async def test_prioritize_prefers_the_fuller_node_and_scores_zero_without_room():
    async with world("w1", "w2", "w3") as w:
        w.nodes["w2"].holds(a=4_000)
        w.nodes["w3"].holds(a=9_999)
        await w.create_pod("p", 2_000)
        scores = await w.prioritize("p")
    assert 10 >= scores["w2"] > scores["w1"] >= 0
    assert scores["w3"] == 0


@pytest.mark.parametrize(
    ("reserved", "expected"),
    [
        ((4_000, 4_100, 4_200), [6, 6, 7]),
        ((4_000, 4_100, 3_000), [6, 7, 5]),
        ((8_000, 7_900, 7_900), [10, 9, 9]),
        ((8_000, 8_000, 7_900), [10, 10, 9]),
    ],
)
async def test_prioritize_has_the_best_node_win_if_tenths_are_equal(
    reserved: tuple[int, ...], expected: list[int]
):
    async with world("w1", "w2", "w3") as w:
        for node, mbps in zip(w.nodes.values(), reserved, strict=True):
            node.holds(a=mbps)
        await w.create_pod("p", 2_000)
        assert [*(await w.prioritize("p")).values()] == expected


async def test_filter_counts_once_for_nodes_in_an_equal_situation():
    async with world(*(f"w{i}" for i in range(8))) as w:
        w.nodes["w7"].holds(a=1)
        await w.create_pod("p", 2_000, 3_000)
        await w.create_pod("q", 2_000, 3_000)
        assert len(await w.fitting("p")) == 8
        assert len(await w.fitting("q")) == 8
        assert w.metric("counted_total") == 2
        assert w.metric("searches_total") == 0


async def test_filter_counts_foreign_use():
    async with world("w1") as w:
        w.nodes["w1"].report = report("w1", pf(PF0, foreign=[6_000]), pf(PF1, mbps=None))
        await w.create_pod("p", 5_000)
        await w.create_pod("q", 4_000)
        assert await w.fitting("p") == []
        assert await w.fitting("q") == ["w1"]


async def test_filter_refuses_nodes_beyond_its_search_time_for_now_and_continues_next_time():
    async with world("w1", "w2", "w3") as w:
        for held, node in enumerate(w.nodes.values()):
            node.holds(a=held + 1)
        await w.create_pod("p", 1_000, 5_000)  # which counting does not decide
        verdicts = w.extender.scheduling.feasibility
        verdicts.queue.clock = itertools.count(0.0, 10.0).__next__  # every search takes ten seconds
        for reached in (["w1"], ["w1", "w2"], ["w1", "w2", "w3"]):
            result = await w.filter("p")
            assert result["NodeNames"] == reached
            assert all("new and takes long" in why for why in result["FailedNodes"].values())
            assert len(result["FailedNodes"]) == 3 - len(reached)


WEIGHTS = rates(weights=100)
CAPS_ONLY = structs.replace(rates(), min=None)


async def test_filter_calls_a_node_unresolvable_if_its_driver_cannot_program_demanded_rates():
    async with world("w1", "w2") as w:
        w.nodes["w1"].report = report("w1", pf(PF0, rates=CAPS_ONLY, enforce="hardware"))
        w.nodes["w2"].report = report("w2", pf(PF0, rates=CAPS_ONLY))
        await w.create_pod("p", 2_000)
        await w.create_pod("q", annotation='[{"min_tx_rate": 2000, "enforce": "hardware"}]')
        await w.create_pod("r", annotation='[{"max_tx_rate": 2000, "enforce": "hardware"}]')
        for_p, for_q, for_r = [await w.filter(name) for name in "pqr"]
    assert (for_p["NodeNames"], for_q["NodeNames"], for_r["NodeNames"]) == (["w2"], [], ["w1", "w2"])
    assert for_p["FailedAndUnresolvableNodes"]["w1"] == (
        f"{NOT_ENOUGH}needs 1 interface of 2000 Mb/s; 1 PF: mlx5_core takes no minimum rates "
        "(2000 Mb/s wanted), and enforcement by hardware is demanded there)"
    )
    assert "demanded by the pod" in for_q["FailedAndUnresolvableNodes"]["w2"]


async def test_filter_refuses_a_node_whose_agent_cannot_cap_by_software_until_it_can():
    async with world("old", "new") as w:
        w.nodes["old"].report = report("old", pf(PF0))
        w.nodes["new"].report = report("new", pf(PF0, takes=("software-caps",)))
        await w.create_pod("p", annotation='[{"max_tx_rate": 2000, "enforce": "software"}]')
        result = await w.filter("p")
        w.nodes["old"].report = report("old", pf(PF0, takes=("software-caps",)), generation=2)
        updated = await w.filter("p")
    assert (result["NodeNames"], updated["NodeNames"]) == (["new"], ["old", "new"])
    assert result["FailedAndUnresolvableNodes"]["old"] == (
        f"{NOT_ENOUGH}needs 1 interface; 1 PF: its node caps nothing by software: "
        "the kernel lacks sch_tbf, or the agent is too old)"
    )


async def test_filter_refuses_interfaces_that_software_cannot_cap_if_the_configuration_demands_it():
    async with world("w1") as w:
        there = pf(PF0, enforce="software", takes=("software-caps", "vfio-pci"))
        w.nodes["w1"].report = report("w1", there)
        await w.create_pod("p", annotation='[{"max_tx_rate": 2000, "driver": "vfio-pci"}]')
        await w.create_pod("q", annotation='[{"max_tx_rate": 2000}]')
        result, for_q = await w.filter("p"), await w.filter("q")
    said = str(result)
    assert (
        "1 PF: software cannot cap a VF that is given to vfio-pci (2000 Mb/s wanted), and enforcement by"
        in said
    )
    assert "by software is demanded there" in said
    assert for_q["NodeNames"] == ["w1"]


async def test_filter_and_bind_refuse_a_reservation_whose_weight_would_take_from_others():
    async with world("w1") as w:
        w.nodes["w1"].report = report("w1", pf(PF0, rates=WEIGHTS), held={"a": 5_000, "b": 0})
        await w.create_pod("p", 5_000)
        await w.create_pod("q", 4_900)
        assert "would get 4975 of its 5000 Mb/s" in (await w.filter("p"))["FailedNodes"]["w1"]
        assert "would get 4975 of its 5000 Mb/s" in await w.bind("p", "w1")
        assert await w.fitting("q") == ["w1"]
        assert await w.bind("q", "w1") == ""


async def test_filter_counts_promises_one_by_one_if_minima_are_weights():
    async with world("w1") as w:
        w.nodes["w1"].report = report("w1", pf(PF0, rates=WEIGHTS))
        for name, rate in {"p": 5_000, "q": 0, "r": 5_000}.items():
            await w.create_pod(name, rate)
        assert await w.bind("p", "w1") == ""
        assert await w.bind("q", "w1") == ""
        assert await w.fitting("r") == []


async def test_filter_refuses_a_node_of_which_not_everything_could_be_seen():
    async with world("w1") as w:
        w.nodes["w1"].report = structs.replace(report("w1", generation=2), unreadable=("enp4s0f0: EIO",))
        await w.create_pod("p", 1)
        refused = await w.filter("p")
    assert refused["NodeNames"] == []
    assert refused["FailedNodes"]["w1"].startswith(UNREADABLE)
    assert "enp4s0f0: EIO" in refused["FailedNodes"]["w1"]


async def test_filter_answers_an_empty_question_with_no_node():
    async with world("w1") as w:
        await w.create_pod("p", 1)
        body = {"Pod": w.pods["p"], "Nodes": None, "NodeNames": []}
        result = json.loads(await w.extender.filter(json.dumps(body).encode()))
        assert (result["NodeNames"], result["FailedNodes"], result["Error"]) == ([], {}, "")
        assert json.loads(await w.extender.prioritize(json.dumps(body).encode())) == []
        assert w.metric("pods_waiting") == 0


async def test_filter_uses_the_latest_annotation_of_a_pod_that_comes_again():
    async with world("w1") as w:
        await w.create_pod("p", 5_000)
        meta = w.pods["p"]["metadata"]
        asked = []
        for wanted in (interfaces(5_000), interfaces(11_000), "[{", None, interfaces(6_000)):
            meta["annotations"] = {"rdma_interfaces_required": wanted} if wanted is not None else None
            asked.append(bool(await w.fitting("p")))
        assert asked == [True, False, False, True, True]
        assert w.metric("pods_waiting") == 0
        assert w.extender.cache.requests.get(meta["uid"]).request.interfaces[0].min_tx_rate_mbps == 6_000


FULL = '{"metadata":{},"items":[{"metadata": {"name":"w1"},"spec" : {}},{"neither":"name nor end"}]}'


async def test_filter_passes_node_objects_through_unread_if_no_interface_is_requested():
    async with world("w1") as w:
        await w.create_pod("p")
        body = json.dumps({"Pod": w.pods["p"], "Nodes": 0, "NodeNames": None})
        body = body.replace('"Nodes": 0', f'"Nodes":{FULL}')
        answer = await w.extender.filter(body.encode())
        assert f'"Nodes":{FULL},"NodeNames":null'.encode() in answer
        assert w.metric('decisions_total{reason="nothing_asked",verb="filter"}') == 1


async def test_filter_and_bind_serve_pods_without_requests_before_any_report():
    """Neither the Lease nor a list of pods is waited for."""
    async with cluster("w1") as c:
        c.api.watching.clear()
        async with extending(c) as w:
            assert w.extender.missing()
            await w.create_pod("ordinary")
            await w.create_pod("rdma", 1)
            assert await w.fitting("ordinary") == ["w1"]
            assert await w.bind("ordinary", "w1") == ""
            assert await w.node_of("ordinary") == "w1"
            assert "is starting" in (await w.filter("rdma"))["Error"]
            [binding] = w.api.started
            assert (binding.annotations, binding.version) == ({}, "")


async def test_filter_refuses_a_pod_that_the_scheduler_counts_as_another_number_of_vfs():
    async with world("w1", vf_resource="example.com/vfs") as w:
        await w.create_pod("p", 0, 0)
        w.pods["p"]["spec"]["containers"][0]["resources"] = {"requests": {"example.com/vfs": "3"}}
        refused = (await w.filter("p"))["FailedAndUnresolvableNodes"]["w1"]
        assert refused == (
            f"{MALFORMED}rdma_interfaces_required: asks for 2 interfaces, but the pod's containers request 3 "
            "of example.com/vfs; the two numbers must be equal)"
        )
        w.pods["p"]["spec"]["containers"][0]["resources"] = {"requests": {"example.com/vfs": "2"}}
        assert await w.fitting("p") == ["w1"]


async def test_filter_answers_in_full_when_thousands_of_nodes_refuse():
    async with world("w1") as w:
        w.nodes["w1"].holds(other=9_000)
        await w.create_pod("p", 5_000)
        await w.filter("p")
        state = w.extender.cache.state
        names = [f"n{index}" for index in range(5_000)]
        for name in names:
            state.observe(NodeName(name), facts_of(report(name, held={"other": 9_000}), name), 1.0)
        result = await w.filter("p", *names)
        assert list(result["FailedNodes"]) == names
        assert len(set(result["FailedNodes"].values())) == 1
        assert w.metric("counted_total") == 1
