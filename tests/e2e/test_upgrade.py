"""A node's life: newer and older programs come and go; pods keep their networks until they end."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from e2e.facts import facts, qdiscs
from e2e.node import Node, pod
from e2e.streams import Endpoint, Stream, flood, passed_interface, passed_vf
from k8s_rdma.cli.main import app
from k8s_rdma.linux.receipts import OLDEST
from k8s_rdma.linux.virtual.pf import BURST
from k8s_rdma_demo.cluster.cni_runtime import AttachError, CniRuntime
from older_programs import last_without, unpack

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from k8s_rdma_demo.cluster.sandboxes import Sandbox

WITH_CAPS = 4
"""The version of a ledger with caps of software."""
TRY_AGAIN_LATER = 11
PF, CAP_MBPS, IFNAME = "enp1s0f0", 10, "rdma0"
SOFTWARE_BURST = 110_000


class Life:
    """A node with `bridge` as its own network, and the programs that are installed on it.

    older: the sources of a program whose ledgers are of the oldest version that one can go back to.
    """

    def __init__(self, node: Node, older: Path) -> None:
        self.node, self._older = node, older
        node.settings = {}  # older agents know no policies
        self.bin, self.confs = node.directory / "bin", node.directory / "net.d"
        for each in (self.bin, self.confs):
            each.mkdir()
        chained = json.loads(node.runtime(chained=True).conflist.read_text())
        self._ours = chained["plugins"].pop()
        (self.confs / "10-net.conflist").write_text(json.dumps(chained))
        self.installed = CniRuntime(
            [self.bin, *node.cni_path[1:]], self.confs / "00-k8s-rdma.conflist", node.directory / "netns"
        )

    def install(self) -> None:
        keys = json.dumps({key: self._ours[key] for key in ("runDir", "ipam")})
        paths = ["--conf-dir", str(self.confs), "--plugin", keys]
        program = {"K8S_RDMA_CNI": str(self.node.cni_path[0] / "k8s-rdma-cni")}
        done = CliRunner().invoke(
            app, ["install-cni", str(self.bin), "--network", "chained", *paths], env=program
        )
        assert done.exit_code == 0, done.output

    def uninstall(self) -> str:
        """Return its output, or the reason if it refuses."""
        state = self.node.directory / "state"
        where = {"bin": self.bin, "conf": self.confs, "run": self.node.run_dir, "state": state}
        below = [f"--{name}-dir={path}" for name, path in where.items()]
        cdi = self.node.directory / "cdi"
        done = CliRunner().invoke(app, ["uninstall", *below, f"--cdi-dir={cdi}", "--grace-s=0"])
        return done.stdout if done.exception is None else f"{done.stdout}{done.exception}"

    def start(self, *, older: bool = False) -> None:
        self.node.enter = ["env", f"PYTHONPATH={self._older / 'src'}"] if older else []
        self.node.start_agent()

    def refused(self, *, older: bool) -> str:
        """Start an agent that does not serve; return its output."""
        self.node.enter = ["env", f"PYTHONPATH={self._older / 'src'}"] if older else []
        (self.node.directory / "agent.log").unlink()
        refused = self.node.start("agent", self.node.config("agent", self.node.document()))
        assert refused.wait(self.node.deadline_s) in (1, 2), "1 of a release that knew no other status"
        return (self.node.directory / "agent.log").read_text()

    def stop(self) -> None:
        """As kubelet ends a container."""
        assert self.node.agent is not None
        self.node.agent.terminate()
        assert self.node.agent.wait(self.node.deadline_s) == 0
        self.node.agent = None

    def ledger_version(self) -> int:
        """Of the file; while no agent has it open."""
        with closing(sqlite3.connect(self.node.directory / "state" / "ledger.db")) as db:
            [(version,)] = db.execute("PRAGMA user_version")
        return version

    def vf(self, sandbox: Sandbox) -> int:
        """The index of the only VF that a pod has."""
        report = self.node.try_report()
        assert report is not None
        [interface] = (
            each
            for allocation in report.allocations
            if allocation.container_id == sandbox.container_id
            for each in allocation.interfaces
        )
        assert interface.pf == self.node.pfs[0].pci
        return interface.vf


@pytest.fixture
def life(make_node: Callable[[int], Node], tmp_path: Path) -> Life:
    commit = last_without("software_max_tx_rate_mbps", "src/k8s_rdma/core/ledger.py")
    if commit is None:
        pytest.skip("needs the repository's history, back to agents that knew no caps in software")
    return Life(make_node(4), unpack(commit, tmp_path, "src"))


def endpoint(sandbox: Sandbox) -> Endpoint:
    """Its interface, as the result of ADD says it."""
    names = [each["name"] for each in sandbox.result["interfaces"]]
    address = next(
        ip["address"].partition("/")[0] for ip in sandbox.result["ips"] if names[ip["interface"]] == IFNAME
    )
    return Endpoint(sandbox.netns, IFNAME, address)


def held(node: Node) -> dict[str, Any]:
    """Return the interfaces of pods by the agent's report, by container."""
    report = node.try_report()
    assert report is not None
    return {
        each.container_id: (each.pod.name, [(it.ifname, it.pf, it.vf) for it in each.interfaces])
        for each in report.allocations
    }


def test_pods_keep_all_they_have_through_newer_and_older_agents_and_until_the_node_is_uninstalled(
    life: Life,
) -> None:
    asyncio.run(live(life))


@pytest.mark.parametrize("older", [True, False], ids=["an older agent", "a newer agent"])
def test_attachment_of_a_killed_agent_is_undone_by_one_of_another_version(life: Life, older: bool) -> None:
    asyncio.run(cut_short(life, older=older))


async def cut_short(life: Life, *, older: bool) -> None:
    """Killed with some of the addresses leased, and some of the VFs in the pod."""
    node, runtime = life.node, life.installed
    life.install()
    life.start(older=older)
    adding = asyncio.create_task(runtime.add(pod("begun", *[{"min_tx_rate": 10}] * 8)))
    await asyncio.to_thread(node.wait, "the first address", lambda: bool(node.leases("rdma")))
    node.kill_agent()
    with pytest.raises(AttachError) as failed:
        await adding
    life.start(older=not older)
    assert node.kernel_state() == node.pristine
    assert node.leases("rdma") == []
    if older:  # which takes no DEL that is left, so that the runtime's own failed
        assert failed.value.leftover is not None
        await runtime.delete(failed.value.leftover)
    else:
        assert [each.split(":")[1:] for each in node.deferred_deletions()] == [["eth0", "net"]]
        life.stop()
        life.start()
    assert node.leftovers() == {}


async def live(life: Life) -> None:
    node, runtime = life.node, life.installed
    life.install()
    before = qdiscs()
    life.start(older=True)
    sender = await runtime.add(pod("sender", {"min_tx_rate": 50, "max_tx_rate": 100, "pf": PF}))
    receiver = await runtime.add(pod("receiver", {"pf": PF}))
    flooder = await runtime.add(pod("flooder", {"max_tx_rate": CAP_MBPS, "pf": PF}))
    pods = (sender, receiver, flooder)
    namespaces = {each.pod.name: each.netns for each in pods}
    steady, capped = life.vf(sender), life.vf(flooder)
    had, has = facts(node, namespaces), held(node)
    with (
        Stream(endpoint(sender), endpoint(receiver)) as stream,
        flood(endpoint(flooder), endpoint(receiver)),
    ):
        seen = [passed_vf(PF, steady)]
        caps = [passed_vf(PF, capped)]

        def all_holds(*, served: bool = True) -> None:
            """All objects are the old ones, the stream has no drops, and the cap lets no more through."""
            assert facts(node, namespaces) == had
            assert not served or held(node) == has
            seen.append(passed_vf(PF, steady))
            caps.append(passed_vf(PF, capped))
            assert seen[-1].within(seen[-2], mbps=100, burst=BURST)
            assert seen[-1].dropped == 0
            assert caps[-1].within(caps[-2], mbps=CAP_MBPS, burst=BURST)
            assert caps[-1].within(caps[0], mbps=CAP_MBPS, burst=BURST)

        life.stop()
        life.start()
        all_holds()
        await restarts(life, runtime, all_holds)
        await back_and_forth(life, runtime, receiver, all_holds)
        assert caps[0].sent < caps[-1].sent
        assert "pods hold interfaces: default/flooder, default/receiver, default/sender; end them" in (
            life.uninstall()
        )
        all_holds()
    assert stream.lost() == []
    assert stream.sent > 0
    await removed(life, runtime, pods)
    assert qdiscs() == before


async def restarts(life: Life, runtime: CniRuntime, all_holds: Callable[..., None]) -> None:
    """Ended and killed, with calls that find no agent."""
    node = life.node
    life.stop()
    all_holds(served=False)
    life.start()
    going = await runtime.add(pod("going", {"min_tx_rate": 20}))
    for _ in range(2):
        node.kill_agent()
        life.start()
    node.kill_agent()
    with pytest.raises(AttachError) as refused:
        await runtime.add(pod("coming", {"min_tx_rate": 20}))
    assert refused.value.code == TRY_AGAIN_LATER
    await runtime.delete(await runtime.add(pod("plain")))
    await runtime.delete(going)
    assert node.deferred_deletions() == [f"{going.container_id}:eth0:net"]
    life.start()
    assert node.deferred_deletions() == []
    assert going.container_id not in node.markers()
    await runtime.delete(await runtime.add(pod("coming", {"min_tx_rate": 20})))
    all_holds()


async def back_and_forth(
    life: Life, runtime: CniRuntime, receiver: Sandbox, all_holds: Callable[..., None]
) -> None:
    """An older agent continues after a newer one, unless a pod has a feature that only the newer knows."""
    new = await runtime.add(pod("new", {"max_tx_rate": CAP_MBPS, "enforce": "software", "pf": PF}))
    first = passed_interface(endpoint(new))
    with flood(endpoint(new), endpoint(receiver)):
        life.stop()
        assert life.ledger_version() == WITH_CAPS
        said = life.refused(older=True)
        assert re.search(rf"of version {WITH_CAPS}, and this program knows versions up to {OLDEST}: ", said)
        life.start()
    last = passed_interface(endpoint(new))
    assert last.within(first, mbps=CAP_MBPS, burst=SOFTWARE_BURST)
    await runtime.delete(new)
    life.stop()
    assert life.ledger_version() == OLDEST
    life.start(older=True)
    all_holds()
    await runtime.delete(await runtime.add(pod("by-the-older", {"min_tx_rate": 20})))
    kept = await runtime.add(pod("kept", {"min_tx_rate": 20}))
    life.stop()
    life.start()
    await runtime.delete(kept)
    all_holds()


async def removed(life: Life, runtime: CniRuntime, pods: tuple[Sandbox, ...]) -> None:
    """Uninstalled when the pods have ended, and installed once more."""
    node = life.node
    for each in pods:
        await runtime.delete(each)
    assert node.leftovers() == {}
    life.stop()
    said = life.uninstall()
    assert f"removed {node.run_dir}\n" in said
    assert "left" not in said
    assert [each.name for each in life.confs.iterdir()] == ["10-net.conflist"]
    assert list(life.bin.iterdir()) == []
    assert not node.run_dir.exists()
    assert node.kernel_state() == node.pristine
    life.install()
    life.start()
    await runtime.delete(await runtime.add(pod("again", {"min_tx_rate": 100})))
    assert node.leftovers() == {}
