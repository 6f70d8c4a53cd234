"""docs/howto-kubeadm.md as it is printed, on a control plane of kubeadm's, up to a pod that is bound."""

from __future__ import annotations

import base64
import re
import shutil
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest
import yaml

from cluster import kubeadm
from cluster.control_plane import Json, write_kubeconfig
from cluster.kubeadm import MANIFESTS, ControlPlaneNode, container, network
from cluster.nodes import node_object
from cluster.policies import pod_of, token_of
from cluster.processes import running
from cluster.publishers import AGENT, CRD, publishing
from cluster.real import SERVICE, programs_of
from cluster.server_side_apply import Applied
from cluster.test_real_daemonset import leading_to
from cluster.typed import Shell, obstacle, printed
from cluster.world import Cluster, cluster, placement
from deploy.rendering.chart import documents, render
from doctor_documents import decode_doctor
from documents import ROOT
from k8s_rdma.config.placement_keys import extender_keys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(obstacle("kubeadm", "kubectl")), reason=str(obstacle("kubeadm", "kubectl"))),
]
PAGE = "docs/howto-kubeadm.md"
NAMESPACE = "k8s-rdma"
CLUSTER_IP = "10.96.0.88"
PORT = 8888
SLOT = "k8s-rdma.io/slot"
DEADLINE_S = 240
"""The whole of it, on processors that others use as well."""
LABEL, INSTALL, TELL, SEE, START, CERTIFICATES, TELL_SERVICE, BACK = printed(PAGE, __file__)


def shown(part: str) -> Json:
    """The page's block of YAML with that in it."""
    found = re.findall(r"^ *```yaml\n(.*?)^ *```$", (ROOT / PAGE).read_text(), re.DOTALL | re.MULTILINE)
    (text,) = (each for each in found if part in each)
    return yaml.safe_load(dedent(text))


@dataclass
class Administered:
    """A cluster, its control-plane node, and its administrator there, in a clone of the repository.

    worker: the node that has slots.
    """

    c: Cluster
    worker: str
    node: ControlPlaneNode
    shell: Shell

    async def mounted(self, at: str, config: str, *secrets: str) -> str:
        """A configuration with the files of Secrets at the path that its pod has for them."""
        into = self.c.directory / at
        into.mkdir()
        for secret in secrets:
            answer = await self.c.http.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/{secret}")
            for name, value in answer.json()["data"].items():
                (into / name).write_bytes(base64.b64decode(value))
        return config.replace(f"/etc/k8s-rdma/{at}", str(into))

    async def keys(self) -> dict[str, str]:
        """The data of the Secrets of keys for placements, together."""
        held: dict[str, str] = {}
        for secret in ("k8s-rdma-placement-key", "k8s-rdma-placement-signing-key"):
            held |= (await self.c.http.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/{secret}")).json()["data"]
        return held

    async def accepted_keys(self) -> set[str]:
        """The keys that an extender verifies by."""
        directory = self.c.directory / "keys"
        directory.mkdir(exist_ok=True)
        for path in directory.iterdir():
            path.unlink()
        for name, value in (await self.keys()).items():
            (directory / name).write_bytes(base64.b64decode(value))
        keys = extender_keys(str(directory))()
        assert keys is not None
        return {key.id for key in keys.accepted}

    async def start_extender(self) -> None:
        """The process of the extender's pod: its configuration, its account, its port."""
        answer = await self.c.http.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/k8s-rdma-extender")
        config = answer.json()["data"]["extender.yaml"]
        config = await self.mounted("key", config, "k8s-rdma-placement-key", "k8s-rdma-placement-signing-key")
        if "/tls/" in config:
            config = await self.mounted("tls", config, "k8s-rdma-extender-tls")
        account = await self.c.account("k8s-rdma-extender", NAMESPACE)
        extender = self.c.extender(**yaml.safe_load(config) | {"kubeconfig": str(account)})
        extender.port = PORT
        await extender.start()

    async def doctor_says(self, subject: str) -> set[str]:
        """The doctor's findings on a subject on the control-plane node, but its notes."""
        _, said = await self.shell.tries(f"{sys.executable} -m k8s_rdma doctor cluster --json")
        found = decode_doctor(said.encode()).findings
        return {each.id for each in found if each.subject == subject and each.severity != "note"}

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[None]:
        """The worker's agent publishes it, with a token of its pod."""
        token = await token_of(self.c, AGENT, await pod_of(self.c, AGENT, self.worker))
        write_kubeconfig(self.c.directory / f"{AGENT}.kubeconfig", self.c.plane, token)
        async with publishing(self.c, self.c.nodes[self.worker]):
            yield

    @asynccontextmanager
    async def kube_scheduler(self) -> AsyncIterator[Path]:
        """That of the static pod, as its file has it now; its log."""
        root = self.c.directory / "kube-scheduler"
        program = programs_of(self.c.plane) / "kube-scheduler"
        command = container(self.node, "kube-scheduler", program, root)
        log = self.c.directory / "kube-scheduler.log"
        async with running(log, *command):
            yield log


@asynccontextmanager
async def administered(
    directory: Path, worker: str = "w1", name: str = "control-1", *, kubelet: bool = False
) -> AsyncIterator[Administered]:
    """A cluster as `kubeadm init` leaves it, with a worker.

    name: of the control-plane node. kubelet: it has one, which reports the node itself.
    """
    async with AsyncExitStack() as stack:
        stack.enter_context(network(SERVICE, CLUSTER_IP))
        c = await stack.enter_async_context(
            cluster("real", directory, worker, deadline_s=DEADLINE_S, **{SLOT: "4"})
        )
        port = int(c.plane.url.rpartition(":")[2])
        await stack.enter_async_context(leading_to(port, at=kubeadm.PORT))
        clone = directory / "clone"
        for part in ("deploy/manifests", "examples/scheduler"):
            shutil.copytree(ROOT / part, clone / part)
        node = ControlPlaneNode(directory, name)
        admin = Path("/etc/kubernetes/admin.conf")
        shell = Shell(directory=clone, kubeconfig=admin, home=directory, entering=node.entering)
        await node.make(c.plane, shell, (c.plane.ca_file, c.plane.ca_file.with_suffix(".key")))
        if not kubelet:
            await register(c, node)
        yield Administered(c, worker, node, shell)


async def register(c: Cluster, node: ControlPlaneNode) -> None:
    """Create the Node and the API server's static pod, as kubelet and kubeadm do for the control plane."""
    known = node_object(node.name, SERVICE, {})
    known["metadata"]["annotations"] = {"kubeadm.alpha.kubernetes.io/cri-socket": "unix:///run/c.sock"}
    known["spec"] = {"taints": [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]}
    await c.create(known)
    pod = node.manifest("kube-apiserver")
    pod["spec"]["nodeName"] = node.name
    await c.create(pod)


async def test_page_leads_from_kubeadm_to_a_pod_with_its_placement(tmp_path: Path):
    async with administered(tmp_path) as a:
        made = a.node.manifest("kube-scheduler")
        for block in (LABEL, INSTALL):
            await a.shell.types(block)
        assert await a.doctor_says("scheduler") == {"scheduler-no-configuration"}
        await a.shell.types(TELL)
        assert await a.doctor_says("scheduler") == {"scheduler-ok"}
        await a.start_extender()
        async with a.agent(), a.kube_scheduler() as log:
            seen = await a.shell.types(SEE)
            assert "+++" not in seen, "an upgrade would change what is there"
            assert '"min_tx_rate":5000' in (await a.shell.types(START)).replace(" ", "")
            assert placement(await a.c.bound("reserved"))
            assert "forbidden" not in log.read_text()
        await a.shell.types(BACK)
        assert a.node.manifest("kube-scheduler") == made


async def test_keys_are_rotated_as_the_page_says(tmp_path: Path):
    accept, sign, end = printed("docs/howto-keys.md", __file__)
    async with administered(tmp_path) as a:
        for block in (LABEL, INSTALL):
            await a.shell.types(block)
        first = await a.keys()
        await a.shell.types(accept)
        assert (await a.keys()).keys() == {"ed25519.pub", "new.pub", "signing.key"}
        both = await a.accepted_keys()
        await a.shell.types(sign)
        assert (await a.keys())["signing.key"] != first["signing.key"]
        assert await a.accepted_keys() == both
        await a.shell.types(end)
        assert (await a.keys()).keys() == {"new.pub", "signing.key"}
        assert len(await a.accepted_keys()) == 1


async def test_edit_by_hand_equals_that_of_kubeadm_and_is_lost_at_an_upgrade(tmp_path: Path):
    async with administered(tmp_path) as a:
        by_hand = edit(a.node)
        lost = await a.shell.types("kubeadm upgrade diff")
        assert "-    - --config=/etc/kubernetes/k8s-rdma/scheduler.yaml" in lost

        await a.shell.types(TELL)
        assert in_any_order(a.node.manifest("kube-scheduler")) == in_any_order(by_hand)


async def test_older_configuration_of_kubeadm_says_the_same(tmp_path: Path):
    async with administered(tmp_path) as a:
        await a.shell.types(TELL)
        expected = a.node.manifest("kube-scheduler")
        config = yaml.safe_load((a.shell.directory / "kubeadm.yaml").read_text())
        older = {each: config[each] for each in ("kind", "kubernetesVersion", "networking", "scheduler")}
        older["apiVersion"] = "kubeadm.k8s.io/v1beta3"
        older["scheduler"] |= shown("extraArgs: {config")["scheduler"]
        (a.shell.directory / "older.yaml").write_text(yaml.safe_dump(older))
        a.node.path(f"{MANIFESTS}/kube-scheduler.yaml").unlink()
        await a.shell.types("kubeadm init phase control-plane scheduler --config older.yaml")
        assert a.node.manifest("kube-scheduler") == expected


async def test_section_that_is_there_twice_is_refused(tmp_path: Path):
    async with administered(tmp_path) as a:
        await a.shell.types(TELL)
        assert "scheduler" in await a.shell.refused(TELL)


async def test_kube_schedulers_of_several_nodes_reach_the_extender_by_its_service(tmp_path: Path):
    values = {
        "extender": {
            "mode": "service",
            "replicas": 2,
            "clusterIP": CLUSTER_IP,
            "tlsSecretName": "k8s-rdma-extender-tls",
        }
    }
    async with administered(tmp_path) as a:
        await a.shell.types(CERTIFICATES)
        major, minor = a.c.plane.release
        applied = Applied(a.c.http)
        await applied.apply(yaml.safe_load(CRD.read_text()))
        for each in documents(render(values, kubernetes=f"v{major}.{minor}.0")):
            await applied.apply(each)
        for block in (TELL, TELL_SERVICE):
            await a.shell.types(block)
        await a.start_extender()
        async with a.agent(), a.kube_scheduler() as log:
            await a.shell.types(START)
            assert placement(await a.c.bound("reserved"))
            assert "forbidden" not in log.read_text()


def edit(node: ControlPlaneNode) -> Json:
    """The static pod with the page's additions to its file made by hand."""
    pod, new = node.manifest("kube-scheduler"), shown("- kube-scheduler\n")["spec"]
    (only,), (added,) = pod["spec"]["containers"], new["containers"]
    only["command"] += added["command"][1:]
    only["volumeMounts"] += added["volumeMounts"]
    pod["spec"]["volumes"] += new["volumes"]
    node.path(f"{MANIFESTS}/kube-scheduler.yaml").write_text(yaml.safe_dump(pod))
    return pod


def in_any_order(pod: Json) -> Json:
    """A static pod whose lists of arguments, mounts and volumes are sorted."""
    (only,) = pod["spec"]["containers"]
    only["command"].sort()
    only["volumeMounts"].sort(key=lambda each: each["name"])
    pod["spec"]["volumes"].sort(key=lambda each: each["name"])
    return pod
