"""Whatever fails and whenever the agent dies: no VF is given twice, lost or forgotten."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agent.crash_cluster import KINDS, Cluster, Pod, new_cluster
from agent.mortal import Fate
from fakes.machine import HOST
from k8s_rdma.errors import K8sRdmaError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from k8s_rdma.core.ledger import Attachment
    from k8s_rdma.core.step import VfRef

WAYS = {
    "fails": (lambda at: Fate(fails_at=range(at, at + 1)), {}),
    "fails halfway": (lambda at: Fate(fails_at=range(at, at + 1), halfway=True), {}),
    "fails from then on": (lambda at: Fate(fails_at=range(at, at + 99)), {}),
    "dies": (lambda at: Fate(dies_at=at), {}),
    "dies halfway": (lambda at: Fate(dies_at=at, halfway=True), {}),
    "dies after it": (lambda at: Fate(dies_at=at, done=True), {}),
    "dies and what was not synced is lost": (lambda at: Fate(dies_at=at), {"forget_unsynced": True}),
    "dies by a power cut": (lambda at: Fate(dies_at=at), {"forget_unsynced": True, "reboot": True}),
}
"""How an act goes wrong, and the differences when the agent is started again."""


@pytest.mark.parametrize("call_of", ["add", "delete", "collect", "restore", "vanish", "inherit"])
@pytest.mark.parametrize(("fate", "how"), WAYS.values(), ids=WAYS)
def test_machine_is_as_before_whatever_fails_and_whenever(
    call_of: str, fate: Callable[[int], Fate], how: dict[str, bool]
) -> None:
    for kind in KINDS:
        acts = 0
        while acts >= 0:
            acts = _survived(call_of, kind, fate(acts), how, acts)


@pytest.mark.parametrize(("fate", "how"), WAYS.values(), ids=WAYS)
def test_deletion_that_was_left_is_carried_out_whatever_fails_and_whenever(
    fate: Callable[[int], Fate], how: dict[str, bool]
) -> None:
    acts = 0
    while acts >= 0:
        acts = _survived("left", "networks", fate(acts), how, acts)


def _survived(call_of: str, kind: str, fate: Fate, how: dict[str, bool], at: int) -> int:
    """Play one pod on one machine and a failing act. Return the next act's number, -1 after the last."""
    with new_cluster() as cluster:
        world, pod = cluster.world, cluster.new_pod("uid", kind)
        calls = _calls(cluster, pod, call_of)
        for each in calls:
            world.run(each, fate=fate)
        reached = world.life.acts > at
        if dead := world.life.dead:
            world.restart(**how)
            if not how:
                cluster.check_whole()
        cluster.check(restored=dead)
        cluster.finish()
    return at + 1 if reached else -1


def _calls(cluster: Cluster, pod: Pod, call_of: str) -> list[Coroutine[Any, Any, Any]]:
    """Return the calls that are to fail, after all that comes before them is done."""
    if call_of == "add":
        return [cluster.add(pod, pod.attachments[0])]
    for attachment in pod.attachments:
        [given] = cluster.world.run(cluster.add(pod, attachment))
        assert not isinstance(given, K8sRdmaError), given
    if call_of == "delete":
        return [cluster.delete(pod.attachments[0])]
    if call_of == "collect":
        return [cluster.collect(pod.attachments[0].network, set())]
    if call_of == "restore":
        cluster.uncap(pod)
        return [cluster.world.verbs.restore_caps()]
    if call_of == "left":
        cluster.leave(pod.attachments[0])
    else:
        cluster.world.hardware.destroy_namespace(pod.netns)
    if call_of != "inherit":
        return [cluster.world.verbs.reconcile()]
    younger = cluster.new_pod(pod.uid, pod.kind)
    return [cluster.add(younger, younger.attachments[0])]


FATES = st.one_of(
    st.just(Fate()),
    st.builds(
        lambda at, times, halfway: Fate(fails_at=range(at, at + times), halfway=halfway),
        st.integers(0, 14),
        st.sampled_from([1, 2, 99]),
        st.booleans(),
    ),
    st.builds(Fate, dies_at=st.integers(0, 14), halfway=st.booleans()),
)
ANY = st.integers(0, 99)
"""Which of those that there are."""


class Interleaving(RuleBasedStateMachine):
    """Calls of the runtime, deaths and interference in any order."""

    def __init__(self) -> None:
        super().__init__()
        self._open = ExitStack()
        self.cluster = self._open.enter_context(new_cluster())
        self.world = self.cluster.world

    @rule(pod=st.integers(0, 2), kind=st.sampled_from(sorted(KINDS)), which=st.integers(0, 1), fate=FATES)
    def start_pod(self, pod: int, kind: str, which: int, fate: Fate) -> None:
        made = self.cluster.new_pod(f"uid-{pod}-{kind}", kind)
        self._add(made, made.attachments[which % len(made.attachments)], fate)

    @precondition(lambda self: self.cluster.pods)
    @rule(which=ANY, other=ANY, fate=FATES)
    def add(self, which: int, other: int, fate: Fate) -> None:
        pod = self._pod(which)
        self._add(pod, pod.attachments[other % len(pod.attachments)], fate)

    @precondition(lambda self: self.cluster.pods)
    @rule(which=ANY, other=ANY, fate=FATES)
    def delete(self, which: int, other: int, fate: Fate) -> None:
        pod = self._pod(which)
        attachment = pod.attachments[other % len(pod.attachments)]
        self.cluster.attached.pop(attachment, None)
        self._run(self.cluster.delete(attachment), fate=fate)

    @precondition(lambda self: self.cluster.pods)
    @rule(which=ANY, other=ANY)
    def leave_deletion(self, which: int, other: int) -> None:
        pod = self._pod(which)
        attachment = pod.attachments[other % len(pod.attachments)]
        self.cluster.attached.pop(attachment, None)
        self.cluster.leave(attachment)

    @precondition(lambda self: self.cluster.pods)
    @rule(one=ANY, two=ANY, fate=FATES)
    def add_and_delete_at_once(self, one: int, two: int, fate: Fate) -> None:
        pod = self.cluster.new_pod(f"uid-{one % 3}-rated", "rated")
        ended = self._pod(two).attachments[0]
        self.cluster.attached.pop(ended, None)
        calls = [self.cluster.add(pod, pod.attachments[0])]
        if ended != pod.attachments[0]:
            calls.append(self.cluster.delete(ended))
        outcomes = self._run(*calls, fate=fate)
        if outcomes and not isinstance(outcomes[0], K8sRdmaError):
            self.cluster.attached[pod.attachments[0]] = pod

    @rule(network=st.sampled_from(["alone", "net-a", "net-b"]), keep=st.sets(st.integers(0, 9)), fate=FATES)
    def collect(self, network: str, keep: set[int], fate: Fate) -> None:
        listed = [
            attachment
            for pod in self.cluster.pods
            for attachment in pod.attachments
            if attachment.network == network
        ]
        valid = {each for number, each in enumerate(listed) if number % 10 in keep}
        for each in listed:
            if each not in valid:
                self.cluster.attached.pop(each, None)
        self._run(self.cluster.collect(network, valid), fate=fate)

    @precondition(lambda self: self.cluster.pods)
    @rule(which=ANY, fate=FATES)
    def destroy_namespace(self, which: int, fate: Fate) -> None:
        pod = self._pod(which)
        if not self.world.hardware.alive(pod.netns):
            return
        for attachment in pod.attachments:
            self.cluster.attached.pop(attachment, None)
        self.cluster.tampered |= self._held(pod)
        self.world.hardware.destroy_namespace(pod.netns)
        self._run(self.world.verbs.reconcile(), fate=fate)

    @precondition(lambda self: self.cluster.pods)
    @rule(which=ANY, fate=FATES)
    def take_caps_away(self, which: int, fate: Fate) -> None:
        self.cluster.uncap(self._pod(which))
        self._run(self.world.verbs.restore_caps(), fate=fate)
        self._run(self.world.verbs.restore_caps(), fate=Fate())

    @rule(reboot=st.booleans(), forget_unsynced=st.booleans())
    def die_at_rest(self, reboot: bool, forget_unsynced: bool) -> None:
        self._die(reboot=reboot, forget_unsynced=forget_unsynced)

    @precondition(lambda self: self.cluster.attached)
    @rule(which=ANY, what=st.sampled_from(["rename", "alter", "rate", "home", "away"]))
    def interfere(self, which: int, what: str) -> None:
        """Somebody else does something to a pod's VF."""
        attachment = sorted(self.cluster.attached)[which % len(self.cluster.attached)]
        receipt = self.world.node.ledger.receipts[attachment]
        if not receipt.interfaces:
            return
        interface = receipt.interfaces[which % len(receipt.interfaces)]
        self.cluster.tampered.add(interface.vf)
        function = self.world.hardware.functions[interface.vf]
        name = f"odd{interface.vf.pf[-1]}-{interface.vf.index}"
        if what == "rate":
            function.min_tx_rate_mbps, function.max_tx_rate_mbps = 3, 4
        elif not function.is_netdev:
            function.driver = function.override = ""
        elif what == "alter":
            function.device.mac, function.device.mtu = "02:00:00:00:00:99", 1280
        elif what == "rename":
            self.world.hardware.move(function.device, function.device.place, name)
        else:
            self.world.hardware.move(function.device, HOST, name)

    @invariant()
    def holds(self) -> None:
        self._settle()
        self.cluster.check()

    def teardown(self) -> None:
        with self._open:
            self._settle()
            self.cluster.finish()

    def _add(self, pod: Pod, attachment: Attachment, fate: Fate) -> None:
        if not self.world.hardware.alive(pod.netns) or self.cluster.is_over(pod):
            return
        outcomes = self._run(self.cluster.add(pod, attachment), fate=fate)
        if outcomes and not isinstance(outcomes[0], K8sRdmaError):
            self.cluster.attached[attachment] = pod

    def _pod(self, which: int) -> Pod:
        return self.cluster.pods[which % len(self.cluster.pods)]

    def _held(self, pod: Pod) -> set[VfRef]:
        receipts = self.world.node.ledger.of_container(pod.container)
        return {interface.vf for receipt in receipts for interface in receipt.interfaces}

    def _run(self, *calls: Coroutine[Any, Any, Any], fate: Fate) -> list[Any]:
        outcomes = self.world.run(*calls, fate=fate)
        if self.world.life.dead:
            self._die(reboot=False, forget_unsynced=fate.halfway)
        return outcomes

    def _die(self, *, reboot: bool, forget_unsynced: bool) -> None:
        if reboot:
            self.cluster.attached.clear()
            self.cluster.tampered.clear()
        if forget_unsynced:
            # Attachments by marks that were lost are undone at the start; the runtime will end them.
            self.cluster.attached.clear()
        self.world.restart(reboot=reboot, forget_unsynced=forget_unsynced)
        if forget_unsynced:
            # Nor is it known how far an end had come.
            self.cluster.tampered |= self.world.node.ledger.holders().keys()

    def _settle(self) -> None:
        """A VF without a holder does not count as tampered with any more."""
        held = self.world.node.ledger.holders()
        self.cluster.tampered &= held.keys()


Interleaving.TestCase.settings = settings(max_examples=60, stateful_step_count=25)
TestInterleaving = Interleaving.TestCase
