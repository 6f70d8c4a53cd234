"""`k8s-rdma doctor cluster` sees a cluster as it is, and what is broken of it."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import pytest
import yaml

from cluster.control_plane import write_kubeconfig
from cluster.extenders import registration
from cluster.publishers import prepare, publishing
from cluster.test_rbac import role_without
from cluster.world import cluster
from k8s_rdma.wire.doctor import decode_doctor

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.world import Cluster
    from k8s_rdma.wire.doctor import DoctorDocument

pytestmark = pytest.mark.anyio

LEASE = "/apis/coordination.k8s.io/v1/namespaces/k8s-rdma/leases/w1"


async def examined(c: Cluster, *options: str) -> tuple[DoctorDocument, int]:
    kubeconfig = write_kubeconfig(c.directory / "admin.kubeconfig", c.plane, c.plane.admin_token)
    command = [
        sys.executable,
        "-m",
        "k8s_rdma",
        "doctor",
        "cluster",
        "--kubeconfig",
        str(kubeconfig),
        "--json",
    ]
    process = await asyncio.create_subprocess_exec(
        *command, *options, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, said = await process.communicate()
    assert not said, said.decode()
    return decode_doctor(out), process.returncode or 0


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
        assert ids(document, "extender") == {"extender-ok"}
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


async def test_doctor_ends_with_two_where_nobody_answers(tmp_path: Path):
    kubeconfig = tmp_path / "kubeconfig"
    cluster_at = {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    document = {"clusters": [cluster_at], "contexts": [context], "users": [{"name": "u", "user": {}}]}
    kubeconfig.write_text(yaml.safe_dump({"current-context": "c", **document}))
    command = [sys.executable, "-m", "k8s_rdma", "doctor", "cluster", "--kubeconfig", str(kubeconfig)]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, said = await process.communicate()
    assert process.returncode == 2
    assert b"no connection to the API server" in said
    assert not out
