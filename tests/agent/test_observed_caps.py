"""Caps that a pod took away: put back and reported, or a problem of the node until they hold."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from agent.capped_pods import SOFTWARE, Pods, run
from agent.machine import Machine, call
from fakes.machine import HOST


@pytest.mark.parametrize(
    ("now", "found"),
    [
        (0, "interface rdma0 has pfifo_fast instead of its limit"),
        (900, "interface rdma0 is limited to 900 Mb/s"),
    ],
)
def test_cap_that_a_pod_changed_is_restored_and_reported(machine: Machine, now: int, found: str) -> None:
    async def scenario(it: Pods) -> None:
        netns = await it.add()
        it.uncap(netns, to=now)
        with capture_logs() as logs:
            assert not await it.verbs.restore_caps()
        assert it.cap(netns) == 200
        [told] = logs
        assert (told["event"], told["log_level"], told["times"]) == ("cap_restored", "warning", 1)
        assert (told["pod"], told["interface"], told["found"]) == ("default/c1", "rdma0", found)
        assert it.cluster.caps == [(f"{found}: its cap of 200 Mb/s was put back", True)]
        assert it.node.caps.restored == 1
        assert it.enforced() == (["software"], [])

    run(machine, scenario)


def test_cap_is_put_back_on_the_vf_whatever_its_pod_calls_it(machine: Machine) -> None:
    async def scenario(it: Pods) -> None:
        netns = await it.add(SOFTWARE, {"max_tx_rate": 300, "enforce": "software"})
        for ifname, name in (("rdma0", "x"), ("rdma1", "rdma0"), ("x", "rdma1")):
            machine.hardware.alter_interface(ifname, netns, name=name)
        it.uncap(netns, "rdma0")
        it.uncap(netns, "rdma1")
        await it.verbs.restore_caps()
        assert (it.cap(netns, "rdma1"), it.cap(netns, "rdma0")) == (200, 300)

    run(machine, scenario)


def test_cap_that_cannot_be_restored_is_reported_once_and_a_problem_until_it_holds(machine: Machine) -> None:
    async def scenario(it: Pods) -> None:
        netns = await it.add()
        it.uncap(netns)
        machine.kernel.fail(times=3)
        with capture_logs() as logs:
            assert await it.verbs.restore_caps()
            for _ in range(2):
                assert not await it.verbs.restore_caps()
        [told] = logs
        assert (told["event"], told["log_level"]) == ("cap_lost", "warning")
        assert "made to fail" in told["error"]
        [enforced], [problem] = it.enforced()
        assert enforced == "accounted"
        assert "which pod default/c1 has as rdma0, is not limited to 200 Mb/s by software now: " in problem
        assert problem.endswith("cannot be put back: CapInterface: made to fail after 0 changes")
        assert [restored for _, restored in it.cluster.caps] == [False]
        assert await it.verbs.restore_caps()
        assert (it.cap(netns), it.enforced()) == (200, (["software"], []))
        assert [restored for _, restored in it.cluster.caps] == [False, True]

    run(machine, scenario)


def test_interface_that_left_its_pod_is_a_problem_until_it_is_back(machine: Machine) -> None:
    async def scenario(it: Pods) -> None:
        netns = await it.add()
        device = it.device(netns)
        machine.hardware.move(device, machine.hardware.create_namespace().inode, "mine")
        with capture_logs() as logs:
            assert await it.verbs.restore_caps()
            assert not await it.verbs.restore_caps()
            [enforced], [problem] = it.enforced()
            assert enforced == "accounted"
            assert problem.endswith("interface rdma0 is not in the pod's namespace")
            machine.hardware.move(device, netns.inode, "rdma0")
            device.max_tx_rate_mbps = 200
            assert await it.verbs.restore_caps()
        assert [each["event"] for each in logs] == ["cap_lost", "cap_holds"]
        assert it.enforced() == (["software"], [])

    run(machine, scenario)


def test_namespace_that_cannot_be_looked_at_is_no_proof_of_a_cap(machine: Machine) -> None:
    async def scenario(it: Pods) -> None:
        netns = await it.add()
        it.uncap(netns)
        machine.hardware.silent = "no access"
        assert await it.verbs.restore_caps()
        [enforced], [problem] = it.enforced()
        assert enforced == "accounted"
        assert problem.endswith("its namespace cannot be looked at: no access")
        machine.hardware.silent = ""
        assert await it.verbs.restore_caps()
        assert it.cap(netns) == 200

    run(machine, scenario)


@pytest.mark.parametrize("end", ["delete", "vanish"])
def test_problem_of_a_lost_cap_ends_with_its_pod(machine: Machine, end: str) -> None:
    async def scenario(it: Pods) -> None:
        netns = await it.add()
        machine.hardware.move(it.device(netns), HOST, "mine")
        await it.verbs.restore_caps()
        assert it.node.caps.failures
        if end == "delete":
            await it.verbs.delete(call("DEL", "c1", uid="uid-c1", name="c1"), "net")
        else:
            machine.hardware.destroy_namespace(netns)
            await it.verbs.reconcile()
        assert not it.node.caps.failures
        assert machine.is_pristine()
        next_one = await it.add({}, container="c2")
        assert (it.cap(next_one), it.enforced()) == (0, ([None], []))

    run(machine, scenario)


def test_problem_of_a_lost_cap_does_not_pass_to_the_sandbox_that_inherits(machine: Machine) -> None:
    async def scenario(it: Pods) -> None:
        netns = await it.add()
        machine.hardware.move(it.device(netns), HOST, "mine")
        with capture_logs() as logs:
            await it.verbs.restore_caps()
            machine.hardware.destroy_namespace(netns)
            await it.verbs.restore_caps()
        assert [each["event"] for each in logs] == ["cap_lost"]
        await it.add({}, container="c2", uid="uid-c1")
        assert not it.node.caps.failures
        assert it.enforced() == ([None], [])

    run(machine, scenario)
