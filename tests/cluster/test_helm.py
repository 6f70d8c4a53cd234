"""Helm installs, upgrades, refuses, takes back and away, in a real API server, as the pages have it typed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from cluster.real import real
from cluster.test_manifests import NAMESPACE, rendered
from cluster.typed import Shell, obstacle, printed, programs
from documents import ROOT
from helm_program import every_helm, needs_helm

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cluster.control_plane import ControlPlane, Json

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(obstacle("kubectl")), reason=str(obstacle("kubectl"))),
    needs_helm,
    every_helm,
]
UPGRADE = "helm upgrade k8s-rdma deploy/chart --namespace k8s-rdma"
SECRETS = ("secret/k8s-rdma-placement-key", "secret/k8s-rdma-placement-signing-key")
STAY = {
    *SECRETS,
    "customresourcedefinition.apiextensions.k8s.io/rdmanodes.k8s-rdma.io",
}
"""Objects that an uninstall leaves, as the page says."""


class Administrator:
    """An administrator who types the pages' commands, in a folder with `deploy`."""

    def __init__(self, plane: ControlPlane, directory: Path, helm: str) -> None:
        self.plane, self.directory = plane, directory
        home = directory / "bin"
        home.mkdir()
        (home / "helm").symlink_to(Path(helm).resolve())
        shutil.copytree(ROOT / "deploy", directory / "deploy", symlinks=True)
        path = f"{home}:{programs()}:{os.environ['PATH']}"
        admin = Shell.at(plane, directory, directory=directory)
        self.shell = Shell(
            directory=directory, kubeconfig=admin.kubeconfig, home=home, entering=("env", f"PATH={path}")
        )

    async def types(self, text: str) -> str:
        return await self.shell.types(text)

    async def get(self, what: str) -> Json:
        return json.loads(await self.types(f"kubectl get {what} --namespace {NAMESPACE} --output json"))

    async def key(self) -> list[Json]:
        """The data of both Secrets."""
        return [(await self.get(name))["data"] for name in SECRETS]

    async def generation(self) -> int:
        """Of the DaemonSet: another one has its controller replace all pods."""
        return (await self.get("daemonset k8s-rdma-node"))["metadata"]["generation"]

    async def init_containers(self) -> set[str]:
        pod = (await self.get("daemonset k8s-rdma-node"))["spec"]["template"]["spec"]
        return {each["name"] for each in pod["initContainers"]}

    async def there(self) -> set[str]:
        """Objects rendered from the values at hand that are in the cluster."""
        values = yaml.safe_load((self.directory / "values.yaml").read_text())
        path = self.directory / "rendered.yaml"
        path.write_text(yaml.safe_dump_all(rendered(self.plane, values)))
        command = f"kubectl get --filename {path} --filename deploy/crds --ignore-not-found --output name"
        return set((await self.types(command)).split())


@pytest.fixture
async def administrator(tmp_path: Path, helm: str) -> AsyncIterator[Administrator]:
    async with real(tmp_path) as plane:
        yield Administrator(plane, tmp_path, helm)


async def test_release_is_installed_upgraded_and_taken_away_as_the_page_says(administrator: Administrator):
    a = administrator
    (install,) = printed("docs/install.md", __file__)
    assert "kubectl get rdmanodes" in await a.types(install)
    installed, key, generation = await a.there(), await a.key(), await a.generation()
    assert len(installed) > len(STAY)

    await a.types(f"{UPGRADE} --values values.yaml")
    assert (await a.there(), await a.key(), await a.generation()) == (installed, key, generation)

    said = await a.shell.refused(f"{UPGRADE} --reuse-values --set node.uninstal=true")
    assert "uninstal" in said
    assert await a.generation() == generation

    before = await a.init_containers()
    await a.types(f"{UPGRADE} --reuse-values --set node.uninstall=true")
    assert "uninstall" in await a.init_containers()
    await a.types("helm rollback k8s-rdma --namespace k8s-rdma")
    assert (await a.init_containers(), await a.there(), await a.key()) == (before, installed, key)

    await a.types("helm uninstall k8s-rdma --namespace k8s-rdma")
    assert await a.there() == STAY
    await a.types(install)
    assert (await a.there(), await a.key()) == (installed, key)


async def test_control_plane_with_several_nodes_has_its_extenders_by_helm(administrator: Administrator):
    a = administrator
    (a.directory / "values.yaml").write_text(yaml.safe_dump({"image": {"repository": "registry.example/x"}}))
    await a.types(f"kubectl create namespace {NAMESPACE}")
    (install,) = printed("docs/howto-kubeadm.md", __file__)
    await a.types(install)
    assert (await a.get("service k8s-rdma-extender"))["spec"]["clusterIP"] == "10.96.0.88"
    assert (await a.get("deployment k8s-rdma-extender"))["spec"]["replicas"] == 2
