"""Shared parts of the cluster stand-ins' tests: a served API, a real client, objects, the recordings."""

from __future__ import annotations

import asyncio
import json
import tempfile
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from lightkube import AsyncClient

from k8s_rdma.errors import KernelError
from k8s_rdma_demo.cluster.api import ApiConfig, RunningApi, serving_api
from k8s_rdma_demo.cluster.cni_runtime import CniRuntime, create_namespace_at, remove_namespace_at
from k8s_rdma_demo.cluster.node_devices import KubeletConfig
from k8s_rdma_demo.plain_http import NO_TLS
from lightkube_client import lightkube_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

DEADLINE_S = 120
RECORDINGS = Path(__file__).parents[2] / "recordings"


@dataclass(frozen=True, slots=True)
class Cluster:
    """A served API with two clients: lightkube, and plain HTTP."""

    api: RunningApi
    client: AsyncClient
    http: httpx2.AsyncClient

    async def when(self, path: str, name: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The object of that name once something holds of it; DELETED shows it as an empty one."""
        params = {"watch": "true", "fieldSelector": f"metadata.name={name}"}
        async with self.http.stream("GET", path, params=params, timeout=None) as answer:
            async for line in answer.aiter_lines():
                event = json.loads(line)
                obj = {} if event["type"] == "DELETED" else event["object"]
                if holds(obj):
                    return obj
        raise AssertionError

    async def pod_when(self, name: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """`when` for a pod."""
        return await self.when("/api/v1/pods", name, holds)

    async def create(self, *objects: dict[str, Any]) -> dict[str, Any]:
        """Create pods and nodes; gives the last of them."""
        for obj in objects:
            namespace = obj["metadata"].get("namespace")
            scope = f"/namespaces/{namespace}" if namespace else ""
            answer = await self.http.post(f"/api/v1{scope}/{obj['kind'].lower()}s", json=obj)
            assert answer.status_code == 201, answer.text
        return answer.json()

    async def annotate_node(self, name: str, **annotations: str) -> None:
        """Patch a node's annotations."""
        headers = {"Content-Type": "application/merge-patch+json"}
        patch = {"metadata": {"annotations": annotations}}
        answer = await self.http.patch(f"/api/v1/nodes/{name}", json=patch, headers=headers)
        assert answer.status_code == 200, answer.text

    async def events(self, name: str, reason: str) -> list[str]:
        """The messages of the events about a pod."""
        params = {"fieldSelector": f"involvedObject.name={name},reason={reason}"}
        items = (await self.http.get("/api/v1/events", params=params)).json()["items"]
        return [item["message"] for item in items]


@asynccontextmanager
async def _cluster(config: ApiConfig | None = None) -> AsyncIterator[Cluster]:
    async with (
        asyncio.timeout(DEADLINE_S),
        serving_api(config) as api,
        lightkube_client(api.url) as client,
        httpx2.AsyncClient(base_url=api.url, trust_env=False, verify=NO_TLS) as http,
    ):
        yield Cluster(api, client, http)


@pytest.fixture
def cluster():
    """`async with cluster() as c`: everything in it has to be done by a deadline."""
    return _cluster


@dataclass(frozen=True, slots=True)
class Call:
    """One run of a recording plugin."""

    plugin: str
    env: dict[str, str]
    stdin: dict[str, Any]
    raw: bytes
    cwd: str

    @property
    def short(self) -> str:
        """Command and plugin."""
        return f"{self.env['CNI_COMMAND']} {self.plugin}"


@dataclass(frozen=True, slots=True)
class Plugins:
    """CNI plugins that record how they are called, and do as the test says."""

    directory: Path

    def install(self, *names: str) -> None:
        """Make plugins of these names; on ADD each gives the pod one more address."""
        for index, name in enumerate(names, start=1):
            result = {
                "cniVersion": "1.0.0",
                "interfaces": [{"name": "eth0", "sandbox": "x"}],
                "ips": [{"address": f"10.0.0.{i}/24", "interface": 0} for i in range(1, index + 1)],
            }
            (self.directory / f"{name}.result").write_text(json.dumps(result))
            plugin = self.path / name
            plugin.parent.mkdir(exist_ok=True)
            plugin.write_text(_PLUGIN.format(name=name, directory=self.directory))
            plugin.chmod(0o755)

    @property
    def path(self) -> Path:
        """The directory of the plugins."""
        return self.directory / "bin"

    def on(self, command: str, name: str, script: str) -> None:
        """Have a plugin run this shell script on a command; an empty one: be itself again."""
        (self.directory / f"{name}.{command}").write_text(script)

    def give(self, name: str, address: str) -> None:
        """Have a plugin give this address on ADD."""
        interface = {"name": "eth0", "sandbox": "x"}
        ips = [{"address": f"{address}/24", "interface": 0}]
        result = {"cniVersion": "1.0.0", "interfaces": [interface], "ips": ips}
        (self.directory / f"{name}.result").write_text(json.dumps(result))

    def fail(self, command: str, name: str, message: str, **more: Any) -> None:
        """Have a plugin answer a command with a CNI error."""
        document = json.dumps({"cniVersion": "1.0.0", "code": 100, "msg": message, **more})
        self.on(command, name, f"printf %s '{document}'; exit 1")

    def conflist(self, *names: str, version: str = "1.0.0", **more: Any) -> Path:
        """A conflist of these plugins, which want the pod's annotations."""
        capabilities = {"io.kubernetes.cri.pod-annotations": True, "portMappings": True, "off": False}
        plugins = [{"type": name, "capabilities": capabilities} for name in names]
        path = self.directory / "net.conflist"
        path.write_text(json.dumps({"cniVersion": version, "name": "net", "plugins": plugins, **more}))
        return path

    def calls(self) -> list[Call]:
        """All calls, in order."""
        return [
            Call(
                plugin=(run / "name").read_text().strip(),
                env=dict(line.split("=", 1) for line in (run / "env").read_text().splitlines()),
                stdin=json.loads((run / "stdin").read_bytes()),
                raw=(run / "stdin").read_bytes(),
                cwd=(run / "cwd").read_text().strip(),
            )
            for run in sorted(self.directory.glob("run.*"))
            if (run / "name").exists()
        ]

    def short(self) -> list[str]:
        """All calls in two words each."""
        return [call.short for call in self.calls()]


_PLUGIN = """#!/bin/sh
run={directory}/run.$(date +%s%N)
mkdir $run
cat > $run/stdin
env | grep ^CNI_ > $run/env
pwd > $run/cwd
echo {name} > $run/new && mv $run/new $run/name
[ -s {directory}/{name}.$CNI_COMMAND ] && . {directory}/{name}.$CNI_COMMAND
[ $CNI_COMMAND = ADD ] && cat {directory}/{name}.result
exit 0
"""


@pytest.fixture
def plugins(tmp_path):
    """Recording CNI plugins."""
    directory = tmp_path / "cni"
    directory.mkdir()
    return Plugins(directory)


@pytest.fixture
def netns_dir(tmp_path):
    """A directory for namespaces; those that a test leaves there are removed."""
    directory = tmp_path / "netns"
    try:
        create_namespace_at(directory / "probe")
    except KernelError as error:
        pytest.skip(f"no network namespaces here: {error}")
    remove_namespace_at(directory / "probe")
    yield directory
    for path in directory.iterdir():
        remove_namespace_at(path)


def _pod(name: str = "p1", *, namespace: str = "default", **spec: Any) -> dict[str, Any]:
    meta: dict[str, Any] = {"name": name, "namespace": namespace}
    if annotations := spec.pop("annotations", None):
        meta["annotations"] = annotations
    if labels := spec.pop("labels", None):
        meta["labels"] = labels
    containers = [{"name": "c", "image": "lab.local/busybox:1"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": {"containers": containers, "terminationGracePeriodSeconds": 30, **spec},
    }


def _node(name: str = "node-1", **meta: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, **meta},
        "status": {"addresses": [{"type": "InternalIP", "address": "10.10.0.1"}]},
    }


@pytest.fixture
def make_pod():
    return _pod


@pytest.fixture
def make_node():
    return _node


@pytest.fixture
def recording():
    """The recording of that name, e.g. `extender/filter-node-names-001-filter`."""

    def load(name: str) -> dict[str, Any]:
        return json.loads((RECORDINGS / f"{name}.json").read_text())

    return load


@pytest.fixture
def directory():
    # Not pytest's own: the path of a Unix socket has 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="node-") as path:
        yield Path(path)


@pytest.fixture
def runtime(plugins, netns_dir):
    plugins.install("first", "second")
    return CniRuntime([plugins.path], plugins.conflist("first", "second"), netns_dir)


@pytest.fixture
def config(plugins, netns_dir):
    plugins.install("first", "second")
    return KubeletConfig(
        node="node-1",
        conflist=plugins.conflist("first", "second"),
        cni_path=[plugins.path],
        netns_dir=netns_dir,
        start_retry_s=0.01,
        stop_retry_s=0.01,
        late_delete_s=None,
        status_interval_s=0.01,
    )
