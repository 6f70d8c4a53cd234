"""`k8s-rdma verify cluster` on the demo's two nodes: scheduler, extender, agents and traffic are real.

The kubelets there make networks and no containers, so that the test runs the pods' programs in them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from e2e.conftest import PLUGINS, require_plugins
from e2e.processes import DEADLINE_S
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.linux.netns import entered
from k8s_rdma.verify.traffic import RESULT_FILE
from k8s_rdma_demo.cluster.cni_runtime import remove_namespace_at
from k8s_rdma_demo.kubectl import Kubectl
from k8s_rdma_demo.world import API_URL, Paths, World
from network_namespaces import create_namespace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cni.call import Program

SENDER, RECEIVER, PF = "w1", "w2", "enp1s0f0"
LABEL = "app.kubernetes.io/name"
READY_S = 60
_MERGE = {"Content-Type": "application/merge-patch+json"}


class Containers(threading.Thread):
    """Runs the pods' programs in their networks, and reports how they end, as kubelet does."""

    def __init__(self, world: World, directory: Path) -> None:
        super().__init__(name="containers", daemon=True)
        self.world, self._directory = world, directory
        self.kubectl = Kubectl.for_server(API_URL)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._closed = threading.Event()
        self.manifests: list[dict[str, Any]] = []

    def run(self) -> None:
        while not self._closed.wait(0.05):
            pods = {pod["metadata"]["name"]: pod for pod in self.kubectl.pods()}
            for name, pod in pods.items():
                if pod["status"].get("phase") == "Running" and name not in self._running:
                    with suppress(K8sRdmaError):  # its network is there a moment later
                        self._start(name, pod)
            for name in list(self._running):
                self._follow(name, name in pods)

    def close(self) -> None:
        self._closed.set()
        self.join()
        for process in self._running.values():
            process.kill()
            process.wait()
        self.kubectl.client.close()

    def _start(self, name: str, pod: dict[str, Any]) -> None:
        [container] = pod["spec"]["containers"]
        result = str(self._directory / name)
        arguments = [result if word == RESULT_FILE else word for word in container["args"]]
        netns = self.world.sandbox(name).netns
        self.manifests.append(pod)
        self._running[name] = subprocess.Popen(
            ["nsenter", f"--net={netns}", sys.executable, "-m", "k8s_rdma", *arguments]
        )

    def _follow(self, name: str, is_there: bool) -> None:
        process = self._running[name]
        if not is_there:
            process.kill()
            process.wait()
            del self._running[name]
        elif process.poll() is not None:
            result = self._directory / name
            message = result.read_text() if result.exists() else ""
            terminated = {"exitCode": process.returncode, "message": message}
            status = {
                "phase": "Failed" if process.returncode else "Succeeded",
                "containerStatuses": [{"name": "verify", "state": {"terminated": terminated}}],
            }
            path = f"/api/v1/namespaces/default/pods/{name}/status"
            self.kubectl.client.patch(path, json={"status": status}, headers=_MERGE)


@pytest.fixture(scope="module")
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def containers(program: Program, stack: ExitStack) -> Containers:
    """Of a world whose namespaces go when the module's tests are over."""
    require_plugins()
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="k8srdma-")))
    namespace = create_namespace()
    stack.callback(os.close, namespace)
    stack.enter_context(entered(namespace))
    plugins = next(path for path in map(Path, PLUGINS.split(":")) if (path / "host-local").exists())
    world = World(Paths(directory=directory, plugins=plugins, shim=program.path))
    for node in world.nodes:
        stack.callback(remove_namespace_at, node.netns)
    world.build()
    stack.callback(world.stop)
    stack.callback(until_no_sandbox, world)
    world.start()
    (directory / "results").mkdir()
    made = Containers(world, directory / "results")
    made.start()
    stack.callback(made.close)
    return made


def until_no_sandbox(world: World) -> None:
    """Wait for what kubelets do after the pods that were deleted without a grace period are gone."""
    end = time.monotonic() + DEADLINE_S
    while left := [name for node in world.nodes for name in world.leftover_sandboxes(node)]:
        assert time.monotonic() < end, left
        time.sleep(0.05)


def command(containers: Containers, *options: str) -> list[str]:
    kubeconfig = containers.world.paths.directory / "kubeconfig"
    return [
        *(sys.executable, "-m", "k8s_rdma", "verify", "cluster", SENDER, RECEIVER, "--seconds", "1"),
        *("--image", "k8s-rdma:test", "--kubeconfig", str(kubeconfig), "--pf", PF, *options),
    ]


def verify(containers: Containers, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(containers, *options), capture_output=True, text=True, check=False, timeout=200
    )


def leftovers(containers: Containers) -> list[str]:
    return [pod["metadata"]["name"] for pod in containers.kubectl.pods()]


def test_verify_measures_between_two_nodes(containers: Containers, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    ended = verify(containers, "--report", str(report))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    [card] = json.loads(report.read_text())["cards"]
    assert card["receiver"] == "another node"
    assert [(check["check"], check["result"]) for check in card["checks"]] == [
        *[("reservation", "pass")] * 3,
        ("cap", "pass"),
        ("received under a cap", "unclaimed"),
    ]
    assert leftovers(containers) == []
    spec = containers.manifests[0]["spec"]
    assert spec["containers"][0]["securityContext"]["runAsNonRoot"]
    assert spec["activeDeadlineSeconds"] > 0


def test_verify_deletes_its_pods_when_it_is_interrupted(containers: Containers) -> None:
    running = subprocess.Popen(command(containers), stderr=subprocess.PIPE, text=True)
    while not leftovers(containers):
        assert running.poll() is None
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert (running.returncode, "interrupted" in said) == (2, True), said
    assert leftovers(containers) == []


def test_verify_says_that_a_node_does_not_exist(containers: Containers) -> None:
    words = [word if word != RECEIVER else "w9" for word in command(containers)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 2
    assert "node w9: there is no RdmaNode" in ended.stderr


def test_verify_refuses_one_node_as_both(containers: Containers) -> None:
    words = [word if word != RECEIVER else SENDER for word in command(containers)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, "verify node" in ended.stderr) == (2, True)
