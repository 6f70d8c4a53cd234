"""Forms of output: JSON, YAML, and tables with all columns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from cli.asking import k8s_rdma
from cli.on_terminal import on_terminals
from cli.test_holders import node_object, stored
from k8s_rdma.planning.snapshot import VERSION
from kube.stored_objects import serving_objects

RECORDED = str(Path(__file__).parents[1] / "recordings" / "snapshots" / f"{VERSION}.json")


@pytest.mark.anyio
@pytest.mark.parametrize(
    "command", [("who",), ("whatif", "headroom", "--from", RECORDED)], ids=["who", "whatif"]
)
async def test_yaml_and_json_are_the_same_document(command: tuple[str, ...], tmp_path: Path):
    with serving_objects(stored(node_object("w1")), tmp_path) as kubeconfig:
        every = ("--kubeconfig", kubeconfig)
        as_json = await k8s_rdma(*command, "-o", "json", *every)
        as_yaml = await k8s_rdma(*command, "-oyaml", *every)
        plain = await k8s_rdma(*command, "--json", *every)
    assert json.loads(as_json.out) == yaml.safe_load(as_yaml.out)
    assert as_json.out == plain.out


@pytest.mark.anyio
async def test_wide_has_every_column_on_any_terminal(tmp_path: Path):
    with serving_objects(stored(node_object("w1")), tmp_path) as kubeconfig:
        shown = await on_terminals([60], "who", "-o", "wide", "--kubeconfig", kubeconfig)
        piped = await k8s_rdma("who", "--kubeconfig", kubeconfig)
    assert shown[60].out == piped.out
