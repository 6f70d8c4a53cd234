"""`k8s-rdma recommend` of a real interface, by the agent and the node's server."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import httpx2

from cli.asking import k8s_rdma
from e2e.node import Node, pod
from e2e.test_holders import IN_NAMESPACE, TOKEN, URL, items, serve, stored
from kube.stored_objects import serving_objects

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST_MBPS = 96
SEND = f"""
import signal, socket, sys, time
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
out.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
data, frame, sent, due = bytes(1400), 1442, 0, 0.0
began = now = time.monotonic()

def end(*_):
    print(sent / (time.monotonic() - began) / 125_000, flush=True)
    sys.exit()

signal.signal(signal.SIGTERM, end)
while True:
    former, now = now, time.monotonic()
    due = min(due + (now - former) * {MOST_MBPS} * 125_000, {MOST_MBPS} * 125_000 / 4)
    while due > 0:
        out.sendto(data, ("10.56.0.255", 9))
        sent, due = sent + frame, due - frame
    time.sleep(0.005)
"""
"""Datagrams at a rate that a busy machine makes less and never more; it prints the mean in the end."""


@contextmanager
def sending(netns: str, means: list[float]) -> Iterator[None]:
    """Have a pod send; add the mean in Mb/s."""
    command = ["nsenter", f"--net={netns}", sys.executable, "-c", SEND]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sender:
        try:
            yield
        finally:
            sender.terminate()
            means.append(float(sender.communicate()[0]))


def test_recommendation_for_a_pod_that_reserves_300_and_sends_100_comes_within_a_minute(
    node: Node, tmp_path: Path
) -> None:
    async def scenario() -> None:
        runtime = node.runtime(chained=False)
        sandbox = await runtime.add(pod("a", {"min_tx_rate": 300}))
        fields = {"authorization": f"Bearer {TOKEN}"}
        with httpx2.Client(base_url=URL, trust_env=False, headers=fields) as http:
            serve(node, http)
            node.wait("the pod", lambda: http.get("/v1/node").json()["allocations"])
            report = http.get("/v1/node").content
        found = json.loads(report)
        holder = {
            "metadata": {
                "name": "a",
                "namespace": "default",
                "uid": found["allocations"][0]["pod"]["uid"],
                "annotations": {"k8s-rdma.io/interfaces": '[{"min_tx_rate": 300}]'},
            },
            "spec": {"nodeName": found["node"]},
        }
        answers = {
            **stored(report, TOKEN, "u"),
            "/api/v1/namespaces/default/pods": items(holder),
        }
        proxied = {f"{IN_NAMESPACE}/pods/node-x:54005/proxy": URL}
        means: list[float] = []
        with (
            sending(sandbox.netns, means),
            serving_objects(answers, tmp_path, proxied) as kubeconfig,
        ):
            options = ("--kubeconfig", kubeconfig, "--for", "45s", "-o", "json")
            ran = await k8s_rdma("recommend", "a", *options)
        assert ran.status == 0, ran.err
        [row] = json.loads(ran.out)["workloads"]
        assert (row["kind"], row["name"], row["reserved_mbps"]) == ("Pod", "a", 300)
        assert 1.25 * means[0] < row["min_tx_rate"] <= 140
        assert (row["verdict"], row["freed_mbps"]) == ("lower", 300 - row["min_tx_rate"])
        assert (row["confidence"], row["pods"][0]["min_by"]) == ("low", "software")
        await runtime.delete(sandbox)

    asyncio.run(scenario())
