"""`k8s-rdma snapshot` and `whatif`: tables, documents and exit statuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.asking import k8s_rdma
from kube.stored_objects import serving_objects
from planning.test_snapshot import lists, node, pod, published

pytestmark = pytest.mark.anyio

RECORDED = str(Path(__file__).parents[1] / "recordings" / "snapshots" / "1.json")
ONE = '[{"min_tx_rate": 1000}]'


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def manifest(tmp_path: Path, text: str = ONE) -> str:
    path = tmp_path / "pod.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(("count", "status"), [(2, 0), (64, 1)])
async def test_exit_status_says_whether_pods_fit(count: int, status: int, tmp_path: Path):
    ran = await k8s_rdma(
        *("whatif", "fit", manifest(tmp_path), "--count", str(count), "--from", RECORDED, "--json")
    )
    assert ran.status == status
    answer = json.loads(ran.out)
    assert answer["fits"] == (status == 0)
    assert answer["workloads"][0]["count"] == count


async def test_pods_that_wait_are_asked_about_without_a_file():
    ran = await k8s_rdma("whatif", "fit", "--from", RECORDED)
    assert ran.status == 1
    assert "default/waits" in ran.out
    assert "not modelled: CPU" in ran.out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("headroom",), "Stranded: 34000 Mb/s without VFs"),
        (("without", "--node", "w1"), "6 pods lose their place; 1 of them fit nowhere else."),
        (("with", "--vfs", "32", "--headroom", "5%"), "difference"),
    ],
)
async def test_answers_are_tables(arguments: tuple[str, ...], text: str):
    ran = await k8s_rdma("whatif", *arguments, "--from", RECORDED)
    assert text in ran.out
    assert not ran.err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("without", "--node", "w9", "--from", RECORDED), "node w9: there is none"),
        (("headroom", "--from", "/absent.json"), "--from /absent.json: No such file"),
        (("headroom", "--from", __file__), "no snapshot: line 1"),
        (("with", "--headroom", "200", "--from", RECORDED), "0 to 100"),
        (("with", "--nodes", "2", "--from", RECORDED), "--nodes needs --like"),
        (("headroom",), "kubeconfig"),
    ],
)
async def test_what_cannot_be_answered_has_status_2(arguments: tuple[str, ...], text: str):
    ran = await k8s_rdma("whatif", *arguments)
    assert ran.status == 2
    assert text in ran.err


async def test_malformed_manifest_has_status_2_and_names_the_field(tmp_path: Path):
    path = manifest(tmp_path, '[{"min_tx_rate": -5}]')
    ran = await k8s_rdma("whatif", "fit", path, "--from", RECORDED)
    assert ran.status == 2
    assert "rdma_interfaces_required[0].min_tx_rate" in ran.err


async def test_snapshot_of_a_cluster_answers_as_the_cluster_does(tmp_path: Path):
    answers = lists(rdma_nodes=[published("w1")], nodes=[node("w1")], pods=[pod("a")])
    with serving_objects(answers, tmp_path) as config:
        written = await k8s_rdma("snapshot", "--kubeconfig", config)
        asked = await k8s_rdma("whatif", "headroom", "--kubeconfig", config, "--json")
        anonymous = await k8s_rdma("snapshot", "--anonymous", "--kubeconfig", config)
    assert "configmap k8s-rdma/k8s-rdma-extender: there is none" in written.err
    path = tmp_path / "cluster.json"
    path.write_text(written.out)
    again = await k8s_rdma("whatif", "headroom", "--from", str(path), "--json")
    assert again.out == asked.out
    assert '"w1"' in written.out
    assert '"w1"' not in anonymous.out
