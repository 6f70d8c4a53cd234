"""A claim from its preparation to its end, whatever fails and whenever the agent dies.

The test acts as kubelet and runtime do: each call is repeated until it succeeds, a failed ADD is followed by
DEL and another sandbox, and after a reboot claims are prepared again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from agent.crash_cluster import ANNOTATIONS, stdin
from agent.machine import call
from agent.mortal import Fate, MortalPod, World, new_world
from agent.test_crashes import WAYS
from k8s_rdma.core.allocation import used_locally
from k8s_rdma.core.pf_selection import PfRule
from k8s_rdma.core.types import PfUse, PodUid
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.wire.claims import ClaimName
from resource_claims import claim, interface, of_pod, prepare

if TYPE_CHECKING:
    from collections.abc import Callable

RULES = (PfRule(names=frozenset({"f0"}), use=PfUse.CLAIMS), PfRule())
NETWORK = "alone"
STEPS = ("prepare", "add", "delete", "unprepare")
ATTEMPTS = 5
STDIN = stdin(NETWORK, runtimeConfig={ANNOTATIONS: {}})
UNHARMED = Fate()


class Pod(MortalPod):
    """A pod with two interfaces by one claim, which reserve the whole link. owner: the claim's first pod."""

    def __init__(self, world: World, name: str, owner: str = "") -> None:
        super().__init__(world, name)
        self.owner = owner or name
        self.document = of_pod(
            claim(
                interface("a", bandwidth="60G", maxTxRate="70G", vlan=7),
                interface("b", bandwidth="40G", driver="vfio-pci"),
                uid=f"claim-{self.owner}",
                name=self.owner,
            ),
            name,
        )

    @property
    def claim(self) -> ClaimName:
        return ClaimName(namespace="default", name=self.owner, uid=f"claim-{self.owner}")

    def does(self, step: str) -> Any:
        match step:
            case "prepare":
                return self.world.claims.prepare(prepare(self.document))
            case "unprepare":
                return self.world.claims.unprepare(self.claim)
            case "take over":
                return self.world.claims.hand_over(prepare(self.document), PodUid(f"uid-{self.owner}"))
            case "abandon":
                return self.world.claims.end_abandoned(self.claim, PodUid(f"uid-{self.name}"))
        env = call("ADD" if step == "add" else "DEL", self.container, f"uid-{self.name}", name=self.name)
        if step == "delete":
            return self.world.verbs.delete(env, NETWORK, STDIN)
        return self.world.verbs.add(env, self.netns, STDIN)


def run(world: World, step: Any, fate: Fate = UNHARMED) -> bool:
    """Whether the call succeeded."""
    outcomes = world.run(step, fate=fate)
    return bool(outcomes) and not isinstance(outcomes[0], K8sRdmaError)


def repeat(pod: Pod, step: str, *, rebooted: bool) -> None:
    """Make the call until it succeeds."""
    for _ in range(ATTEMPTS):
        if rebooted and step in {"add", "delete"}:
            assert run(pod.world, pod.does("prepare"))
        if step == "add":
            assert run(pod.world, pod.does("delete"))
            pod.make_sandbox()
        if run(pod.world, pod.does(step)):
            return
    pytest.fail(f"{step} never succeeded")


def check(world: World) -> None:
    """No more is prepared than the link has, and no VF twice."""
    hardware, ledger = world.node.hardware, world.node.ledger
    [pf] = [pf for pf in hardware.pfs if pf.name == "f0"]
    assert used_locally(hardware, ledger)[pf.pci].mbps <= (pf.link_mbps or 0)
    prepared = [kept.vf for claim in ledger.claims.values() for kept in claim.interfaces]
    assert len(set(prepared)) == len(prepared)


def play(failing: str, fate: Fate, how: dict[str, bool], at: int) -> bool:
    """A pod's life in which one act of one call goes wrong. Returns whether there was such an act."""
    with new_world(RULES) as world:
        pod, reached = Pod(world, "p"), False
        for step in STEPS:
            done = run(world, pod.does(step), fate if step == failing else UNHARMED)
            if step == failing:
                reached = world.life.acts > at
            if world.life.dead:
                world.restart(**how)
            if not done:
                repeat(pod, step, rebooted=bool(how.get("reboot")))
            if step in {"prepare", "add"}:
                check(world)
        check_empty(world)
        other = Pod(world, "q")
        for step in STEPS:
            assert run(world, other.does(step)), step
        return reached


def check_empty(world: World) -> None:
    """No trace of any pod is left."""
    assert not world.node.ledger.receipts
    assert not world.node.ledger.claims
    assert world.is_pristine()
    assert not list((world.directory / "run" / "claims").glob("*"))
    assert not [name for name in world.device_files() if "claim" in name]


@pytest.mark.parametrize("failing", STEPS)
@pytest.mark.parametrize(("fate", "how"), WAYS.values(), ids=WAYS)
def test_no_vf_or_bandwidth_is_lost_whatever_fails_and_whenever(
    failing: str, fate: Callable[[int], Fate], how: dict[str, bool]
) -> None:
    at = 0
    while play(failing, fate(at), how, at):
        at += 1
    assert at > 1


def play_end(former_ends: str, fate: Fate, how: dict[str, bool], at: int) -> bool:
    """A claim that kubelet does not unprepare for its pod, which is gone: another takes it, or it ends."""
    with new_world(RULES) as world:
        former = Pod(world, "p")
        for step in ("prepare", "add", "delete"):
            assert run(world, former.does(step)), step
        heir = Pod(world, "q", former.name) if former_ends == "take over" else former
        run(world, heir.does(former_ends), fate)
        reached = world.life.acts > at
        if world.life.dead:
            world.restart(**how)
        for _ in range(ATTEMPTS):
            owners = [claim.pod.name for claim in world.node.ledger.claims.values()]
            if owners != [former.name]:
                break
            run(world, heir.does(former_ends))
        assert owners == ([heir.name] if heir is not former else [])
        if not how.get("reboot"):
            former.make_sandbox()
            assert not run(world, former.does("add")), "a pod without a claim was given interfaces"
        if heir is not former:
            check(world)
            heir.make_sandbox()
            for step in STEPS:
                assert run(world, heir.does(step)), step
        assert run(world, former.does("delete"))
        world.node.ledger_store.set_consumers({})
        check_empty(world)
        return reached


@pytest.mark.parametrize("former_ends", ["take over", "abandon"])
@pytest.mark.parametrize(("fate", "how"), WAYS.values(), ids=WAYS)
def test_claim_is_of_one_pod_whatever_fails_when_the_former_one_is_gone(
    former_ends: str, fate: Callable[[int], Fate], how: dict[str, bool]
) -> None:
    at = 0
    while play_end(former_ends, fate(at), how, at):
        at += 1
    assert at > 1
