"""Pods of a real container runtime start at every moment, while our network comes, changes and goes."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from e2e.cri import CriError
from e2e.processes import pod
from e2e.runtimes import RUNTIMES, runtime_obstacle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from e2e.container_runtime import ContainerRuntime
    from e2e.node import Node

OURS, FILE = "k8s-rdma-cni", "00-k8s-rdma.conflist"
OTHERS = {"containerd": "10-net", "crio": "100-crio-bridge"}
"""Names of the other plugin's file; CRI-O brings the second."""
GRACE_S = 1


@pytest.fixture
def node(make_node: Callable[[int], Node]) -> Node:
    return make_node(4)


class Site:
    """A node whose own network is `bridge`, and the installer on it."""

    def __init__(self, node: Node, runtime: ContainerRuntime) -> None:
        self.cri = runtime.cri
        self.bin, self.confs = runtime.directory / "bin", runtime.directory / "net.d"
        self._other = OTHERS[runtime.name]
        self._node = node
        ours = json.loads(node.runtime(chained=True).conflist.read_text())["plugins"].pop()
        self._plugin = json.dumps({key: ours[key] for key in ("runDir", "ipam")})
        (self.bin / OURS).unlink()
        self.write_other()

    def write_other(self, **more: object) -> None:
        """The other plugin's file, as its own installer replaces it."""
        document = json.loads(self._node.runtime(chained=True).conflist.read_text())
        document["plugins"] = document["plugins"][:1]
        del document["disableCheck"]
        draft = self.confs / f"{self._other}.new"
        draft.write_text(json.dumps(document | more))
        draft.rename(self.confs / f"{self._other}.conflist")

    def write_single_plugin(self) -> None:
        """The other's network as one plugin without a version, for which libcni writes an empty one."""
        document = json.loads((self.confs / f"{self._other}.conflist").read_text())
        [plugin] = document["plugins"]
        (self.confs / f"{self._other}.conf").write_text(json.dumps({"name": document["name"], **plugin}))
        (self.confs / f"{self._other}.conflist").unlink()

    def installer(self, *options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "k8s_rdma", "install-cni", str(self.bin), "--network", "chained"]
        return subprocess.Popen(
            [*command, "--conf-dir", str(self.confs), "--plugin", self._plugin, *options],
            env=os.environ | {"K8S_RDMA_CNI": str(self._node.cni_path[0] / OURS)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def uninstall(self, *, said: str) -> None:
        """Take everything off the node that can be."""
        paths = {"bin": self.bin, "conf": self.confs, "run": self._node.run_dir}
        paths |= {"state": self._node.directory / "state", "cdi": self._node.directory / "cdi"}
        options = [word for name, path in paths.items() for word in (f"--{name}-dir", str(path))]
        command = [*self._node.enter, sys.executable, "-m", "k8s_rdma", "uninstall", "--grace-s", "0"]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        assert said in done.stdout, done

    def chained(self) -> bool:
        return (self.confs / FILE).exists()


@pytest.fixture(params=RUNTIMES)
def site(request: pytest.FixtureRequest, node: Node) -> Iterator[Site]:
    if why := runtime_obstacle(request.param):
        pytest.skip(why)
    directory = node.directory / request.param
    with RUNTIMES[request.param](directory, plugins=node.cni_path, deadline_s=node.deadline_s) as runtime:
        made = Site(node, runtime)
        try:
            node.wait("a pod without us", lambda: starts(made, "probe"))
        except AssertionError as error:
            pytest.skip(f"needs a machine where {runtime.name} starts pods: {error}")
        node.enter = runtime.entering
        node.start_agent()
        yield made


def starts(site: Site, name: str) -> bool:
    try:
        sandbox = site.cri.run_sandbox(pod(name))
    except CriError:
        return False
    site.cri.stop_sandbox(sandbox)
    site.cri.remove_sandbox(sandbox)
    return True


@dataclass
class Tried:
    """Pods that were started one after the other, and a sentence for each failure."""

    pods: int = 0
    failures: list[str] = field(default_factory=list)


@contextmanager
def pods_all_the_time(site: Site) -> Iterator[Tried]:
    """Pods without RDMA start and end until the block ends."""
    stop, tried = threading.Event(), Tried()

    def run() -> None:
        while not stop.is_set():
            tried.pods += 1
            try:
                sandbox = site.cri.run_sandbox(pod(f"plain{tried.pods}"))
                site.cri.stop_sandbox(sandbox)
                site.cri.remove_sandbox(sandbox)
            except CriError as error:
                tried.failures.append(f"pod {tried.pods}: {error}")

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield tried
    finally:
        stop.set()
        thread.join()


def test_pods_start_at_every_moment_while_ours_comes_and_goes(node: Node, site: Site) -> None:
    chance = random.Random(1)
    with pods_all_the_time(site) as tried:
        for attempt in itertools.takewhile(lambda number: number < 4 or tried.pods <= 10, itertools.count()):
            follower = site.installer("--follow")
            node.wait("our network", site.chained)
            site.write_other(attempt=attempt)
            time.sleep(chance.uniform(0, 0.5))  # so that it is killed anywhere
            follower.kill()
            follower.wait()
            if attempt % 2:
                assert site.installer("--remove", "--grace-s", str(GRACE_S)).wait(node.deadline_s) == 0
                assert not site.chained()
                assert not (site.bin / OURS).exists()
    assert tried.failures == []


@pytest.mark.parametrize("site", ["containerd"], indirect=True)
def test_pod_keeps_its_interfaces_when_ours_is_removed_and_its_vfs_come_home_at_its_end(
    node: Node, site: Site
) -> None:
    site.write_single_plugin()
    assert site.installer().wait(node.deadline_s) == 0
    node.wait("our network", lambda: starts(site, "settled"))
    rdma = site.cri.run_sandbox(pod("rdma", {"min_tx_rate": 100}))
    assert node.markers() == [rdma]
    assert site.installer("--remove", "--grace-s", "0").wait(node.deadline_s) == 0
    assert node.markers() == [rdma]
    assert starts(site, "plain")
    site.cri.stop_sandbox(rdma)
    site.cri.remove_sandbox(rdma)
    node.wait("its VFs", lambda: node.leftovers() == {})


@pytest.mark.parametrize("site", ["crio"], indirect=True)
def test_executable_stays_until_pods_have_ended_that_crio_ends_with_it(node: Node, site: Site) -> None:
    """An ordinary pod's end fails without it, too: CRI-O ends it by the list that it was started with."""
    assert site.installer().wait(node.deadline_s) == 0
    node.wait("our network", lambda: starts(site, "settled"))
    plain = site.cri.run_sandbox(pod("plain"))
    site.uninstall(said="which CRI-O calls when pods end")
    assert (site.bin / OURS).exists()
    assert not site.chained()
    site.cri.stop_sandbox(plain)
    site.cri.remove_sandbox(plain)
    node.kill_agent()
    site.uninstall(said=f"removed {site.bin / OURS}")
    assert node.leases() == []
