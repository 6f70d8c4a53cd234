"""`k8s-rdma doctor cluster` sees a cluster as it is, and its broken parts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from cluster.control_plane import Json, write_kubeconfig
from cluster.extenders import registration
from cluster.policies import SINCE
from cluster.publishers import AGENT, prepare, publishing
from cluster.test_rbac import role_without
from cluster.world import Cluster, cluster
from doctor_documents import decode_doctor
from k8s_rdma import __version__
from k8s_rdma.doctor.collectors.asking_pods import asking_pods
from k8s_rdma.kube.documents import Documents
from warm_program import run

if TYPE_CHECKING:
    from k8s_rdma.wire.doctor import DoctorDocument

pytestmark = pytest.mark.anyio

EXAMPLES = Path(__file__).parents[2] / "examples" / "scheduler"
NAME_POLICY = "k8s-rdma-scheduler-name"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/k8s-rdma/leases/w1"


async def examined(c: Cluster, *options: str) -> tuple[DoctorDocument, int]:
    kubeconfig = write_kubeconfig(c.directory / "admin.kubeconfig", c.plane, c.plane.admin_token)
    return await doctor("cluster", "--kubeconfig", str(kubeconfig), *options)


async def doctor(*options: str) -> tuple[DoctorDocument, int]:
    ran = await asyncio.to_thread(run, ["doctor", *options, "--json"])
    assert not ran.stderr
    return decode_doctor(ran.stdout), ran.returncode


def ids(document: DoctorDocument, subject: str) -> set[str]:
    return {each.id for each in document.findings if each.subject == subject}


async def test_doctor_sees_the_extender_its_rights_and_pods_that_wait(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1") as c:
        extender = await c.running_extender()
        file = tmp_path / "kube-scheduler.yaml"
        file.write_text(yaml.safe_dump(registration(extender.url)))
        options = ["--scheduler-config", str(file), "--extender", extender.url]
        options += ["--extender-config", str(tmp_path / "extender.yaml")]
        document, _ = await examined(c, *options)
        [asked] = [each for each in document.findings if each.subject == "extender"]
        assert (asked.id, asked.about) == ("extender-ok", extender.url)
        assert asked.found == f"answers, version {__version__}, and is ready"
        assert ids(document, "rights") == {"rights-ok", "rights-no-account"}  # no agents here
        assert ids(document, "pods") == {"pods-ok"}
        assert ids(document, "crd") <= {"crd-unused", "crd-ok"}
        assert not ids(document, "scheduler") & {"scheduler-no-extender", "scheduler-wrong-path"}

        await role_without(c, "pods/binding", "create")
        await c.create_pod("waits", 1_000)
        document, status = await examined(c, *options)
        assert status == 1
        [missing] = [each for each in document.findings if each.id == "rights-missing"]
        assert missing.found == "may not: create pods/binding"
        assert missing.about.startswith("extender (")
        [waiting] = [each for each in document.findings if each.id == "pods-waiting"]
        assert waiting.about == "default/waits"

        await extender.end()
        document, _ = await examined(c, *options)
        assert ids(document, "extender") == {"extender-unreachable"}


async def test_policy_of_the_extenders_account_is_missed_if_that_account_exists(kind: str, tmp_path: Path):
    def missing(document: DoctorDocument) -> set[str]:
        return {each.about for each in document.findings if each.id == "policies-missing"}

    async with cluster(kind, tmp_path, "w1") as c:
        policy = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/k8s-rdma-extender"
        assert (await c.http.delete(policy)).status_code in (200, 404)
        document, _ = await examined(c)
        if "policies-too-old" in ids(document, "policies"):
            pytest.skip("this release has no policies")
        before = missing(document)
        account = "/api/v1/namespaces/kube-system/serviceaccounts/k8s-rdma-extender"
        assert (await c.http.delete(account)).status_code == 200
        document, _ = await examined(c)
        assert before - missing(document) == {"k8s-rdma-extender"}


async def test_doctor_sees_nodes_that_publish_themselves(kind: str, tmp_path: Path):
    config = tmp_path / "with-crd.yaml"
    config.write_text("source: crd")
    async with cluster(kind, tmp_path, "w1") as c:
        await prepare(c)
        document, _ = await examined(c, "--extender-config", str(config))
        assert ids(document, "nodes") == {"nodes-none"}
        async with publishing(c, c.nodes["w1"]):
            while (await c.http.get(LEASE)).status_code != 200:  # noqa: ASYNC110  another process makes it
                await asyncio.sleep(0.05)
            document, _ = await examined(c, "--extender-config", str(config))
            assert ids(document, "nodes") == {"nodes-ok"}
        assert "rights-missing" not in ids(document, "rights")
        assert (await c.http.delete(LEASE)).status_code == 200
        document, status = await examined(c, "--extender-config", str(config))
        assert ids(document, "nodes") == {"nodes-no-lease"}
        assert status == 1


def pod_of(name: str, labels: Json, image: str, *command: str) -> Json:
    """In kube-system."""
    container = {"name": "c", "image": image, "command": list(command)}
    meta = {"name": name, "namespace": "kube-system", "labels": labels}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": meta, "spec": {"containers": [container]}}


def missing(document: DoctorDocument) -> dict[str, str]:
    """Policies that are not there, and the fix for each."""
    return {each.about: each.fix for each in document.findings if each.id == "policies-missing"}


async def test_doctor_names_the_scheduler_that_asks_and_pods_that_are_left_to_another(
    kind: str, tmp_path: Path
):
    async with cluster(kind, tmp_path, "w1") as c:
        labels = {"component": "kube-scheduler"}
        await c.create(pod_of("kube-scheduler-cp1", labels, "kube-scheduler:1", "kube-scheduler"))
        await c.create_pod("waits", 1_000)
        document, _ = await examined(c)
        assert ids(document, "scheduler") == {"scheduler-no-configuration"}
        assert NAME_POLICY not in missing(document)

        second = (EXAMPLES / "second-scheduler.yaml").read_text()
        meta = {"name": "k8s-rdma-extender", "namespace": "kube-system"}
        data = {"scheduler.yaml": second, "extender.yaml": "{}"}
        await c.create({"kind": "ConfigMap", "apiVersion": "v1", "metadata": meta, "data": data})
        await c.create_pod("waits-rightly", 1_000, schedulerName="rdma-scheduler")
        document, _ = await examined(c)
        found = {each.id: each for each in document.findings if each.subject == "scheduler"}
        assert set(found) == {"scheduler-ok", "scheduler-not-asking"}
        assert found["scheduler-ok"].found.startswith("rdma-scheduler asks the extender")
        assert found["scheduler-not-asking"].about == "pod kube-system/kube-scheduler-cp1"
        pods = {each.about: each.id for each in document.findings if each.subject == "pods"}
        assert pods == {"default/waits": "pods-other-scheduler", "default/waits-rightly": "pods-waiting"}
        assert (NAME_POLICY in missing(document)) is (c.plane.release >= SINCE)


def event_of(pod: Json, reason: str, message: str) -> Json:
    meta = pod["metadata"]
    about = {"kind": "Pod", "namespace": "default", "name": meta["name"], "uid": meta["uid"]}
    return {
        "kind": "Event",
        "apiVersion": "v1",
        "metadata": {"name": f"{meta['name']}.{reason.lower()}", "namespace": "default"},
        "involvedObject": about,
        "reason": reason,
        "message": message,
        "type": "Warning",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }


async def test_doctor_says_why_pods_that_are_bound_do_not_start(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1") as c:
        file = tmp_path / "second.yaml"
        file.write_text((EXAMPLES / "second-scheduler.yaml").read_text())
        forgotten = await c.create_pod("forgotten", 1_000, nodeName="w2")
        await c.create(event_of(forgotten, "RdmaStalePlacement", "the extender did not place this pod"))
        placed = {"k8s-rdma.io/placement": "{}"}
        stuck = await c.create_pod(
            "stuck", 1_000, nodeName="w2", schedulerName="rdma-scheduler", annotations=placed
        )
        said = 'Failed to create pod sandbox: plugin type="k8s-rdma-cni" failed (add): no agent'
        await c.create(event_of(stuck, "FailedCreatePodSandBox", said))
        document, _ = await examined(c, "--scheduler-config", str(file))
        pods = {each.about: each for each in document.findings if each.subject == "pods"}
        assert pods["default/forgotten"].id == "pods-unplaced"
        assert pods["default/forgotten"].found.endswith("; the extender did not place this pod")
        assert pods["default/forgotten"].fix.startswith("schedulerName: rdma-scheduler")
        assert pods["default/stuck"].id == "pods-not-started"
        assert pods["default/stuck"].found == "is not started on w2: no agent"


async def test_doctor_finds_pods_that_run_without_requested_interfaces(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1") as c:
        await prepare(c)
        asked = {"k8s-rdma.io/placement": '{"interfaces": [{"pf": "0000:03:00.0", "min_tx_rate": 1000}]}'}
        uids = {}
        for name, started in (("chained", 2026), ("unchained", 2026), ("young", 2999)):
            pod = await c.create_pod(name, 1_000, nodeName="w1", annotations=asked)
            status = {"phase": "Running", "startTime": f"{started}-01-01T00:00:00Z"}
            await c.patch(f"/api/v1/namespaces/default/pods/{name}/status", {"status": status})
            uids[name] = pod["metadata"]["uid"]
        while len(c.nodes["w1"].held) < len(uids):  # noqa: ASYNC110  the scenario is the node's kubelet
            await asyncio.sleep(0.05)
        for name in ("unchained", "young"):
            c.nodes["w1"].release(uids[name])
        document, _ = await examined(c)
        assert ids(document, "pods") == {"pods-ok"}  # no agent reports them yet
        async with publishing(c, c.nodes["w1"]):
            while (await c.http.get(LEASE)).status_code != 200:  # noqa: ASYNC110  another process makes it
                await asyncio.sleep(0.05)
            document, status = await examined(c)
        [found] = [each for each in document.findings if each.subject == "pods"]
        assert (found.id, found.about, status) == ("pods-without-interfaces", "default/unchained", 1)


async def test_static_pod_is_known_by_the_uid_that_its_node_has_for_it(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1") as c:
        await c.create_pod("p", 1_000, nodeName="w1", annotations={"kubernetes.io/config.mirror": "hash"})
        status = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}
        await c.patch("/api/v1/namespaces/default/pods/p/status", {"status": status})
        kubeconfig = write_kubeconfig(c.directory / "admin.kubeconfig", c.plane, c.plane.admin_token)
        with Documents(str(kubeconfig)) as api:
            for uid, held in (("hash", True), ("another", False)):
                [fact] = await asyncio.to_thread(asking_pods, api, {"w1": frozenset({uid})})
                assert fact.holds_interfaces is held


async def test_doctor_does_not_judge_pods_that_have_ended(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1") as c:
        labels = {"app.kubernetes.io/name": "k8s-rdma", "app.kubernetes.io/component": "extender"}
        for name, tag in (("evicted", "0.0.1"), ("follows", __version__)):
            await c.create(pod_of(name, labels, f"registry.invalid/k8s-rdma:{tag}"))
        evicted = {"status": {"phase": "Failed", "reason": "Evicted"}}
        await c.patch("/api/v1/namespaces/kube-system/pods/evicted/status", evicted)
        document, _ = await examined(c)
        assert "versions-ours-differ" not in ids(document, "versions")
        told = {each.about for each in document.findings if each.subject == "extender"}
        assert "kube-system/follows" in told
        assert "kube-system/evicted" not in told


@pytest.mark.parametrize(("text", "found"), [("[ ]", "pods-ok"), (" ", "pods-ok"), ("[", "pods-unplaced")])
async def test_doctor_reads_the_annotation_as_the_agent_does(
    kind: str, tmp_path: Path, text: str, found: str
):
    async with cluster(kind, tmp_path, "w1") as c:
        await c.create_pod("asks", annotations={"rdma_interfaces_required": text}, nodeName="w2")
        await c.patch("/api/v1/namespaces/default/pods/asks/status", {"status": {"phase": "Running"}})
        document, _ = await examined(c)
        assert ids(document, "pods") == {found}


async def test_doctor_compares_a_node_with_its_cluster_by_the_agents_own_account(kind: str, tmp_path: Path):
    async with cluster(kind, tmp_path, "w1") as c:
        await prepare(c)
        settings = {"node": "w1", "kernel": "virtual", "runDir": str(tmp_path), "stateDir": str(tmp_path)}
        settings |= {"kubeconfig": str(tmp_path / f"{AGENT}.kubeconfig"), "publish": {"rdmaNode": True}}
        config = tmp_path / "agent.yaml"
        config.write_text(yaml.safe_dump(settings))
        options = ["node", "--config", str(config), "--server", ""]

        async def told(kubelet: str, runtime: str) -> set[str]:
            info = {"kubeletVersion": kubelet, "containerRuntimeVersion": runtime}
            await c.patch("/api/v1/nodes/w1/status", {"status": {"nodeInfo": info}})
            document, _ = await doctor(*options)
            if kind == "real":  # the definition itself is not for agents to see
                assert ids(document, "crd") == {"crd-ok"}
            return ids(document, "versions")

        newest = f"v1.{c.plane.release[1]}.0"
        assert await told("v1.27.3", "containerd://1.5.9") == {"versions-too-old", "versions-runtime"}
        labels = {"app.kubernetes.io/name": "k8s-rdma"}
        await c.create(pod_of("ended", labels, "registry.invalid/k8s-rdma:9.9.8"))
        ended = {"status": {"phase": "Succeeded"}}
        await c.patch("/api/v1/namespaces/kube-system/pods/ended/status", ended)
        assert await told(newest, "containerd://2.2.1") == {"versions-ok"}
        await c.create(pod_of("other", labels, "registry.invalid/k8s-rdma:9.9.9"))
        document, _ = await doctor(*options, "--node", "w2")
        assert ids(document, "versions") == {"versions-no-node", "versions-ours-differ"}


async def test_doctor_ends_with_status_2_without_an_answer(tmp_path: Path):
    kubeconfig = tmp_path / "kubeconfig"
    cluster_at = {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    document = {"clusters": [cluster_at], "contexts": [context], "users": [{"name": "u", "user": {}}]}
    kubeconfig.write_text(yaml.safe_dump({"current-context": "c", **document}))
    ran = run(["doctor", "cluster", "--kubeconfig", str(kubeconfig)])
    assert ran.returncode == 2
    assert "no connection to the API server" in ran.stderr
    assert not ran.stdout
