"""Terminals, pipes and command lines of other people."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from cli.asking import k8s_rdma
from cli.on_terminal import runs
from cli.test_holders import node_object, stored
from k8s_rdma.cli.tables import Column, Table
from k8s_rdma.cli.usage import as_kubectl_writes
from kube.stored_objects import serving_objects

if TYPE_CHECKING:
    from pathlib import Path

LONG = "a-namespace-of-a-tenant/training-job-with-a-long-generated-name-worker-0017"


@pytest.mark.parametrize("width", [5, 40, 80])
def test_columns_that_stay_are_not_squashed_beside_a_wide_one(width: int):
    """Columns are made narrower than their least width, as those of `who` were.

    Source: https://github.com/Textualize/rich/issues/2890.
    """
    table = Table(Column("POD"), Column("NODE"), Column("MESSAGE", prose=True))
    table.add(LONG, "w1", "the link has less room than the pod reserves " * 3)
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(table, crop=False)
    assert f"{LONG}  w1" in captured.get()


@pytest.mark.anyio
async def test_long_name_can_be_grepped_in_a_pipe(tmp_path: Path):
    """Cells are cut to the width of a terminal in a pipe, too.

    Source: https://github.com/cli/cli/issues/2042, https://github.com/NodeJSmith/hassette/issues/1855.
    """
    namespace, _, pod = LONG.partition("/")
    with serving_objects(stored(node_object("w1", pod=pod, namespace=namespace)), tmp_path) as kubeconfig:
        ran = await k8s_rdma("who", "--kubeconfig", kubeconfig, COLUMNS="20")
    [line] = [line for line in ran.out.splitlines() if LONG in line]
    assert line.split()[0] == "w1"


@pytest.mark.anyio
async def test_terminal_without_a_size_is_taken_for_one_of_80_columns(tmp_path: Path):
    """`docker exec -t` begins with 0 rows and 0 columns.

    Source: https://github.com/docker/for-linux/issues/314, https://github.com/TPC-Council/HammerDB/issues/289.
    """
    with serving_objects(stored(node_object("w1")), tmp_path) as kubeconfig:
        command = ("who", "--kubeconfig", kubeconfig)
        none, usual = await runs([(0, command), (80, command)])
    assert (none.status, none.out) == (0, usual.out)


@pytest.mark.anyio
async def test_all_namespaces_goes_before_a_namespace(tmp_path: Path):
    """`Namespace in current context is ignored even if specified with --namespace`, kubectl says of `-A`.

    Source: https://github.com/keisku/kubectl-secretdata/pull/2. Ours refused the two together at first.
    """
    nodes = [node_object("w1"), node_object("w2", namespace="team")]
    with serving_objects(stored(*nodes), tmp_path) as kubeconfig:
        ran = await k8s_rdma("who", "p", "-A", "-n", "none", "-o", "json", "--kubeconfig", kubeconfig)
    assert [row["namespace"] for row in json.loads(ran.out)["holders"]] == ["default", "team"]


@pytest.mark.parametrize(
    ("words", "understood"),
    [
        (("-n", "team", "who"), ["who", "-n", "team"]),
        (
            ("-n=team", "--context=prod", "explain", "pod", "x"),
            ["explain", "pod", "x", "-n", "team", "--context=prod"],
        ),
        (("-A", "who", "--sort", "pod"), ["who", "--sort", "pod", "-A"]),
        (("--version",), ["--version"]),
        (("-n", "team"), ["-n", "team"]),
    ],
    ids=["namespace", "assigned", "all", "version", "alone"],
)
def test_options_before_the_command_are_understood(words: tuple[str, ...], understood: list[str]):
    """Users write `kubectl PLUGIN -n TEAM COMMAND`.

    Source: https://github.com/ssup2/kpexec/issues/8, https://github.com/rabbitmq/cluster-operator/issues/579.
    """
    assert as_kubectl_writes(words) == understood
