"""`k8s-rdma verify node` on virtual PFs: the agent, the executable, traffic and kernel are real."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from e2e.node import LINK_MBPS, Node, pod

if TYPE_CHECKING:
    from collections.abc import Callable

    from cni.call import Program

VFS = 6


@pytest.fixture
def node(make_node: Callable[[int], Node]) -> Node:
    node = make_node(VFS)
    node.start_agent()
    return node


class Verify:
    """The command on a node."""

    def __init__(self, node: Node, program: Program) -> None:
        self.node = node
        self.report = node.directory / "report.json"
        self._command = [
            *(sys.executable, "-m", "k8s_rdma", "verify", "node", "--seconds", "1"),
            *("--run-dir", str(node.run_dir), "--plugin", str(program.path), "--report", str(self.report)),
        ]

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._command, *options], capture_output=True, text=True, check=False, timeout=120
        )

    def start(self, *options: str) -> subprocess.Popen[str]:
        """Return when it sends: its interfaces are in their namespaces."""
        running = subprocess.Popen(
            [*self._command, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.node.wait("the interfaces", lambda: len(self.allocations()) == 4)
        return running

    def allocations(self) -> tuple[object, ...]:
        report = self.node.try_report()
        assert report is not None
        return report.allocations

    def checks(self) -> list[dict[str, Any]]:
        """Those of the only card in the report."""
        [card] = json.loads(self.report.read_text())["cards"]
        return card["checks"]


@pytest.fixture
def verify(node: Node, program: Program) -> Verify:
    return Verify(node, program)


def results(verify: Verify) -> list[tuple[str, str]]:
    return [(check["check"], check["result"]) for check in verify.checks()]


def test_verify_passes_if_rates_hold(verify: Verify) -> None:
    ended = verify.run("--pf", "enp1s0f0", "--receiver-pf", "enp1s0f0")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert results(verify) == [
        *[("reservation", "pass")] * 3,
        ("cap", "pass"),
        ("received under a cap", "unclaimed"),
    ]
    reserved = [check["rateMbps"] for check in verify.checks()[:3]]
    assert reserved == [LINK_MBPS // 2, LINK_MBPS // 5, LINK_MBPS // 10]
    assert {check["enforced"] for check in verify.checks()[:4]} == {"software"}
    assert len(re.findall(r"(?m)^enp1s0f0 .* PASS", ended.stdout)) == 4
    assert verify.node.leftovers() == {}


def test_verify_fails_on_a_card_that_shows_a_rate_and_does_not_keep_it(verify: Verify) -> None:
    for index in range(VFS):
        command = ["tc", "qdisc", "delete", "dev", f"enp1s0f0r{index}", "ingress"]
        subprocess.run(command, check=True)
    ended = verify.run("--pf", "enp1s0f0")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    [cap] = [check for check in verify.checks() if check["check"] == "cap"]
    assert (cap["result"], cap["enforced"], cap["why"]) == ("fail", "software", "more than the cap")
    assert cap["measuredMbps"] > 2 * cap["rateMbps"]


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM], ids=lambda end: end.name)
def test_verify_gives_everything_back_when_it_is_interrupted(verify: Verify, end: signal.Signals) -> None:
    running = verify.start("--pf", "enp1s0f0")
    running.send_signal(end)
    time.sleep(0.05)
    running.send_signal(end)  # as people do who do not like to wait
    _, said = running.communicate(timeout=30)
    assert running.returncode == 2, said
    assert "interrupted" in said
    assert verify.node.leftovers() == {}


@pytest.mark.parametrize("receiver", ["os.getppid()", "0"], ids=["process", "its group"])
def test_verify_gives_everything_back_when_it_is_interrupted_while_it_does(
    verify: Verify, program: Program, receiver: str
) -> None:
    """Of a terminal all programs that the command runs get the signal."""
    plugin = verify.node.directory / "interrupting" / program.path.name
    plugin.parent.mkdir()
    plugin.write_text(
        f"#!{sys.executable}\nimport os, signal, sys\n"
        f'if os.environ["CNI_COMMAND"] == "DEL":\n    os.kill({receiver}, signal.SIGINT)\n'
        f'os.execv("{program.path}", sys.argv)\n'
    )
    plugin.chmod(0o755)
    running = verify.start("--pf", "enp1s0f0", "--plugin", str(plugin))
    _, said = running.communicate(timeout=60)
    assert (running.returncode, "interrupted" in said) == (2, True), said
    assert verify.node.leftovers() == {}
    assert list((verify.node.run_dir / "verify").iterdir()) == []


def test_verify_gives_back_vfs_of_a_killed_run(verify: Verify) -> None:
    running = verify.start("--pf", "enp1s0f0")
    running.kill()
    running.communicate()
    assert len(verify.allocations()) == 4
    ended = verify.run("--pf", "enp1s0f0")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert verify.node.leftovers() == {}
    assert list((verify.node.run_dir / "verify").iterdir()) == []


def test_verify_runs_once_at_a_time(verify: Verify) -> None:
    running = verify.start("--pf", "enp1s0f0")
    second = verify.run("--pf", "enp1s0f1")
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=30)
    assert (second.returncode, "another `k8s-rdma verify` runs" in second.stderr) == (2, True)


def test_verify_asks_before_it_sends_beside_pods_and_is_refused_if_they_have_all(verify: Verify) -> None:
    async def scenario() -> None:
        runtime = verify.node.runtime(chained=False)
        entry = {"pf": "enp1s0f0", "min_tx_rate": 100}
        sandbox = await runtime.add(pod("p", *[entry] * (VFS - 1)))
        unconfirmed = await asyncio.to_thread(verify.run, "--pf", "enp1s0f0")
        assert unconfirmed.returncode == 2
        assert "pods hold VFs (default/p)" in unconfirmed.stderr
        confirmed = await asyncio.to_thread(verify.run, "--pf", "enp1s0f0", "--yes")
        assert confirmed.returncode == 2, confirmed.stderr
        await runtime.delete(sandbox)

    asyncio.run(scenario())
    assert {result for _, result in results(verify)} == {"unmeasured"}
    assert "VF" in verify.checks()[0]["why"]
    assert verify.node.leftovers() == {}


def test_report_names_no_pf_address_or_pod(verify: Verify) -> None:
    verify.run("--pf", "enp1s0f0", "--cap", "2000")
    text = verify.report.read_text()
    assert "unmeasured" in text
    assert not re.search(r"enp1s0|0000:01|198\.18|w1|k8s-rdma-verify", text)


def test_verify_gives_advice_for_an_agent_that_needs_placements(
    make_node: Callable[[int], Node], program: Program
) -> None:
    node = make_node(VFS)
    node.settings["allowUnplaced"] = False
    node.start_agent()
    ended = Verify(node, program).run("--pf", "enp1s0f0")
    assert ended.returncode == 2
    assert "verify cluster" in ended.stderr
    assert node.leftovers() == {}


def test_verify_names_a_pf_that_is_not_there(verify: Verify) -> None:
    ended = verify.run("--pf", "eth9")
    assert (ended.returncode, "PF eth9: there is no such PF with VFs for pods" in ended.stderr) == (2, True)


def test_verify_needs_an_agent(verify: Verify) -> None:
    verify.node.kill_agent()
    ended = verify.run()
    assert (ended.returncode, "no agent answers" in ended.stderr) == (2, True)
