"""Pods that ask for more than rates: where they fit, their promises, and how these are counted."""

from __future__ import annotations

import json

import pytest
from msgspec import structs

from extender.node_server import PF0, PF1, held_interface, pf, report
from extender.world import until, world
from k8s_rdma.core.types import NodeName, PodUid
from k8s_rdma.wire.placement_annotation import PLACEMENT_ANNOTATION, decode
from k8s_rdma.wire.placement_keys import PlacementKeys

pytestmark = pytest.mark.anyio

KEY = PlacementKeys.shared(b"a key that agents share")
NOT_ENOUGH = "RDMA Scheduler Extension: Node did not have enough free RDMA resources. ("
TAGGED = '[{"vlan": 100, "mac": "02:00:00:00:00:01", "name": "data0", "min_tx_rate": 2000}]'


async def test_filter_passes_nodes_whose_driver_can_set_the_requested_options():
    async with world("w1", "w2", "w3") as w:
        w.nodes["w1"].report = report("w1", pf(PF0, takes=("mac", "vlan")))
        w.nodes["w2"].report = report("w2", pf(PF0, takes=("mac",)))
        await w.create_pod("p", annotation=TAGGED)
        found = await w.filter("p")
    assert found["NodeNames"] == ["w1"]
    assert found["FailedAndUnresolvableNodes"] == {
        "w2": f"{NOT_ENOUGH}needs 1 interface of 2000 Mb/s; 1 PF: mlx5_core cannot set vlan of a VF)",
        "w3": f"{NOT_ENOUGH}needs 1 interface of 2000 Mb/s; 1 PF: mlx5_core cannot set mac, vlan of a VF)",
    }


async def test_filter_refuses_options_by_field_for_every_node():
    async with world("w1", "w2") as w:
        await w.create_pod("p", annotation='[{}, {"mtu": 9000, "driver": "vfio-pci"}]')
        found = await w.filter("p")
    assert "rdma_interfaces_required[1].mtu: is of a network device" in json.dumps(found)


async def test_bind_promises_the_requested_options_on_the_selected_pf():
    async with world("w1", key=KEY) as w:
        w.nodes["w1"].report = report(
            "w1", *(pf(each, takes=("mac", "vlan", "mtu"), mtu=9000) for each in (PF0, PF1))
        )
        annotation = json.dumps([*json.loads(TAGGED), {"pf": PF1, "mtu": 9000, "count": 2}])
        await w.create_pod("p", annotation=annotation)
        assert await w.fitting("p") == ["w1"]
        assert await w.bind("p", "w1") == ""
        pod = await w.read_pod("p")
        text = pod["metadata"]["annotations"][PLACEMENT_ANNOTATION]
        given = decode(text, uid=PodUid(pod["metadata"]["uid"]), node=NodeName("w1"), keys=KEY)
    first, *others = given.interfaces
    assert (first.options.name, first.options.vlan, first.options.mac) == ("data0", 100, "02:00:00:00:00:01")
    assert [(each.pf, each.options.mtu) for each in others] == [(PF1, 9000)] * 2


async def test_pod_that_waits_for_an_mtu_is_tried_again_when_the_pf_has_it():
    async with world("w1") as w:
        w.nodes["w1"].report = report("w1", pf(PF0, takes=("mtu",), mtu=1500))
        await w.create_pod("p", annotation='[{"mtu": 9000}]')
        refused = await w.filter("p")
        assert "its MTU is 1500, and mtu is 9000" in refused["FailedAndUnresolvableNodes"]["w1"]
        w.nodes["w1"].report = report("w1", pf(PF0, takes=("mtu",), mtu=9000), generation=2)
        await until(lambda: w.api.touched == ["w1"])
        assert await w.fitting("p") == ["w1"]


async def test_networks_that_a_pod_is_not_attached_to_yet_are_kept_for_it():
    async with world("w1") as w:
        await w.create_pod("p", 3_000, 4_000)
        await w.create_pod("q", 4_000)
        await w.create_pod("r", 3_000)
        assert await w.bind("p", "w1") == ""
        uid = w.pods["p"]["metadata"]["uid"]
        held = report("w1", generation=2, held={uid: 3_000})
        [allocation] = held.allocations
        first = structs.replace(held_interface(PF0, 3_000), entry=0)
        w.nodes["w1"].report = structs.replace(
            held, allocations=(structs.replace(allocation, interfaces=(first,)),)
        )
        assert await w.fitting("q") == []
        assert await w.fitting("r") == ["w1"]
