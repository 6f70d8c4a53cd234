"""A pod with exclusive devices that was bound is given them by its agent, whichever kubelet chooses."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from factories import PF0, PF1, hardware, pf_state, receipt
from k8s_rdma.core.allocation import choose_vfs, decide, outstanding, used_on_node
from k8s_rdma.core.devices.held_vfs import HeldDevice, held_interfaces
from k8s_rdma.core.devices.placement import options_refused
from k8s_rdma.core.expected_hardware import with_allocations as given_to_pod
from k8s_rdma.core.inventory import Generation
from k8s_rdma.core.ledger import AllocatedInterface, Attachment, Ledger, Pod
from k8s_rdma.core.options import NO_OPTIONS, InterfaceOptions
from k8s_rdma.core.placement import Placement, place
from k8s_rdma.core.rate_ability import EVERY_RATE, RateAbility, RateRange
from k8s_rdma.core.request import InterfaceRequest, Request
from k8s_rdma.core.types import ContainerId, Enforce, NodeName, PodUid
from k8s_rdma.extender.node_source import facts_of
from k8s_rdma.wire.placement_annotation import decode, encode
from k8s_rdma.wire.placement_keys import PlacementKeys
from k8s_rdma.wire.report import decode_report, encode_report
from k8s_rdma.wire.report_builder import node_report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from k8s_rdma.core.kernel import PfState

W1 = NodeName("w1")
RDMA = "tencent.com/rdma"
KEY = PlacementKeys.shared(b"a key that agents share")
COARSE = RateAbility(min=RateRange(step=50, smallest=50, largest=900), max=RateRange())
PFS = st.builds(
    lambda pooled, rates, enforce: pf_state(
        PF0, vfs=4, rates=rates, enforce=enforce, driver="ice", numa_node=pooled
    ),
    st.integers(0, 4),
    st.sampled_from([EVERY_RATE, COARSE]),
    st.sampled_from(Enforce),
)
"""`numa_node`: how many of its VFs are in the pool."""
RATES = st.lists(st.sampled_from([0, 60, 310, 499, 800]), min_size=1, max_size=3)
PODS = st.lists(st.tuples(RATES, st.booleans(), st.permutations(range(8))), min_size=1, max_size=6)
ORDER = st.lists(st.integers(0, 5), max_size=12)


def pooled(seen: PfState, pci: str) -> PfState:
    """The PF at that address, with its first VFs in the pool; their RDMA devices are `m0_0` and so on."""
    vfs = (
        replace(vf, rdma_device=f"m{pci[-1]}_{vf.index}", pool=RDMA if vf.index < seen.numa_node else "")
        for vf in pf_state(pci, vfs=4).vfs
    )
    return replace(seen, pci=pf_state(pci).pci, name=f"enp3s0f{pci[-1]}", numa_node=None, vfs=tuple(vfs))


class Node:
    """A node: the promises of the extender, and the devices that the agent has given."""

    def __init__(self, first: PfState, second: PfState) -> None:
        self.seen = hardware(pooled(first, PF0), pooled(second, PF1))
        self.ledger = Ledger()
        self.promised: dict[PodUid, Placement] = {}

    def bind(self, uid: PodUid, request: Request) -> None:
        """As the extender does, by the agent's report; the agent reads its placement."""
        told = node_report(node=W1, generation=Generation("e", 1), hardware=self.seen, ledger=self.ledger)
        facts = facts_of(decode_report(encode_report(told)), W1)
        used = used_on_node(
            reported=facts.reported,
            foreign=facts.foreign,
            promised={each: placement.interfaces for each, placement in self.promised.items()},
            entries=facts.entries,
            inventory=facts.inventory,
        )
        found = place(request, facts.inventory, used)
        if isinstance(found, Placement):
            self.promised[uid] = decode(encode(found, uid, KEY), uid=uid, node=W1, keys=KEY)

    def give(self, uid: PodUid, request: Request, order: Sequence[int]) -> None:
        """As the agent does if kubelet has given the free devices in that order."""
        promised = self.promised[uid]
        names = tuple(f"rdma{at}" for at in range(len(request.interfaces)))
        others = outstanding(self.promised, self.ledger, requester=uid, entries=range(len(names)))
        if not promised.devices():
            found = decide(
                node=W1,
                request=promised.request(),
                promised=promised,
                hardware=self.seen,
                ledger=self.ledger,
                outstanding=others,
            )
            assert found == promised
            self._hold(uid, choose_vfs(found, self.seen, self.ledger, names))
            return
        taken = {each.rdma_device for r in self.ledger.receipts.values() for each in r.interfaces}
        pool = [vf.rdma_device for pf in self.seen.pfs for vf in pf.vfs if vf.pool]
        free = [pool[at] for at in order if at < len(pool) and pool[at] not in taken]
        if len(free) < len(names):
            return  # kube-scheduler would not have bound it, as far as it can tell
        devices = [HeldDevice(RDMA, device) for device in free[: len(names)]]
        found = held_interfaces(
            node=W1,
            request=promised.request(),
            devices=devices,
            hardware=self.seen,
            ledger=self.ledger,
            promised=promised,
            outstanding=others,
            ifnames=names,
            entries=range(len(names)),
        )
        self._hold(uid, found)

    def _hold(self, uid: PodUid, given: object) -> None:
        assert isinstance(given, tuple), given
        interfaces: tuple[AllocatedInterface, ...] = given
        held = replace(
            receipt("c", *interfaces),
            attachment=Attachment("net", ContainerId(f"c-{uid}"), "eth0"),
            pod=Pod(namespace="default", name=uid, uid=uid),
        )
        self.ledger = self.ledger.with_receipt(held)
        self.seen = given_to_pod(self.seen, interfaces)


@given(PFS, PFS, PODS, ORDER)
def test_agent_gives_whatever_devices_kubelet_chose_to_every_pod_that_was_bound(
    first: PfState,
    second: PfState,
    pods: Sequence[tuple[Sequence[int], bool, Sequence[int]]],
    order: Sequence[int],
) -> None:
    node = Node(first, second)
    for which in order:
        rates, has_devices, choice = pods[which % len(pods)]
        uid = PodUid(f"uid-{which % len(pods)}")
        interfaces = tuple(InterfaceRequest(min_tx_rate_mbps=rate) for rate in rates)
        request = Request(interfaces, devices=((RDMA, len(rates)),) if has_devices else ())
        if uid not in node.promised:
            node.bind(uid, request)
        elif not node.ledger.of_pod(uid):
            node.give(uid, request, choice)


@pytest.mark.parametrize("options", [NO_OPTIONS, InterfaceOptions(name="a", network="b")])
def test_options_that_the_extender_lets_pass_are_those_that_the_agent_does(options: InterfaceOptions) -> None:
    assert options_refused(options) == ()
