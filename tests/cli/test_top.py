"""`k8s-rdma top`, as a user runs it, and its pages of a large cluster."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import signal
import struct
import termios
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import msgspec
import pytest
from rich.console import Console, RenderableType

from cli.asking import ENVIRONMENT, MAIN, bind, k8s_rdma
from extender.serving import FILTER, served
from extender.world import cluster
from k8s_rdma.cli.dra import ClusterClaims
from k8s_rdma.cli.extender_client import ExtenderAddress, ExtenderClient
from k8s_rdma.cli.service_proxy import NoAnswerError
from k8s_rdma.cli.top import Screen, page, with_claims
from k8s_rdma.core.claim_fit import ClaimNode, ClaimPf
from k8s_rdma.core.pf_use import Used
from k8s_rdma.core.types import NodeName
from k8s_rdma.wire.views import (
    ClusterView,
    ExtenderState,
    NodeRow,
    PendingRow,
    PfRow,
    Sort,
    Totals,
    decode_view,
)
from kube.stored_objects import serving_objects

if TYPE_CHECKING:
    from pathlib import Path

LEAVES_SCREEN = "\x1b[?1049l"
BEGINS_PAGE = "\x1b[H"


def view(nodes: int, pods: int = 0, **extender: object) -> ClusterView:
    pfs = tuple(
        PfRow(name=f"enp{port}s0", link_mbps=100_000, reserved_mbps=60_000, vfs=64, free_vfs=40)
        for port in range(2)
    )
    return ClusterView(
        extender=ExtenderState(**{"role": "active", **extender}),
        totals=Totals(
            nodes=nodes,
            unreadable=0,
            with_problems=0,
            pfs=2 * nodes,
            link_mbps=200_000 * nodes,
            reserved_mbps=120_000 * nodes,
            vfs=128 * nodes,
            free_vfs=80 * nodes,
            pods=24 * nodes,
        ),
        nodes=tuple(
            NodeRow(name=f"node-{at:04}", pods=24, heard_s=1.0, pfs=pfs) for at in range(min(nodes, 60))
        ),
        pending=tuple(
            PendingRow(
                pod=f"team/job-{at}",
                interfaces=2,
                reserved_mbps=200_000,
                ago_s=3.0,
                waits_s=400.0,
                why="0/5000 nodes: 5000 insufficient",
            )
            for at in range(pods)
        ),
        pending_total=pods,
    )


def drawn(page: RenderableType, width: int = 160) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(page)
    return captured.get().splitlines()


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("height", [12, 24, 60])
def test_large_cluster_fits_on_the_screen_with_the_pods_that_wait(height: int, width: int):
    lines = drawn(page(view(5000, pods=40), lines=height), width)
    assert len(lines) <= height
    assert any("120000/200000Mb/s" in line and "80/128" in line for line in lines)
    assert lines[0].startswith("5000 nodes, 0 with problems; 120000 pods placed, 40 pending; extender active")
    assert any("node-0000" in line for line in lines)
    assert any("team/job-0" in line for line in lines)
    assert any(re.match(r"and \d+ more nodes", line) for line in lines)


def test_standby_reports_the_lease_that_it_waits_for():
    told = view(1, role="standby", missing=("lease kube-system/k8s-rdma-extender (held by a)",))
    lines = drawn(page(told, lines=None))
    assert lines[2] == "waits for: lease kube-system/k8s-rdma-extender (held by a)"


def test_exclusive_devices_are_listed_beside_the_vfs_of_their_pf():
    row = PfRow(
        name="enp1s0", link_mbps=1000, reserved_mbps=400, vfs=4, free_vfs=3, devices=4, held_devices=2
    )
    told = msgspec.structs.replace(view(1), nodes=(NodeRow(name="w1", pfs=(row,)),))
    assert any("enp1s0 40% 3 free 2/4 devices held" in each for each in drawn(page(told, lines=None)))


def device(name: str, used_mbps: int = 400, **attributes: str) -> ClaimPf:
    return ClaimPf(
        name=name,
        mbps=950,
        vfs=4,
        used=Used(1, used_mbps),
        attributes={f"rdma.k8s-rdma.io/{key}": value for key, value in attributes.items()},
    )


def merged(told: ClusterView, *nodes: ClaimNode, sort: Sort = Sort.NAME, rows: int = 10) -> ClusterView:
    return with_claims(told, ClusterClaims(nodes=nodes, unread=()), sort, rows)


def test_bandwidth_for_claims_that_the_nodes_agent_does_not_tell_is_unknown():
    row = PfRow(name="enp1s0", link_mbps=None, reserved_mbps=None, vfs=4, free_vfs=3, use="claims")
    told = msgspec.structs.replace(view(1), nodes=(NodeRow(name="w1", pfs=(row,)),))
    assert any("enp1s0 <unknown> 3 free" in line for line in drawn(page(told, lines=None)))


def test_pfs_for_claims_are_those_of_slices_and_claims_if_known():
    reported = PfRow(name="enp1s0", link_mbps=1000, reserved_mbps=0, vfs=4, free_vfs=4, use="claims")
    lone = msgspec.structs.replace(reported, name="enp9s0")
    told = msgspec.structs.replace(
        view(1), nodes=(NodeRow(name="w1", pfs=(*view(1).nodes[0].pfs, reported, lone)),)
    )
    nodes = tuple(
        ClaimNode(node=NodeName(name), pfs=(device("pf0", pf="enp1s0"),), pods=1) for name in ("w1", "w2")
    )
    unread = ("resourceclaim a/b: bandwidth: -1 is negative", "another")
    found = with_claims(told, ClusterClaims(nodes=nodes, unread=unread), Sort.RESERVED, 10)
    assert [(pf.name, pf.reserved_mbps, pf.use) for pf in found.nodes[0].pfs] == [
        ("enp0s0", 60_000, "annotation"),
        ("enp1s0", 60_000, "annotation"),
        ("enp9s0", 0, "claims"),
        ("enp1s0", 400, "claims"),
    ]
    assert (found.nodes[1].name, found.nodes[1].pods, found.totals.nodes) == ("w2", 1, 2)
    lines = drawn(page(found, lines=None), 200)
    assert lines[1] == "2 PFs; reserved 120000 of 200000 Mb/s (60%); 80 of 128 VFs free"
    assert "for claims: 3 PFs; reserved 800 of 2900 Mb/s (27%); 10 of 12 VFs free" in lines[2]
    assert lines[3] == "not counted: resourceclaim a/b: bandwidth: -1 is negative and 1 more"


def test_each_use_of_a_nodes_pfs_has_a_line_of_its_own():
    """A split PF is on both, with the part that each has."""
    split = view(1).nodes[0].pfs[:1]
    told = msgspec.structs.replace(view(1), nodes=(NodeRow(name="w1", pods=3, heard_s=1.0, pfs=split),))
    found = merged(told, ClaimNode(node=NodeName("w1"), pfs=(device("pf0", pf="enp0s0"),), problem="late"))
    lines = [" ".join(line.split()) for line in drawn(page(found, lines=None), 200)]
    assert [line for line in lines if line.startswith(("NODE", "w1"))] == [
        "NODE FOR PFS RESERVED RESERVED(%) VFS FREE PODS LAST SEEN PF BY PF PROBLEMS",
        "w1 annotation 1 60000/100000Mb/s 60% 40/64 3 1s enp0s0 60% 40 free late",
        "w1 claims 1 400/950Mb/s 42% 3/4 enp0s0 42% 3 free",
    ]


def test_counts_are_those_of_all_rows():
    told = msgspec.structs.replace(view(3, pods=1), nodes=view(3).nodes)
    nodes = [
        ClaimNode(node=NodeName("node-0000"), pfs=(device("pf0"),), problem="1 of 2 slices exists"),
        ClaimNode(node=NodeName("x"), pods=5, problem="its ResourceSlice: cannot be read"),
        ClaimNode(node=NodeName("y"), pods=2, pfs=(device("pf0"),)),
    ]
    found = merged(told, *nodes, rows=2)
    assert len(found.nodes) == 2
    totals = found.totals
    assert (totals.nodes, totals.unreadable, totals.with_problems, totals.pods) == (5, 1, 2, 3 * 24 + 7)
    assert (found.claims.pfs, found.claims.reserved_mbps) == (2, 800)
    everything = merged(told, *nodes)
    assert sum(row.pods for row in everything.nodes) == totals.pods
    assert sum(bool(row.problems) for row in everything.nodes) == totals.with_problems


@pytest.mark.parametrize(
    ("sort", "names"),
    [
        (Sort.RESERVED, ["full", "node-0000", "idle"]),
        (Sort.PODS, ["node-0000", "full", "idle"]),
        (Sort.NAME, ["full", "idle", "node-0000"]),
    ],
)
def test_nodes_are_ordered_by_all_of_their_pfs(sort: Sort, names: list[str]):
    nodes = [
        ClaimNode(node=NodeName("idle"), pfs=(device("pf0", 0),)),
        ClaimNode(node=NodeName("full"), pfs=(device("pf0", 950),), pods=1),
    ]
    assert [row.name for row in merged(view(1), *nodes, sort=sort).nodes] == names


@pytest.mark.parametrize("height", [14, 24])
def test_lines_of_both_uses_fit_on_the_screen(height: int):
    nodes = [ClaimNode(node=row.name, pfs=(device("pf0"),)) for row in view(60).nodes]
    told = msgspec.structs.replace(view(60, pods=9), nodes=view(60).nodes)
    lines = drawn(page(merged(told, *nodes, rows=60), lines=height))
    assert len(lines) <= height
    assert any("claims" in line and "400/950Mb/s" in line for line in lines)


@pytest.mark.anyio
async def test_api_server_that_may_not_be_read_is_a_note_beside_the_extenders_view(tmp_path: Path):
    async with cluster("w1") as c, served(c) as s:
        await s.ready()
        refusing = {"/apis/resource.k8s.io/v1/resourceclaims": 403}
        with serving_objects(refusing, tmp_path) as kubeconfig:
            ran = await k8s_rdma("top", "--extender", s.url, "--kubeconfig", kubeconfig)
            alone = await k8s_rdma("top", "--extender", "http://127.0.0.1:1", "--kubeconfig", kubeconfig)
        without = await k8s_rdma("top", "--extender", s.url)
    [note] = [line for line in ran.out.splitlines() if line.startswith("note: ")]
    assert note.startswith(
        "note: PFs for claims show what pods have, as the extender reports it: "
        "get /apis/resource.k8s.io/v1/resourceclaims: "
    )
    assert note.endswith("(HTTP 403)")
    assert (alone.status, "(HTTP 403)" in alone.err) == (2, True)
    assert "note: " not in without.out


def test_screen_keeps_the_last_answer_while_the_extender_is_away_and_says_so():
    answers = iter([view(1), NoAnswerError("no extender answers"), view(2)])
    now = 100.0

    def look(_rows: int) -> ClusterView:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    screen = Screen(fetch=look, clock=lambda: now)
    screen.refresh(10)
    now = 107.0
    screen.refresh(10)
    lines = drawn(screen.page(24))
    assert lines[0] == "trying again; this is of 7s ago: no extender answers"
    assert lines[1].startswith("1 node, ")
    screen.refresh(10)
    assert drawn(screen.page(24))[0].startswith("2 nodes")


@pytest.mark.parametrize("status", [500, 502, 503])
def test_screen_keeps_the_last_answer_while_the_extender_starts_or_ends(status: int):
    """It answers requests that are under way when it ends with 500; a proxy before it with 502 and 503."""
    server = HTTPServer(("127.0.0.1", 0), type("Ending", (_Ending,), {"status": status}))
    with server, ThreadPoolExecutor(1) as thread:
        serving = thread.submit(server.handle_request)
        with ExtenderClient(ExtenderAddress(url=f"http://127.0.0.1:{server.server_port}")) as extender:
            screen = Screen(fetch=lambda _: decode_view(extender.get("/v1/cluster", {})), view=view(1))
            screen.refresh(10)
        serving.result()
    lines = drawn(screen.page(24))
    assert lines[0].startswith("trying again; this is of ")
    assert f"HTTP {status}" in lines[0]
    assert lines[1].startswith("1 node, ")


class _Ending(BaseHTTPRequestHandler):
    status = 0

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.anyio
async def test_pipe_gets_it_once_as_plain_lines():
    async with cluster("w1", "w2") as c, served(c) as s:
        await s.ready()
        await c.create_pod("p", 4000)
        await c.create_pod("big", 60_000)
        await bind(c, s, "p", "w2")
        await s.post(FILTER, c.args("big"))
        ran = await k8s_rdma("top", "--extender", s.url)
        document = await k8s_rdma("top", "--json", "--sort", "name", "--extender", s.url)
    assert (ran.status, ran.err) == (0, "")
    assert "\x1b" not in ran.out
    nodes = [line.split()[:6] for line in ran.out.splitlines() if re.match(r"w\d ", line)]
    assert nodes == [
        ["w2", "annotation", "1", "4000/10000Mb/s", "40%", "3/4"],
        ["w1", "annotation", "1", "0/10000Mb/s", "0%", "4/4"],
    ]
    waits = r"^default/big +1 +60000Mb/s +\d+s +\d+s ago +2 nodes: too small for the pod, even when empty *$"
    assert re.search(waits, ran.out, re.MULTILINE)
    assert [row.name for row in decode_view(document.out.encode()).nodes] == ["w1", "w2"]


@pytest.mark.anyio
async def test_unknown_order_is_refused_with_those_that_there_are():
    ran = await k8s_rdma("top", "--sort", "size")
    assert ran.status == 2
    assert "problems" in ran.err


@pytest.mark.anyio
async def test_live_table_outlives_the_extender_and_ends_with_ctrl_c():
    """On a terminal of its own: the extender is stopped and another one started at the same port."""
    async with cluster("w1") as c:
        async with served(c) as s:
            await s.ready()
            terminal, process = await _top(s.url)
            port = s.port
            shown = await _until(terminal, "extender active")
        shown += await _until(terminal, "trying again")
        async with served(c, port=port):
            shown = await _until_new(terminal, shown)
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 60, 0, 0))
            process.send_signal(signal.SIGINT)
            shown += await _until(terminal, LEAVES_SCREEN)
            assert await process.wait() == 0
    assert "Traceback" not in shown
    os.close(terminal)


async def _top(url: str) -> tuple[int, asyncio.subprocess.Process]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    process = await asyncio.create_subprocess_exec(
        *MAIN,
        "top",
        "--extender",
        url,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**ENVIRONMENT, "TERM": "xterm"},
    )
    os.close(theirs)
    return ours, process


async def _until(terminal: int, text: str) -> str:
    shown = ""
    while text not in shown:
        data = await asyncio.to_thread(os.read, terminal, 65_536)
        shown += data.decode(errors="replace")
    return shown


async def _until_new(terminal: int, shown: str) -> str:
    """Read until a page has an extender's present answer; until that comes, the old one stays on it."""
    while "extender active" not in (latest := shown.rpartition(BEGINS_PAGE)[2]) or "trying again" in latest:
        shown += await _until(terminal, "extender active")
    return shown
