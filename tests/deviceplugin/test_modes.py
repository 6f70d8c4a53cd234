"""Devices that resources offer, give and refuse."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deviceplugin.inventories import ALL, PF_0, PF_1, SOFT, VF_2, VF_3, device, given, node, seen
from k8s_rdma.config.devices import (
    DevicePluginConfig,
    ExactResource,
    ExclusiveResource,
    MountResource,
    Selector,
    SharedResource,
    SharedSelector,
)
from k8s_rdma.core.devices.pod_devices import Choice, DeviceSpec, slot_device
from k8s_rdma.core.devices.pools import FunctionKind
from k8s_rdma.core.devices.rdma_devices import DeviceInventory, NetnsMode, NodeKind
from k8s_rdma.core.types import LinkType
from k8s_rdma.deviceplugin.modes import mode_of, modes_of, to_publish
from k8s_rdma.errors import STATUS, K8sRdmaError, MalformedError, Reason

EXCLUSIVE = "tencent.com/rdma"
VFS = Selector(functions=FunctionKind.VF)
RDMA_CM = DeviceSpec(path="/dev/infiniband/rdma_cm", permissions="rw")


def exclusive(**changes):
    return mode_of(ExclusiveResource(**{"select": VFS, **changes}))


def shared(**changes):
    return mode_of(SharedResource(**{"name": "rdma/hca", "count": 3, **changes}))


def ids(offered):
    return [each.id for each in offered]


def healthy(offered):
    return [each.id for each in offered if not each.unhealthy]


def why(offered, device_id):
    return next(each.unhealthy for each in offered if each.id == device_id)


def paths(answer):
    return [each.path.removeprefix("/dev/infiniband/") for each in answer.devices]


def refusal(mode, device_ids, looked, reason=Reason.UNKNOWN_DEVICE):
    with pytest.raises(K8sRdmaError) as refused:
        mode.allocate(device_ids, looked)
    assert refused.value.reason is reason
    assert mode.resource in refused.value.message
    return refused.value.message


EVERY_MODE = [
    mode_of(ExactResource()),
    mode_of(MountResource()),
    mode_of(MountResource(scope="devices")),
    mode_of(MountResource(scope="rdma-cm-only")),
    exclusive(),
    exclusive(cdi=True),
    shared(),
    modes_of(DevicePluginConfig(resources=(ExclusiveResource(share=4),)))[1],
]


@pytest.mark.parametrize("mode", EVERY_MODE)
def test_every_mode_gives_devices_that_it_offers_as_healthy(mode):
    offered = mode.offer(seen())
    assert healthy(offered) == ids(offered)
    for each in offered[:3]:
        answer = mode.allocate([each.id], seen())
        assert answer.devices or answer.cdi_devices


@pytest.mark.parametrize("mode", EVERY_MODE)
def test_every_mode_refuses_devices_that_it_does_not_offer(mode):
    assert "no-such" in refusal(mode, [mode.offer(seen())[0].id, "no-such"], seen())
    assert STATUS[Reason.UNKNOWN_DEVICE].grpc == 3


@pytest.mark.parametrize("mode", EVERY_MODE)
def test_every_mode_offers_no_healthy_device_before_the_first_scan(mode):
    offered = mode.offer(DeviceInventory())
    assert healthy(offered) == []
    for each in offered[:2]:
        assert each.id in (told := refusal(mode, [each.id], DeviceInventory()))
        assert each.unhealthy in told


@pytest.mark.parametrize("mode", EVERY_MODE)
def test_every_mode_prefers_the_requested_number(mode):
    available = tuple(ids(mode.offer(seen()))[:4])
    chosen = mode.prefer(Choice(available=available, must_include=available[-1:], size=2), seen())
    assert len(set(chosen)) == 2
    assert available[-1] in chosen
    assert set(chosen) <= set(available)


@pytest.mark.parametrize("mode", EVERY_MODE)
@pytest.mark.parametrize(
    ("available", "must", "size"),
    [
        (("a", "b"), (), 3),
        (("a", "b"), ("c",), 1),
        (("a", "b"), ("a", "b"), 1),
        (("a",), (), -1),
        (("a", "a"), (), 2),
    ],
)
def test_every_mode_refuses_a_question_without_an_answer(mode, available, must, size):
    with pytest.raises(MalformedError, match=r"must_include_deviceIDs|allocation_size"):
        mode.prefer(Choice(available=available, must_include=must, size=size), seen())


@pytest.mark.parametrize("mode", EVERY_MODE)
def test_every_mode_answers_about_devices_that_it_does_not_know_any_more(mode):
    assert mode.prefer(Choice(available=("b", "a"), must_include=(), size=2), seen()) == ("a", "b")


def test_modes_are_those_of_all_resource_names_in_order():
    config = DevicePluginConfig(
        resources=(
            ExactResource(),
            MountResource(),
            ExclusiveResource(share=2),
            SharedResource(name="rdma/hca", count=1),
        )
    )
    assert tuple(each.resource for each in modes_of(config)) == config.resource_names()


# --- exact, and shares


def test_exact_gives_the_cdi_devices_of_its_slots_and_no_nodes():
    answer = mode_of(ExactResource()).allocate(["slot-7", "slot-2"], seen())
    assert answer.cdi_devices == (
        "k8s-rdma.io/slot=k8s-rdma.io_slot.slot-7",
        "k8s-rdma.io/slot=k8s-rdma.io_slot.slot-2",
    )
    assert (answer.devices, dict(answer.envs)) == ((), {})
    assert dict(answer.annotations) == {"devices.k8s-rdma.io/k8s-rdma.io_slot": "slot-7,slot-2"}


def test_exact_refuses_a_slot_that_an_attachment_still_holds():
    held = seen(held_slots=frozenset({slot_device("k8s-rdma.io/slot", "slot-7")}))
    mode = mode_of(ExactResource())
    assert "slot-7" in refusal(mode, ["slot-2", "slot-7"], held)
    assert mode.allocate(["slot-2"], held).cdi_devices


def test_exact_does_not_refuse_a_slot_of_the_same_name_that_another_resource_holds():
    held = seen(held_slots=frozenset({slot_device("tencent.com/rdma-shared", "slot-7")}))
    assert mode_of(ExactResource()).allocate(["slot-7"], held).cdi_devices


def test_exact_prefers_free_slots_and_of_these_the_lowest():
    held = seen(held_slots=frozenset({slot_device("k8s-rdma.io/slot", "slot-0")}))
    mode = mode_of(ExactResource(count=12))
    available = ("slot-10", "slot-9", "slot-0", "slot-2")
    assert mode.prefer(Choice(available=available, must_include=(), size=3), held) == (
        "slot-2",
        "slot-9",
        "slot-10",
    )
    assert mode.prefer(Choice(available=available, must_include=(), size=4), held)[0] == "slot-0"


def test_slots_are_unhealthy_until_the_agent_has_reported_the_held_ones():
    mode = mode_of(ExactResource(count=2))
    assert "agent" in why(mode.offer(seen(held_slots=None)), "slot-0")
    assert healthy(mode.offer(seen(allocated=None))) == ["slot-0", "slot-1"]


def test_share_gives_a_slot_of_its_own_resource():
    share = modes_of(DevicePluginConfig(resources=(ExclusiveResource(share=2),)))[1]
    assert ids(share.offer(seen())) == ["slot-0", "slot-1"]
    assert share.allocate(["slot-1"], seen()).cdi_devices == (
        "k8s-rdma.io/slot=tencent.com_rdma-shared.slot-1",
    )


# --- mount


def test_mount_gives_the_directory_as_ever():
    answer = mode_of(MountResource()).allocate(["slot-9999"], seen())
    assert answer.devices == (DeviceSpec(path="/dev/infiniband", permissions="rwm"),)
    assert (dict(answer.envs), dict(answer.annotations), answer.cdi_devices) == ({}, {}, ())


def test_mount_offers_10_000_devices_made_once():
    mode = mode_of(MountResource())
    assert mode.resource == "rdma-sriov/dev-infiniband-mount"
    offered = mode.offer(seen())
    assert len(offered) == 10_000
    assert mode.offer(seen(VF_2)) is offered
    assert not mode.prefers


def test_mount_of_devices_gives_the_nodes_that_there_are():
    answer = mode_of(MountResource(scope="devices")).allocate(["slot-0"], seen(VF_2, SOFT))
    assert paths(answer) == ["uverbs2", "umad2", "uverbs6", "rdma_cm"]
    assert {each.permissions for each in answer.devices} == {"rw"}
    assert answer.envs["K8S_RDMA_DEVICES_RDMA_SRIOV_DEV_INFINIBAND_MOUNT"] == "mlx5_2,rxe0"


def test_mount_of_devices_leaves_out_those_that_are_not_at_home():
    away = replace(VF_2, at_home=False)
    assert paths(mode_of(MountResource(scope="devices")).allocate(["slot-0"], seen(away, VF_3))) == [
        "uverbs3",
        "umad3",
        "rdma_cm",
    ]


def test_mount_of_rdma_cm_only_gives_that():
    answer = mode_of(MountResource(scope="rdma-cm-only", hints=True)).allocate(["slot-0"], seen())
    assert answer.devices == (RDMA_CM,)
    assert not answer.envs


@pytest.mark.parametrize(
    ("scope", "lacking"),
    [
        ("directory", {"directory": False}),
        ("rdma-cm-only", {"rdma_cm": False}),
        ("devices", {"devices": {"mlx5_2": replace(VF_2, nodes=())}}),
    ],
)
def test_mount_is_healthy_as_long_as_there_is_anything_to_give(scope, lacking):
    mode = mode_of(MountResource(scope=scope, count=2))
    assert healthy(mode.offer(seen(**lacking))) == []
    assert "slot-1" in refusal(mode, ["slot-1"], seen(**lacking))
    assert healthy(mode.offer(seen())) == ["slot-0", "slot-1"]


def test_mount_of_the_directory_names_devices_if_hints_are_configured():
    answer = mode_of(MountResource(hints=True)).allocate(["slot-0"], seen(VF_2, VF_3))
    assert answer.envs["NCCL_IB_HCA"] == "=mlx5_2,mlx5_3"


# --- exclusive


def test_exclusive_offers_its_devices_by_name_with_their_numa_nodes():
    offered = exclusive().offer(seen())
    assert {each.id: each.numa_nodes for each in offered} == {
        "mlx5_2": (0,),
        "mlx5_3": (0,),
        "mlx5_4": (1,),
        "mlx5_5": (1,),
    }
    assert exclusive(select=Selector()).offer(seen(SOFT))[0].numa_nodes == ()


def test_exclusive_gives_each_devices_nodes_and_the_connection_managers():
    answer = exclusive(select=Selector()).allocate(["mlx5_1", "mlx5_2"], seen())
    assert paths(answer) == ["uverbs1", "umad1", "issm1", "uverbs2", "umad2", "rdma_cm"]
    assert {each.permissions for each in answer.devices} == {"rw"}
    assert answer.cdi_devices == ()


def test_exclusive_names_the_devices_that_it_gives():
    answer = exclusive().allocate(["mlx5_3", "mlx5_2"], seen())
    assert dict(answer.envs) == {
        "PCIDEVICE_TENCENT_COM_RDMA": "0000:03:00.3,0000:03:00.2",
        "K8S_RDMA_DEVICES_TENCENT_COM_RDMA": "mlx5_3,mlx5_2",
    }
    assert dict(answer.annotations) == {"devices.k8s-rdma.io/tencent.com_rdma": "mlx5_3,mlx5_2"}


def test_exclusive_hints_at_its_devices_on_request():
    envs = exclusive(hints=True).allocate(["mlx5_3", "mlx5_2"], seen()).envs
    assert envs["NCCL_IB_HCA"] == "=mlx5_3,mlx5_2"
    assert envs["UCX_NET_DEVICES"] == "mlx5_3:1,mlx5_2:1"


def test_exclusive_leaves_out_a_connection_manager_that_there_is_not():
    assert paths(exclusive().allocate(["mlx5_2"], seen(rdma_cm=False))) == ["uverbs2", "umad2"]


@pytest.mark.parametrize(
    ("cdi", "netns", "by_cdi"),
    [
        (None, NetnsMode.SHARED, False),
        (None, NetnsMode.EXCLUSIVE, True),
        (None, None, False),
        (True, NetnsMode.SHARED, True),
        (False, NetnsMode.EXCLUSIVE, False),
    ],
)
def test_exclusive_gives_cdi_devices_if_moving_renumbers_nodes_or_as_configured(cdi, netns, by_cdi):
    answer = exclusive(cdi=cdi).allocate(["mlx5_2", "mlx5_4"], seen(netns_mode=netns))
    assert bool(answer.cdi_devices) is by_cdi
    assert bool(answer.devices) is not by_cdi
    if by_cdi:
        assert answer.cdi_devices[1] == "k8s-rdma.io/slot=tencent.com_rdma.mlx5_4"
    assert answer.envs["K8S_RDMA_DEVICES_TENCENT_COM_RDMA"] == "mlx5_2,mlx5_4"


def test_exclusive_offers_a_device_that_is_in_its_pods_namespace():
    away = replace(VF_2, at_home=False, netdev="", nodes=())
    looked = seen(away, VF_3, allocated=given(VF_2, EXCLUSIVE), netns_mode=NetnsMode.EXCLUSIVE)
    assert healthy(exclusive().offer(looked)) == ["mlx5_2", "mlx5_3"]


def test_exclusive_offers_a_device_that_a_pod_has_although_no_other_is_known():
    unknown = replace(VF_2, pf="", pf_name="", pf_vendor="", pf_driver="", vf=None, at_home=False)
    of_netdev = Selector(pfs=("enp3s0f0",))
    looked = seen(unknown, allocated=given(VF_2, EXCLUSIVE))
    assert ids(exclusive(select=of_netdev).offer(looked)) == ["mlx5_2"]


def test_exclusive_does_not_offer_a_device_that_a_pod_has_of_another_resource():
    assert "mlx5_2" not in ids(exclusive().offer(seen(allocated=given(VF_2, "example.com/other"))))


def test_exclusive_gives_no_device_that_a_pod_has_by_annotation():
    """The files did not say yet that it is in a pool when the pod got it, or the agent's still does not."""
    looked = seen(allocated=given(VF_2))
    assert healthy(exclusive().offer(looked)) == ["mlx5_3", "mlx5_4", "mlx5_5"]
    assert "by annotation" in refusal(exclusive(), ["mlx5_2"], looked)


def test_exclusive_gives_a_device_again_whose_pod_is_ending():
    looked = seen(allocated=given(VF_2, EXCLUSIVE))
    assert exclusive().allocate(["mlx5_2"], looked).devices


def test_exclusive_without_cdi_refuses_a_device_whose_nodes_are_in_a_pods_namespace():
    away = replace(VF_2, at_home=False, nodes=())
    looked = seen(away, allocated=given(VF_2, EXCLUSIVE))
    assert healthy(exclusive().offer(looked)) == ["mlx5_2"]
    assert "mlx5_2" in refusal(exclusive(), ["mlx5_2"], looked)


def test_exclusive_prefers_devices_that_no_pod_has():
    looked = seen(allocated=given(VF_2, EXCLUSIVE))
    every = Choice(available=("mlx5_2", "mlx5_3", "mlx5_4"), must_include=(), size=1)
    assert exclusive().prefer(every, looked) == ("mlx5_3",)


def test_exclusive_prefers_devices_of_one_pf():
    every = Choice(available=("mlx5_3", "mlx5_5", "mlx5_4"), must_include=(), size=2)
    assert exclusive().prefer(every, seen()) == ("mlx5_4", "mlx5_5")


def test_exclusive_reports_why_a_device_is_unhealthy_and_refuses_it_so():
    looked = seen(replace(VF_2, faults=("port 1 is DOWN, not ACTIVE", "no driver is bound")), VF_3)
    assert why(exclusive().offer(looked), "mlx5_2") == "port 1 is DOWN, not ACTIVE; no driver is bound"
    assert "port 1 is DOWN" in refusal(exclusive(), ["mlx5_2"], looked)
    assert healthy(exclusive().offer(looked)) == ["mlx5_3"]


def test_exclusive_by_cdi_offers_no_pf_as_healthy():
    mode = exclusive(select=Selector(), cdi=True)
    assert healthy(mode.offer(seen())) == ["mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5"]
    assert "mlx5_0" in refusal(mode, ["mlx5_0"], seen())


def test_exclusive_by_cdi_waits_for_the_agent_which_writes_the_specifications():
    assert "agent" in why(exclusive(cdi=True).offer(seen(held_slots=None)), "mlx5_2")
    assert why(exclusive(cdi=False).offer(seen(held_slots=None)), "mlx5_2") == ""


def test_exclusive_gives_a_device_once_although_it_is_requested_twice():
    assert paths(exclusive().allocate(["mlx5_2", "mlx5_2"], seen())) == ["uverbs2", "umad2", "rdma_cm"]


def test_device_is_offered_by_the_first_resource_that_selects_it():
    config = DevicePluginConfig(
        resources=(
            ExclusiveResource(name="example.com/some", select=Selector(pfs=("enp3s0f0#0",))),
            ExclusiveResource(name="example.com/others", select=VFS),
            ExclusiveResource(name="example.com/rest"),
        )
    )
    offered = {each.resource: ids(each.offer(seen())) for each in modes_of(config)}
    assert offered == {
        "example.com/some": ["mlx5_2"],
        "example.com/others": ["mlx5_3", "mlx5_4", "mlx5_5"],
        "example.com/rest": ["mlx5_0", "mlx5_1", "rxe0"],
    }


def test_device_is_another_resources_once_its_pf_is_renamed():
    config = DevicePluginConfig(
        resources=(
            ExclusiveResource(name="example.com/a", select=Selector(pfs=("enp3s0f0",))),
            ExclusiveResource(name="example.com/b", select=Selector(pfs=("enp3s0f9",))),
        )
    )
    modes = modes_of(config)
    assert [ids(each.offer(seen(VF_2))) for each in modes] == [["mlx5_2"], []]
    renamed = seen(replace(VF_2, pf_name="enp3s0f9"))
    assert [ids(each.offer(renamed)) for each in modes] == [[], ["mlx5_2"]]


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        (Selector(), [each.name for each in ALL]),
        (Selector(pfs=("enp131s0f0",)), ["mlx5_1", "mlx5_4", "mlx5_5"]),
        (Selector(pfs=("0000:83:00.0#1",)), ["mlx5_5"]),
        (Selector(pcis=("0000:03:00.2", "0000:83:00.0")), ["mlx5_1", "mlx5_2"]),
        (Selector(vendors=("15b3",)), [each.name for each in ALL[:-1]]),
        (Selector(vendors=("15b3:1018",)), []),
        (Selector(drivers=("ice",)), []),
        (Selector(functions=FunctionKind.PF), ["mlx5_0", "mlx5_1"]),
        (Selector(functions=FunctionKind.VF, pfs=("enp3s0f0",)), ["mlx5_2", "mlx5_3"]),
        (Selector(link_types=(LinkType.INFINIBAND,)), []),
    ],
)
def test_exclusive_offers_devices_of_its_selector(selector, names):
    assert ids(exclusive(select=selector).offer(seen())) == names


# --- shared


def test_shared_gives_the_nodes_of_all_matching_devices_to_every_holder():
    mode = shared(select=SharedSelector(functions=FunctionKind.PF))
    answer = mode.allocate(["slot-1"], seen())
    assert paths(answer) == ["uverbs0", "umad0", "uverbs1", "umad1", "rdma_cm"]
    assert {each.permissions for each in answer.devices} == {"rwm"}
    assert answer == mode.allocate(["slot-2"], seen())
    assert answer.envs["K8S_RDMA_DEVICES_RDMA_HCA"] == "mlx5_0,mlx5_1"
    assert answer.envs["PCIDEVICE_RDMA_HCA"] == "0000:03:00.0,0000:83:00.0"
    assert dict(answer.annotations) == {"devices.k8s-rdma.io/rdma_hca": "mlx5_0,mlx5_1"}


def test_shared_offers_as_many_shares_as_configured():
    assert ids(shared(count=2).offer(seen())) == ["slot-0", "slot-1"]
    assert shared(count=0).offer(seen()) == ()


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        (SharedSelector(if_names=("eth2", "eth5")), ["mlx5_2", "mlx5_5"]),
        (SharedSelector(device_ids=("1017",)), ["mlx5_0", "mlx5_1"]),
        (SharedSelector(rdma_devices=("rxe0",)), ["rxe0"]),
        (SharedSelector(vendors=("15b3",), if_names=("eth2",), device_ids=("1017",)), []),
        (SharedSelector(drivers=("mlx5_core",), device_ids=("1017",)), ["mlx5_0", "mlx5_1"]),
        (
            SharedSelector(link_types=(LinkType.ETHERNET,), rdma_devices=("mlx5_3", "mlx5_0")),
            ["mlx5_0", "mlx5_3"],
        ),
    ],
)
def test_shared_takes_devices_that_match_all_selectors_by_any_value(selector, names):
    assert list(shared(select=selector).to_publish(seen())) == names


def test_shared_is_healthy_while_one_of_its_devices_is():
    broken = replace(PF_0, faults=("port 1 is DOWN, not ACTIVE",))
    mode = shared(select=SharedSelector(functions=FunctionKind.PF))
    assert healthy(mode.offer(seen(broken, PF_1)))
    offered = mode.offer(seen(broken, replace(PF_1, nodes=())))
    assert why(offered, "slot-0") == "mlx5_0: port 1 is DOWN, not ACTIVE; mlx5_1: it has no uverbs device"
    assert healthy(mode.offer(seen(broken, PF_1))) == ids(offered)


def test_shared_reports_three_faults_and_the_number_of_others():
    broken = [device(number, faults=("it is gone",)) for number in range(5)]
    told = why(shared().offer(seen(*broken)), "slot-0")
    assert told.endswith("mlx5_2: it is gone; and 2 more")


def test_shared_without_any_device_is_unhealthy():
    assert "matches" in why(shared(select=SharedSelector(if_names=("none",))).offer(seen()), "slot-0")


def test_shared_leaves_out_a_device_that_is_in_a_pods_namespace():
    away = replace(VF_2, at_home=False)
    assert shared().to_publish(seen(away, VF_3)) == ("mlx5_3",)


def test_shared_by_cdi_gives_its_cdi_device_once_the_agent_has_written_it():
    mode = shared(cdi=True)
    assert "agent" in why(mode.offer(seen()), "slot-0")
    published = seen(published=frozenset({"rdma_hca"}))
    assert healthy(mode.offer(published))
    answer = mode.allocate(["slot-0"], published)
    assert (answer.devices, answer.cdi_devices) == ((), ("k8s-rdma.io/shared=rdma_hca",))


def test_agent_gets_the_devices_of_shared_resources_by_cdi():
    modes = (
        shared(cdi=True, select=SharedSelector(functions=FunctionKind.PF)),
        shared(name="rdma/b"),
        exclusive(),
    )
    assert to_publish(modes, seen()) == {"rdma/hca": ("mlx5_0", "mlx5_1")}


# --- devices that a container can reach: the documentation's table


def reach(answer, looked=None):
    """The RDMA devices whose verbs a container could open by its answer."""
    if any(each.path == "/dev/infiniband" for each in answer.devices):
        return set((looked or seen()).devices)
    uverbs = {path for path in paths(answer) if path.startswith("uverbs")}
    return {
        each.name
        for each in ALL
        for of_it in each.nodes
        if of_it.kind is NodeKind.UVERBS and of_it.path.rpartition("/")[2] in uverbs
    }


@pytest.mark.parametrize(
    ("mode", "asked", "reached"),
    [
        (mode_of(ExactResource()), "slot-0", set()),
        (exclusive(), "mlx5_2", {"mlx5_2"}),
        (exclusive(cdi=True), "mlx5_2", set()),
        (shared(select=SharedSelector(functions=FunctionKind.PF)), "slot-0", {"mlx5_0", "mlx5_1"}),
        (mode_of(MountResource(scope="rdma-cm-only")), "slot-0", set()),
        (mode_of(MountResource(scope="devices")), "slot-0", {each.name for each in ALL}),
        (mode_of(MountResource()), "slot-0", {each.name for each in ALL}),
    ],
)
def test_container_reaches_by_kubelets_answer_the_verbs_of(mode, asked, reached):
    assert reach(mode.allocate([asked], seen())) == reached


def test_container_with_single_devices_does_not_reach_one_that_comes_later():
    late = device(7, vf=4, nodes=(node(NodeKind.UVERBS, 7),))
    before, after = seen(), seen(*ALL, late)
    assert "mlx5_7" not in reach(mode_of(MountResource(scope="devices")).allocate(["slot-0"], before), after)
    assert "mlx5_7" in reach(mode_of(MountResource()).allocate(["slot-0"], before), after)


@pytest.mark.parametrize(
    "resource",
    [ExactResource, MountResource, lambda **changes: SharedResource(name="rdma/hca", count=1000, **changes)],
    ids=["exact", "mount", "shared"],
)
def test_container_gets_no_more_of_a_counted_resource_than_it_may(resource):
    looked = replace(seen(*ALL), held_slots=frozenset())
    for mode, most in ((mode_of(resource()), 8), (mode_of(resource(max_per_container=2)), 2)):
        offered = ids(mode.offer(looked))
        mode.allocate(offered[:most], looked)
        told = refusal(mode, offered[: most + 1], looked, reason=Reason.TOO_MANY_DEVICES)
        assert f"{most + 1} for one container, {most} at most (maxPerContainer" in told


def test_container_gets_no_more_shares_of_a_pods_devices_than_it_may():
    resource = ExclusiveResource(name=EXCLUSIVE, share=100)
    [_, shares] = modes_of(DevicePluginConfig(resources=(resource,)))
    looked = replace(seen(*ALL), held_slots=frozenset())
    told = refusal(shares, ids(shares.offer(looked))[:9], looked, reason=Reason.TOO_MANY_DEVICES)
    assert "9 for one container, 8 at most" in told
