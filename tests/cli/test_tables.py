"""Tables of all commands at the widths of terminals: no word is folded, and columns that matter are whole."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.console import Console
from rich.text import Text

from cli.asking import bind, k8s_rdma
from cli.on_terminal import on_terminals
from cli.test_holders import node_object, stored
from cli.test_holders import row as holder_row
from extender.serving import FILTER, served
from extender.world import cluster
from k8s_rdma.cli.holders import holders_table
from k8s_rdma.cli.tables import WHOLE, Column, Table, wrapped
from k8s_rdma.planning.snapshot import VERSION
from kube.stored_objects import serving_objects

if TYPE_CHECKING:
    from collections.abc import Collection

    from k8s_rdma.wire.views import HolderRow

WIDTHS = (60, 80, 120, 200)
RECORDED = str(Path(__file__).parents[1] / "recordings" / "snapshots" / f"{VERSION}.json")
LONG_NODE = "ip-10-0-1-23.eu-central-1.compute.internal"
LONG_POD = "llama-70b-pretraining-launcher-worker-0017-9kq2x"

COLUMNS = (
    Column("POD"),
    Column("RATE", right=True),
    Column("NODE", rank=1),
    Column("AGE", right=True, rank=2),
    Column("MESSAGE", prose=True),
)
ROW = ("default/a-pod-of-some-length", "600Mb/s", "w1", "3s", "the link has less room than it asks for")


def drawn(*rows: tuple[str, ...], width: int, cut: bool = False) -> list[str]:
    table = Table(*COLUMNS, cut=cut)
    for row in rows:
        table.add(*row)
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(table, crop=False)
    return captured.get().splitlines()


def assert_unfolded(narrow: str, whole: str, columns: Collection[str] = ()) -> None:
    """Assert that each word of a narrow terminal is one of the whole output, or the label of a column."""
    words = set(whole.split()) | {f"{word}:" for name in columns for word in name.lower().split()}
    words |= {word for name in columns for word in name.lower().split()}
    assert set(narrow.split()) - words == set()


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (
            200,
            [
                "POD                              RATE  NODE  AGE  MESSAGE",
                "default/a-pod-of-some-length  600Mb/s  w1     3s  the link has less room than it asks for",
            ],
        ),
        (
            80,
            [
                "POD                              RATE  NODE  AGE  MESSAGE",
                "default/a-pod-of-some-length  600Mb/s  w1     3s  the link has less room than it",
                "                                                  asks for",
            ],
        ),
        (
            72,
            [
                "POD                              RATE  NODE  MESSAGE",
                "default/a-pod-of-some-length  600Mb/s  w1    the link has less room than",
                "                                             it asks for",
            ],
        ),
        (
            40,
            [
                "POD                              RATE",
                "default/a-pod-of-some-length  600Mb/s",
                "    message: the link has less room than",
                "    it asks for",
            ],
        ),
        (
            10,
            [
                "POD                              RATE",
                "default/a-pod-of-some-length  600Mb/s",
                "    message: the link has",
                "    less room than it asks",
                "    for",
            ],
        ),
    ],
)
def test_least_important_columns_go_first_and_sentences_last(width: int, lines: list[str]):
    assert drawn(ROW, width=width) == lines


def test_column_without_values_is_not_shown_on_a_terminal_and_is_on_a_pipe():
    row = ("a", "<unknown>", "<unknown>", "<none>", "")
    assert drawn(row, width=200) == ["POD       RATE", "a    <unknown>"]
    assert drawn(row, width=WHOLE)[0].split() == ["POD", "RATE", "NODE", "AGE", "MESSAGE"]


def test_headings_of_an_empty_table_are_all_shown():
    assert drawn(width=80)[0].split() == ["POD", "RATE", "NODE", "AGE", "MESSAGE"]


def test_row_of_a_screen_is_one_line():
    lines = drawn(ROW, ROW, width=60, cut=True)
    assert len(lines) == 3
    assert lines[1].endswith("…")
    assert max(map(len, lines)) <= 60


cells = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=40)
sentences = st.lists(cells, max_size=12).map(" ".join)
rows = st.lists(st.tuples(cells, cells, cells, cells, sentences), min_size=1, max_size=4)


@given(rows, st.integers(20, 200))
def test_no_word_is_folded_and_cells_that_stay_are_whole(rows: list[tuple[str, ...]], width: int):
    lines = drawn(*rows, width=width)
    known = {word for row in rows for cell in row for word in cell.split()} | {"message:"}
    known |= {column.heading for column in COLUMNS}
    assert {word for line in lines for word in line.split()} <= known
    for row in rows:
        assert any(line.startswith(row[0]) and row[1] in line for line in lines)
    for word in (word for row in rows for word in row[4].split()):
        assert any(word in line for line in lines)


@given(sentences, st.integers(1, 100))
def test_wrapped_lines_are_no_longer_than_a_line_or_a_word(text: str, width: int):
    lines = [line.plain for line in wrapped(Text(text), width)]
    assert " ".join(lines).split() == text.split()
    assert all(Text(line).cell_len <= width or " " not in line for line in lines)


def keys_of(out: str, *keys: str) -> bool:
    return any(all(key in line.split() for key in keys) for line in out.splitlines())


@pytest.mark.anyio
async def test_who_names_pod_and_pf_at_any_width(tmp_path: Path):
    nodes = [node_object(LONG_NODE, pod=LONG_POD), node_object("w2")]
    with serving_objects(stored(*nodes), tmp_path) as kubeconfig:
        piped = await k8s_rdma("who", "--kubeconfig", kubeconfig)
        terminals = await on_terminals(WIDTHS, "who", "--kubeconfig", kubeconfig)
        for shown in terminals.values():
            assert_unfolded(shown.out, piped.out)
            assert keys_of(shown.out, LONG_NODE, "enp3s0f0", f"default/{LONG_POD}")
            assert keys_of(shown.out, "w2", "enp3s0f0", "default/p")
    assert keys_of(piped.out, LONG_NODE, "enp3s0f0", f"default/{LONG_POD}", "300Mb/s", "<unknown>")


def headings_of(holder: HolderRow, width: int) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(holders_table([holder]), crop=False)
    return captured.get().splitlines()[0].split()


def test_traffic_stays_longer_than_other_columns_if_it_was_measured():
    holder = holder_row("a-pod-of-some-length", vf=3, interface="rdma0", min_by="software", max_by="software")
    measured = replace(holder, sent_mbps=1.0, received_mbps=0.0)
    assert headings_of(holder, 60) == ["NODE", "PF", "POD", "RESERVED"]
    assert headings_of(measured, 70) == ["NODE", "PF", "POD", "SENT", "RECEIVED"]
    assert "INTERFACE" in headings_of(measured, 200)


@pytest.mark.anyio
async def test_top_and_explain_name_node_pod_and_reason_at_any_width():
    async with cluster("w1", LONG_NODE) as c, served(c) as s:
        await s.ready()
        await c.create_pod("p", 4000)
        await c.create_pod(LONG_POD, 60_000)
        await bind(c, s, "p", "w1")
        await s.post(FILTER, c.args(LONG_POD))
        options = ("--extender", s.url)
        piped = await k8s_rdma("top", *options)
        explained = await k8s_rdma("explain", "pod", f"default/{LONG_POD}", *options)
        for shown in (await on_terminals(WIDTHS, "top", "--once", *options)).values():
            assert_unfolded(ages_apart(shown.out), ages_apart(piped.out), ["MESSAGE"])
            assert keys_of(shown.out, "w1", "4000/10000Mb/s", "3/4")
            assert keys_of(shown.out, LONG_NODE, "0/10000Mb/s", "4/4")
            assert keys_of(shown.out, f"default/{LONG_POD}")
        asked = ("explain", "pod", f"default/{LONG_POD}", *options)
        for shown in (await on_terminals(WIDTHS, *asked)).values():
            assert_unfolded(ages_apart(shown.out), ages_apart(explained.out), ["AGAINST IT"])
            assert keys_of(shown.out, "w1", "enp3s0f0", "3/4", "6000/10000Mb/s")
            assert keys_of(shown.out, LONG_NODE, "enp3s0f0", "4/4", "10000/10000Mb/s")


def ages_apart(out: str) -> str:
    return re.sub(r"\b\d+s\b", "AGE", out)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        (("fit",), ("default/waits",)),
        (("headroom",), ("w1", "enp3s0f1")),
        (("without", "--node", "w1"), ("foreign-0",)),
        (("with", "--vfs", "32"), ()),
    ],
    ids=["fit", "headroom", "without", "with"],
)
async def test_answers_of_whatif_are_whole_at_any_width(arguments: tuple[str, ...], keys: tuple[str, ...]):
    command = ("whatif", *arguments, "--from", RECORDED)
    piped = await k8s_rdma(*command)
    for shown in (await on_terminals(WIDTHS, *command)).values():
        assert_unfolded(shown.out, piped.out, ["MESSAGE", "NODES"])
        for key in keys:
            assert key in shown.out.split()


@pytest.mark.anyio
async def test_findings_of_doctor_are_whole_at_any_width(tmp_path: Path):
    (tmp_path / "proc" / "1").mkdir(parents=True)
    command = ("doctor", "node", "--host-root", str(tmp_path), "--server", "", "--device-plugin", "")
    piped = await k8s_rdma(*command)
    identifiers = re.findall(r"\[[a-z-]+\]", piped.out)
    assert identifiers
    for shown in (await on_terminals(WIDTHS, *command)).values():
        assert_unfolded(shown.out, piped.out)
        assert re.findall(r"\[[a-z-]+\]", shown.out) == identifiers
