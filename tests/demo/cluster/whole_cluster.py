"""A pod's life among the stand-ins as processes: run as root of a user, mount and network namespace.

    unshare -Urmn python whole_cluster.py <directory> <CNI_PATH>

Prints its observations, as one JSON object.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import httpx2

TIMEOUT_S = 60


class Cluster:
    def __init__(self, stack: ExitStack, directory: Path) -> None:
        self.stack = stack
        self.directory = directory
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, part: str, *arguments: str) -> str:
        """Start a stand-in. Return its address, which it prints once it is ready."""
        ready = self.directory / f"{part}.ready"
        process = self.stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "k8s_rdma_demo.cluster", part, "--ready-file", str(ready), *arguments],
                stdout=subprocess.PIPE,
                text=True,
                cwd=self.directory,
            )
        )
        self.stack.callback(process.kill)
        self.processes.append(process)
        word, where = process.stdout.readline().split()
        assert word == "ready"
        assert ready.read_text() == f"ready {where}\n"
        return where

    def stop(self) -> list[int]:
        for process in reversed(self.processes):
            process.terminate()
        return [process.wait(TIMEOUT_S) for process in self.processes]


def conflist(directory: Path) -> Path:
    ipam = {
        "type": "host-local",
        "ranges": [[{"subnet": "10.244.1.0/24"}]],
        "dataDir": str(directory / "ipam"),
    }
    bridge = {"type": "bridge", "bridge": "cni0", "ipam": ipam}
    path = directory / "net.conflist"
    path.write_text(json.dumps({"cniVersion": "1.0.0", "name": "net", "plugins": [bridge]}))
    return path


def pod_when(http: httpx2.Client, holds) -> dict:
    with http.stream("GET", "/api/v1/pods", params={"watch": "1"}) as answer:
        for line in answer.iter_lines():
            event = json.loads(line)
            pod = {} if event["type"] == "DELETED" else event["object"]
            if holds(pod):
                return pod
    raise AssertionError


def main(directory: Path, cni_path: str) -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with ExitStack() as stack:
        cluster = Cluster(stack, directory)
        server = cluster.start("api", "--kubeconfig", str(directory / "kubeconfig"))
        plugins = [part for place in cni_path.split(":") for part in ("--cni-path", place)]
        network = ["--conflist", conflist(directory).name, *plugins, "--netns-dir", "netns"]
        cluster.start("kubelet", "--server", server, "--node", "w1", *network, "--late-delete-s", "0")
        cluster.start("scheduler", "--server", server)
        http = stack.enter_context(httpx2.Client(base_url=server, timeout=TIMEOUT_S, trust_env=False))
        url = "/api/v1/namespaces/default/pods"
        spec = {"containers": [{"name": "c", "image": "x"}]}
        assert http.post(url, json={"metadata": {"name": "p1"}, "spec": spec}).is_success
        pod = pod_when(http, lambda pod: pod["status"]["phase"] == "Running")
        record = json.loads(next((directory / "sandboxes").glob("*.json")).read_text())
        shown = subprocess.run(
            ["nsenter", f"--net={record['netns']}", "ip", "-j", "-4", "address", "show", "dev", "eth0"],
            capture_output=True,
            check=True,
        ).stdout
        assert http.delete(f"{url}/p1").is_success
        pod_when(http, lambda pod: not pod)
        seen = {
            "node": pod["spec"]["nodeName"],
            "told": pod["status"]["podIP"],
            "found": json.loads(shown)[0]["addr_info"][0]["local"],
            "left": [path.name for path in (directory / "netns").iterdir()],
            "exits": cluster.stop(),
        }
    sys.stdout.write(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
