"""The chart and the manifests of a release (`make release-check`), in a real API server."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from cluster.real import obstacle, real
from cluster.server_side_apply import Applied
from cluster.test_manifests import NAMESPACE, NEWEST
from cluster.typed import Shell
from deploy.release.verify import Release, image_digest
from deploy.rendering.chart import documents, render
from helm_program import every_helm, needs_helm

if TYPE_CHECKING:
    from cluster.control_plane import Json

FOLDER = os.environ.get("K8S_RDMA_RELEASE")
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(FOLDER is None, reason="needs a release: make release release-check"),
    pytest.mark.skipif(bool(obstacle()), reason=f"no real cluster: {obstacle()}"),
]


@pytest.fixture
def release() -> Release:
    return Release(Path(str(FOLDER)))


@pytest.fixture
def unpacked(release: Release, tmp_path: Path) -> Path:
    """The chart and the manifests, as tar(1) unpacks them."""
    for pattern in ("k8s-rdma-[0-9]*.tgz", "k8s-rdma-manifests-*.tar.gz"):
        with tarfile.open(release.only(pattern)) as archive:
            archive.extractall(tmp_path, filter="data")
    return tmp_path


def images(objects: list[Json]) -> set[str]:
    """Our images in the objects."""
    pods = [each["spec"]["template"]["spec"] for each in objects if "template" in each.get("spec", {})]
    found = [each["image"] for pod in pods for each in (*pod.get("initContainers", ()), *pod["containers"])]
    return {image for image in found if "kube-scheduler" not in image}


async def test_api_server_takes_the_chart_of_a_release(release: Release, unpacked: Path, tmp_path: Path):
    chart = unpacked / "k8s-rdma"
    repository = yaml.safe_load((chart / "values.yaml").read_text())["image"]["repository"]
    async with real(tmp_path) as plane, plane.client() as http:
        applied = Applied(http)
        await applied.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        major, minor = plane.release
        definitions = [yaml.safe_load(path.read_text()) for path in sorted((chart / "crds").iterdir())]
        objects = documents(render({}, chart=chart, kubernetes=f"v{major}.{minor}.0"))
        for each in (*definitions, *objects):
            await applied.apply(each)
        digest = image_digest(release)
        assert images(objects) == {f"{repository}@{digest}" if digest else f"{repository}:{release.version}"}
        if plane.release >= NEWEST:
            files = sorted((unpacked / f"k8s-rdma-manifests-{release.version}").rglob("[!k]*.yaml"))
            manifests = [each for path in files for each in yaml.safe_load_all(path.read_text()) if each]
            for each in manifests:
                await applied.apply(each, dry_run=True)
            assert images(manifests) == images(objects)


@needs_helm
@every_helm
async def test_helm_installs_the_chart_of_a_release(release: Release, tmp_path: Path, helm: str):
    async with real(tmp_path) as plane:
        shell = Shell.at(plane, tmp_path, directory=tmp_path)
        package = release.only("k8s-rdma-[0-9]*.tgz")
        await shell.types(f"{helm} install k8s-rdma {package} --namespace {NAMESPACE} --create-namespace")
