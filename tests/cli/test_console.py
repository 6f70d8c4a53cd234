"""Text of nodes and pods' owners reaches the operator's terminal as text, and never as orders to it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from cli.asking import Ran, k8s_rdma
from extender.node_server import pf, report
from extender.serving import FILTER, served
from extender.world import cluster
from k8s_rdma.cli.console import for_terminal
from k8s_rdma.cli.doctor import page
from k8s_rdma.cli.tables import WHOLE
from k8s_rdma.doctor.finding import Kind, Severity
from k8s_rdma.errors import visible
from k8s_rdma.planning.snapshot import VERSION
from k8s_rdma.wire.views import CLUSTER_PATH, Totals

ORDERS = "\x1b[2J\x1b]0;x\x07\r\nforged \u202egnp\u2066\x9b31m\x7f\u2028 [/tmp/x]"
"""Clear the screen, set the title, forge a line, write from right to left, the 8-bit CSI; end a style."""

SNAPSHOT = Path(__file__).parents[1] / "recordings" / "snapshots" / f"{VERSION}.json"


def test_visible_escapes_only_characters_that_are_no_text() -> None:
    assert visible(ORDERS) == (r"\x1b[2J\x1b]0;x\x07\r\nforged \u202egnp\u2066\x9b31m\x7f\u2028 [/tmp/x]")
    assert visible("PF größer als ½ — 光") == "PF größer als ½ — 光"


def test_document_for_a_terminal_is_the_same_but_for_its_texts() -> None:
    totals = Totals(**dict.fromkeys(Totals.__struct_fields__, 3))
    assert for_terminal(totals) == totals


@pytest.mark.anyio
@pytest.mark.parametrize(
    "arguments",
    [
        ("top", "--once"),
        ("top", "--json"),
        ("explain", "pod", "default/p"),
        ("explain", "pod", "default/p", "--all"),
        ("explain", "pod", "default/p", "--json"),
    ],
)
async def test_node_sends_no_orders_to_the_terminal(arguments: tuple[str, ...]) -> None:
    ran = await asked(*arguments)
    assert (ran.status, ran.err) == (0, "")
    assert "forged" in ran.out
    assert ran.out.replace("\n", "").isprintable()
    assert not any(line.startswith("forged") for line in ran.out.splitlines())
    if "--json" in arguments:
        assert json.loads(ran.out)


@pytest.mark.anyio
async def test_name_of_a_pf_is_no_style_of_an_answer(tmp_path: Path) -> None:
    taken = tmp_path / "snapshot.json"
    taken.write_text(SNAPSHOT.read_text().replace('"enp3s0f1"', '"[/tmp/x]"'))
    ran = await k8s_rdma("whatif", "headroom", "--from", str(taken))
    assert (ran.status, ran.err) == (0, "")
    assert "[/tmp/x]" in ran.out


async def asked(*arguments: str) -> Ran:
    """Of a node that cannot be read, and one with a problem, each in the words of the node."""
    async with cluster("w1", "w2") as c, served(c) as s:
        await s.ready()
        c.nodes["w1"].report = replace(report("w1", pf(problems=(ORDERS,)), generation=2), problems=(ORDERS,))
        c.nodes["w2"].report = replace(report("w2", pf(), generation=2), unreadable=(ORDERS,))
        await c.create_pod("p", 1)
        refused = (await s.post(FILTER, c.args("p"))).json()["FailedNodes"]["w2"]
        assert refused.isprintable()
        assert (await s.http.get(CLUSTER_PATH)).status_code == 200
        return await k8s_rdma(*arguments, "--extender", s.url)


@pytest.mark.anyio
async def test_error_is_printed_in_one_line_whatever_it_holds() -> None:
    ran = await k8s_rdma("explain", "pod", ORDERS)
    assert ran.status == 2
    assert ran.err.replace("\n", "").isprintable()
    assert ran.err.count("\n") == 1


def test_doctor_prints_its_findings_as_text() -> None:
    kind = Kind("a-b", Severity.WARNING, "a")
    found = kind(ORDERS, source=ORDERS, about=ORDERS, expected=ORDERS, fix=ORDERS)
    console = Console(width=WHOLE, color_system=None)
    with console.capture() as captured:
        console.print(*page([found]), crop=False)
    assert captured.get().replace("\n", "").isprintable()
    assert len(captured.get().splitlines()) == len(("", "a", "found", "seen in", "wanted", "fix", "sum"))
