"""Each command's output on terminals of 60, 80, 120 and 200 columns.

No line is longer than its terminal, no word is broken, and the cells that matter are whole. Documents are the
same everywhere.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cli.asking import bind, k8s_rdma
from cli.on_terminal import on_terminals, runs
from cli.played_usage import PlayedPrometheus, answering, pod
from cli.played_usage import stored as stored_pods
from cli.test_holders import node_object, stored
from cli.test_options import COMMANDS, RECORDED
from demo.test_outcome import sheet
from extender.node_server import PF0, pf, report
from extender.serving import FILTER, served
from extender.test_rate_changes import KEY, asked
from extender.world import cluster, world
from fakes.sriov_machine import Tree
from k8s_rdma.cli import adopt, init, verify
from k8s_rdma.cli.tables import WHOLE
from k8s_rdma.core.types import PciAddress
from k8s_rdma.core.verification import Check, PfFacts, Result, TrafficKind, TrialOutcome
from k8s_rdma.init import pf_setup
from k8s_rdma.wire.adopt import AdoptedVf, AdoptReply
from k8s_rdma_demo.cluster.command import write_kubeconfig
from k8s_rdma_demo.outcome import FlowShown, PodShown
from k8s_rdma_demo.outcome import Outcome as DemoOutcome
from kube.stored_objects import serving_objects

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from k8s_rdma.cli.console import Page

WIDTHS = (60, 80, 120, 200)
LABELS = {
    "message:",
    "nodes:",
    "against",
    "it:",
    "would",
    "get:",
    "what",
    "to",
    "do:",
    "measured:",
    "problems:",
}
"""The words before a sentence that stands below its row."""

SCENARIO = str(Path(__file__).parents[2] / "examples" / "scenarios" / "trace.yaml")
CLAIM = ("claim", "--annotation", '[{"min_tx_rate": 1000, "max_tx_rate": 2000}]')


def assert_fits(out: str, whole: str, width: int, rows: Collection[Collection[str]] = ()) -> None:
    """Assert that an output fits its terminal. rows: of cells that each stand in one line."""
    assert [line for line in out.splitlines() if len(line) > width] == []
    words = set(ages_apart(whole).split()) | LABELS
    assert set(ages_apart(out).split()) - words == set(), f"broken at {width} columns"
    for row in rows:
        assert any(all(cell in line for cell in row) for line in out.splitlines()), (row, width, out)


def ages_apart(out: str) -> str:
    return re.sub(r"\b\d+(\.\d+)?( ?)s\b", "AGE", out)


ALONE: dict[str, tuple[tuple[str, ...], list[tuple[str, ...]]]] = {
    "whatif fit": (("--from", RECORDED), [("default/waits",)]),
    "whatif headroom": (("--from", RECORDED), [("w1", "enp3s0f1")]),
    "whatif without": (("--node", "w1", "--from", RECORDED), [("foreign-0",)]),
    "whatif with": (("--vfs", "32", "--from", RECORDED), []),
    "simulate": (
        (SCENARIO, "--policy", "binpack"),
        [("POLICY", "RESERVED", "REFUSALS", "P95 WAIT"), ("binpack",)],
    ),
    "version": ((), [("k8s-rdma",)]),
}
"""Commands that need no server, with options and the cells that matter."""


@pytest.mark.anyio
@pytest.mark.parametrize("name", ALONE)
async def test_answer_fits_any_terminal(name: str):
    options, rows = ALONE[name]
    command = (*name.split(), *options)
    piped = await k8s_rdma(*command)
    first_word = piped.out.split()[0]
    for width, shown in (await on_terminals(WIDTHS, *command)).items():
        answer = shown.out[shown.out.index(first_word) :]  # without the bar of `simulate`
        assert_fits(answer, piped.out, width, rows)


@pytest.mark.anyio
async def test_doctor_fits_any_terminal(tmp_path: Path):
    (tmp_path / "proc" / "1").mkdir(parents=True)
    command = ("doctor", "node", "--host-root", str(tmp_path), "--server", "", "--device-plugin", "")
    piped = await k8s_rdma(*command)
    identifiers = re.findall(r"\[[a-z-]+\]", piped.out)
    for width, shown in (await on_terminals(WIDTHS, *command)).items():
        long = [line for line in shown.out.splitlines() if len(line) > width]
        assert [line for line in long if str(tmp_path) not in line] == []
        assert set(shown.out.split()) <= set(piped.out.split())
        assert re.findall(r"\[[a-z-]+\]", shown.out) == identifiers


@pytest.mark.anyio
async def test_init_fits_any_terminal(tmp_path: Path):
    Tree(tmp_path / "sys")
    file = tmp_path / "init.yaml"
    named = "hardware: {pfs: [{names: [eth9, eth10]}]}"
    file.write_text(f"{{sysRoot: {tmp_path}/sys, stateDir: {tmp_path}/state, {named}}}")
    command = ("init", "--plan", "--config", str(file))
    piped = await k8s_rdma(*command)
    for width, shown in (await on_terminals(WIDTHS, *command)).items():
        out = "\n".join(
            line for line in shown.out.splitlines() if not line.startswith("{")
        )  # without its log
        assert_fits(out, piped.out, width, [("not there",), ("eth9",)])


@pytest.mark.anyio
async def test_who_fits_any_terminal(tmp_path: Path):
    nodes = [node_object("gpu-node-1", pod="trainer-0", namespace="research"), node_object("w2")]
    with serving_objects(stored(*nodes), tmp_path) as kubeconfig:
        command = ("who", "--kubeconfig", kubeconfig)
        piped = await k8s_rdma(*command)
        for width, shown in (await on_terminals(WIDTHS, *command)).items():
            rows = [("gpu-node-1", "enp3s0f0", "research/trainer-0"), ("w2", "enp3s0f0", "default/p")]
            assert_fits(shown.out, piped.out, width, rows)


@pytest.mark.anyio
async def test_doctor_of_a_cluster_fits_any_terminal(tmp_path: Path):
    """Also without findings of all is well: most that it asks for is not there."""
    answers = {**stored(node_object("gpu-node-1")), "/version": b'{"gitVersion": "v1.36.2"}'}
    with serving_objects(answers, tmp_path) as kubeconfig:
        command = ("doctor", "cluster", "--kubeconfig", kubeconfig)
        piped = await k8s_rdma(*command)
        identifiers = re.findall(r"\[[a-z0-9-]+\]", piped.out)
        assert len(identifiers) > 5, piped.err
        for width, shown in (await on_terminals(WIDTHS, *command)).items():
            assert_fits(shown.out, piped.out, width)
            assert re.findall(r"\[[a-z0-9-]+\]", shown.out) == identifiers


@pytest.mark.anyio
async def test_recommendation_fits_any_terminal(tmp_path: Path):
    """An address of Prometheus is longer than a narrow terminal, and stays whole."""
    played = PlayedPrometheus()
    objects = stored_pods(pod("p"))
    with answering(played.answer) as url, serving_objects(objects, tmp_path) as kubeconfig:
        command = ("recommend", "--kubeconfig", kubeconfig, "--prometheus", url, "--window", "1h")
        piped = await k8s_rdma(*command)
        for width, shown in (await on_terminals(WIDTHS, *command)).items():
            assert_fits(shown.out, piped.out + piped.err, width, [("p", "rdma0", "130Mb/s")])


@pytest.mark.anyio
async def test_change_of_rates_fits_any_terminal(tmp_path: Path):
    async with world("w1", key=KEY) as c:
        c.nodes["w1"].report = report("w1", pf(PF0, mbps=1_000))
        await c.create_pod("gold-0", annotation=asked((300, 0)), labels={"app": "train"})
        assert await c.bind("gold-0", "w1") == ""
        kubeconfig = str(write_kubeconfig(tmp_path / "kubeconfig", c.server.url))
        for rate in ("2000", "250"):
            command = ("rates", "set", "default/gold-0", "--kubeconfig", kubeconfig, "--min", rate)
            await k8s_rdma(*command)  # after which the pod has or waits for these rates
            piped = await k8s_rdma(*command)
            for width, shown in (await on_terminals(WIDTHS, *command)).items():
                assert_fits(shown.out, piped.out + piped.err, width, [("default/gold-0:",)])


@pytest.mark.anyio
async def test_top_and_explain_fit_any_terminal():
    async with cluster("w1", "gpu-node-1") as c, served(c) as s:
        await s.ready()
        await c.create_pod("trainer-0", 4000)
        await c.create_pod("fits-nowhere", 60_000)
        await c.create_pod(
            "new", annotation='[{"min_tx_rate": 9000, "pf": {"name": ["enp3s0f0", "enp3s0f1"]}}]'
        )
        await bind(c, s, "trainer-0", "w1")
        await s.post(FILTER, c.args("fits-nowhere"))
        top = [
            ("w1", "4000/10000Mb/s", "3/4"),
            ("gpu-node-1", "0/10000Mb/s", "4/4"),
            ("default/fits-nowhere",),
        ]
        pfs = [
            ("w1", "enp3s0f0", "3/4", "6000/10000Mb/s"),
            ("gpu-node-1", "enp3s0f0", "4/4", "10000/10000Mb/s"),
        ]
        commands: list[tuple[tuple[str, ...], list[tuple[str, ...]]]] = [
            (("top", "--once"), top),
            (("explain", "pod", "default/fits-nowhere"), pfs),
            (("explain", "pod", "default/fits-nowhere", "--all"), pfs),
            (("explain", "pod", "default/new"), [("managedResources",)]),
            (("explain", "pod", "default/trainer-0"), [("enp3s0f0", "1 VF", "4000 Mb/s")]),
        ]
        for words, rows in commands:
            command = (*words, "--extender", s.url)
            piped = await k8s_rdma(*command)
            for width, shown in (await on_terminals(WIDTHS, *command)).items():
                assert_fits(shown.out, piped.out, width, rows)


@pytest.mark.anyio
@pytest.mark.parametrize("command", [CLAIM, ("gather",)], ids=["claim", "gather"])
async def test_document_is_the_same_on_any_terminal(command: tuple[str, ...]):
    piped = await k8s_rdma(*command)
    for shown in (await on_terminals(WIDTHS, *command)).values():
        assert shown.out.startswith(piped.out)


@pytest.mark.anyio
async def test_snapshot_is_the_same_on_any_terminal(tmp_path: Path):
    lists = ("/api/v1/nodes", "/api/v1/pods", "/apis/scheduling.k8s.io/v1/priorityclasses")
    empty = dict.fromkeys(lists, b'{"items": []}')
    with serving_objects({**stored(node_object("w1")), **empty}, tmp_path) as kubeconfig:
        command = ("snapshot", "--kubeconfig", kubeconfig)
        piped = await k8s_rdma(*command)
        assert piped.status == 0, piped.err
        for shown in (await on_terminals(WIDTHS, *command)).values():
            assert without_time(shown.out) == without_time(piped.out + piped.err)


def without_time(out: str) -> str:
    return re.sub(r"20\d\d-\d\d-\d\dT[0-9:.]+Z?", "TIME", out)


LONG = "the VFs 3, 4 and 5 are used by pods of namespace research, so that their number cannot change now"


def show_init(page: Page) -> None:
    common = {"requested": 16, "previous": 8, "current": 8}
    init.show(
        [
            pf_setup.PfOutcome(
                pf="ens1f0np0", result=pf_setup.PfResult.CHANGED, message="16 made, 16 bound", **common
            ),
            pf_setup.PfOutcome(
                pf="ens1f1np1",
                result=pf_setup.PfResult.REFUSED,
                message=LONG,
                advice="drain the node, then start the agent's pod anew",
                **common,
            ),
            pf_setup.PfOutcome(pf="", result=pf_setup.PfResult.NOT_THERE, message="eth9 is not there"),
        ],
        page,
    )


def show_verify(page: Page) -> None:
    pf = PfFacts(
        name="ens1f0np0",
        pci=PciAddress("0000:3b:00.0"),
        driver="mlx5_core",
        link_mbps=100_000,
        free_mbps=100_000,
    )
    outcomes = [
        TrialOutcome(
            traffic=TrafficKind.TCP,
            check=Check.RESERVATION,
            rate_mbps=50_000,
            mbps=49_800.0,
            result=Result.PASS,
        ),
        TrialOutcome(
            traffic=TrafficKind.VERBS, check=Check.CAP, rate_mbps=10_000, result=Result.UNMEASURED, why=LONG
        ),
    ]
    page.print(verify.results_table([(pf, outcomes)]))


def show_adopted(page: Page) -> None:
    vf = {"pf": "ens1f0np0", "pci": "0000:3b:00.0", "min_tx_rate": 1000, "max_tx_rate": 2000, "vlan": 100}
    vfs = (
        AdoptedVf(**vf, vf=0, netdev="ens1f0v0", outcome="reset", why=""),
        AdoptedVf(**vf, vf=31, netdev=None, outcome="left alone", why=LONG),
    )
    adopt.show(AdoptReply(vfs=vfs), page)


def show_demo(page: Page) -> None:
    outcome = DemoOutcome(complete=True, manifest="kind: Pod\n")
    outcome.pods.append(
        PodShown(name="sixty-a", requested="60 x min 10", node="w1", allocated="enp1s0f0 x 60")
    )
    for name, cap in (("gold", 0), ("bronze", 200)):
        outcome.check_flow(FlowShown(scene="contention", name=name, reserved=100, cap=cap, measured=190.0))
    outcome.check(
        "no PF of any node was ever promised more than it has", True, "at most 100 %", "at most 80 %"
    )
    outcome.refusals["fits-nowhere"] = LONG
    outcome.show(page)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("show", "rows"),
    [
        (show_init, [("ens1f0np0", "8", "changed"), ("ens1f1np1", "8", "refused")]),
        (show_verify, [("ens1f0np0", "reservation", "PASS"), ("ens1f0np0", "cap", "NOT MEASURED")]),
        (show_adopted, [("ens1f0np0", "0", "reset"), ("ens1f0np0", "31", "left alone")]),
        (show_demo, [("sixty-a", "w1"), ("contention", "gold", "190")]),
    ],
    ids=["init", "verify", "adopt", "demo"],
)
def test_table_that_needs_a_machine_fits_any_terminal(show, rows: list[tuple[str, ...]], width: int):
    page, whole = sheet(width), sheet(WHOLE)
    with page.capture() as captured:
        show(page)
    with whole.capture() as everything:
        show(whole)
    assert_fits(captured.get(), everything.get(), width, rows)


GROUPS = ("", "explain", "rates", "doctor", "verify", "whatif", "agent")


HELP = [(*name.split(), "-h") for name in (*GROUPS, *COMMANDS)]


def words_of(text: str) -> set[str]:
    return set(re.findall(r"[\w-]+", text))


@pytest.mark.anyio
async def test_help_of_every_command_flows_at_any_width():
    ran = iter(await runs([(width, command) for width in (WHOLE, *WIDTHS) for command in HELP]))
    whole = [next(ran) for _ in HELP]
    for width in WIDTHS:
        for command, everything in zip(HELP, whole, strict=True):
            shown = next(ran)
            assert shown.status == 0
            lines = [line.rstrip() for line in shown.out.splitlines()]
            assert [line for line in lines if len(line) > width] == [], command
            assert words_of(shown.out) <= words_of(everything.out), command
            assert_flows(lines, width)


def assert_flows(lines: Sequence[str], width: int) -> None:
    """Assert that each line of the prose above the first table is as full as words allow."""
    table = next(index for index, line in enumerate(lines) if line.startswith("  "))
    for line, following in pairwise(lines[: table - 1]):
        if line and following:
            assert len(f"{line} {following.split()[0]}") >= width - 1, "a line ends before it is full"
