"""`k8s-rdma who` of real interfaces: by the agent's object, and the node's server behind a proxy."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import TYPE_CHECKING, Any

import httpx2
import msgspec

from cli.asking import k8s_rdma
from e2e.node import Node, pod
from e2e.test_counters_and_adoption import broadcast
from k8s_rdma.wire.rdma_node import encode_status, status_of
from k8s_rdma.wire.report import decode_report
from k8s_rdma.wire.views import HoldersView
from kube.stored_objects import serving_objects

if TYPE_CHECKING:
    from pathlib import Path

URL = "http://127.0.0.1:54005"
TOKEN = "viewers-token"  # noqa: S105 - of this test
IN_NAMESPACE = "/api/v1/namespaces/k8s-rdma"
SERVER = {
    "name": "server",
    "ports": [{"containerPort": 54005}],
    "livenessProbe": {"httpGet": {"scheme": "HTTP"}},
}


def serve(node: Node, http: httpx2.Client) -> None:
    """Start the server, which takes a token; it has the agent's report when this returns."""
    tokens, config = node.directory / "tokens", node.directory / "server.yaml"
    tokens.write_text(TOKEN)
    config.write_text(json.dumps({"runDir": str(node.run_dir), "tokenFile": str(tokens)}))
    node.start("server", config)

    def answers() -> bool:
        try:
            return http.get("/v1/node").is_success
        except httpx2.TransportError:
            return False

    node.wait("the server", answers)


def items(*documents: object) -> bytes:
    return json.dumps({"items": documents}).encode()


def stored(report: bytes, token: str, uid: str) -> dict[str, bytes | int]:
    """Return the API server's data of the node: its object, its pods, the Secret."""
    status = json.loads(encode_status(status_of(decode_report(report))))
    placement = f'{{"version":1,"node":"w1","uid":"{uid}","generation":2,'
    holder = {"metadata": {"name": "a", "uid": uid, "annotations": {"k8s-rdma.io/placement": placement}}}
    secret = {"data": {"tokens": base64.b64encode(f"# of viewers\n{token}\n".encode()).decode()}}
    return {
        "/apis/k8s-rdma.io/v1alpha1/rdmanodes": items({"metadata": {"name": "w1"}, "status": status}),
        f"{IN_NAMESPACE}/pods": items({"metadata": {"name": "node-x"}, "spec": {"containers": [SERVER]}}),
        "/api/v1/pods": items(holder),
        f"{IN_NAMESPACE}/secrets/k8s-rdma-tokens": json.dumps(secret).encode(),
    }


def test_holders_are_shown_with_reservations_and_usage(node: Node, tmp_path: Path) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        sandbox = await runtime.add(pod("a", {"min_tx_rate": 600, "max_tx_rate": 700}))
        other = await runtime.add(pod("b", {"max_tx_rate": 50}))
        fields = {"authorization": f"Bearer {TOKEN}"}
        with httpx2.Client(base_url=URL, trust_env=False, headers=fields) as http:
            serve(node, http)
            node.wait("both pods", lambda: len(http.get("/v1/node").json()["allocations"]) == 2)
            report = http.get("/v1/node").content
        [uid] = [
            each["pod"]["uid"] for each in json.loads(report)["allocations"] if each["pod"]["name"] == "a"
        ]
        proxied = {f"{IN_NAMESPACE}/pods/node-x:54005/proxy": URL}
        with serving_objects(stored(report, TOKEN, uid), tmp_path, proxied) as kubeconfig:
            ask = ("who", "--kubeconfig", kubeconfig)
            measuring = asyncio.create_task(k8s_rdma(*ask, "a", "--json", "--measure"))
            while not measuring.done():
                await asyncio.to_thread(broadcast, sandbox.netns)
            measured = rows((await measuring).out)
            shown = await k8s_rdma(*ask, "--sort", "cap")
            absent = await k8s_rdma(*ask, "c")
        with serving_objects(stored(report, "stale", uid), tmp_path, proxied) as kubeconfig:
            refused = await k8s_rdma("who", "w1", "--json", "--kubeconfig", kubeconfig)
        check_measured(measured, sandbox.result["interfaces"][0]["name"])
        check_shown(shown.out)
        assert (absent.status, "c: no node, PF or pod" in absent.err) == (2, True)
        check_without_server(msgspec.json.decode(refused.out, type=HoldersView))
        for each in (sandbox, other):
            await runtime.delete(each)

    asyncio.run(scenario())


def rows(text: str) -> list[dict[str, Any]]:
    return list(json.loads(text)["holders"])


def check_measured(found: list[dict[str, Any]], ifname: str) -> None:
    [row] = found
    assert (row["node"], row["namespace"], row["pod"], row["interface"]) == ("w1", "default", "a", ifname)
    assert (row["reserved_mbps"], row["cap_mbps"]) == (600, 700)
    assert (row["min_by"], row["max_by"]) == ("software", "software")
    assert (row["generation"], row["admitted"]) == (0, 2)
    assert 0.01 < row["sent_mbps"] < 700
    assert 0 <= row["received_mbps"] < row["sent_mbps"]


def check_shown(text: str) -> None:
    first, _, headings, *lines = text.splitlines()
    assert first.startswith("2 interfaces of 2 pods on ")
    assert first.endswith("; 600 Mb/s reserved")
    assert headings.split()[:4] == ["NODE", "PF", "VF", "POD"]
    assert ["default/a" in line for line in lines] == [True, False]
    assert "2 admitted" in lines[0]
    assert "software" in lines[1]


def check_without_server(view: HoldersView) -> None:
    """Values that the server does not give are unknown; the rest is from the node's object."""
    found = {row.pod: row for row in view.holders}
    assert (found["a"].reserved_mbps, found["b"].cap_mbps) == (600, 50)
    assert {row.interface for row in view.holders} | {row.sent_mbps for row in view.holders} == {None}
    [note] = view.notes
    assert "this path requires" in note
    assert "viewers.enabled" in note
