"""The chart, and its package of a release, as Helm itself renders them."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import k8s_rdma
from chart_values import GIVEN
from deploy.release.artifacts import build_chart
from deploy.release.source import Source
from deploy.rendering.chart import CHART, default_values, documents, parse, render
from documents import ROOT
from helm_program import every_helm, needs_helm

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Json = dict[str, Any]

pytestmark = [needs_helm, every_helm]

RANDOM = {"ed25519.pub", "signing.key", "ca.crt", "ca.key", "tls.crt", "tls.key", "tokens", "caBundle"}
OF_THE_TIME = "k8s-rdma.io/made"
OF_THE_TEXT = "k8s-rdma.io/configuration"
"""A hash of files, which hold the same and are written otherwise."""
IMAGE = {"image": {"repository": "registry.example/k8s-rdma", "digest": f"sha256:{'1' * 64}"}}
OLDEST, NEWEST = "v1.31.0", "v1.37.0"
CASES = [
    *((name, NEWEST) for name in GIVEN),
    *((name, OLDEST) for name in GIVEN if name != "claims"),
]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The chart's package, with an image by digest."""
    source = Source(root=ROOT, version=k8s_rdma.__version__, commit="0" * 40, time=0, address="")
    return build_chart(source, tmp_path, IMAGE["image"])


def run(helm: str, *arguments: str) -> str:
    ended = subprocess.run([helm, *arguments], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def template(helm: str, chart: Path, values: Mapping[str, Any], kubernetes: str, directory: Path) -> Json:
    """Return the objects that Helm renders of the chart, by kind and name."""
    path = directory / "values.yaml"
    path.write_text(json.dumps(values))
    options = ("--namespace=k8s-rdma", f"--values={path}", f"--kube-version={kubernetes}")
    return by_name(parse(run(helm, "template", "k8s-rdma", str(chart), *options)))


def without(value: Any) -> Any:
    """Return the value without the parts that differ each time."""
    if isinstance(value, list):
        return [without(each) for each in value]
    if isinstance(value, dict):
        differing = {*RANDOM, OF_THE_TIME, OF_THE_TEXT}
        return {key: without(each) for key, each in value.items() if key not in differing}
    return value


def by_name(objects: Any) -> Json:
    """Objects by kind and name, with the meaning of files in place of their text."""
    found = {f"{each['kind']} {each['metadata']['name']}": without(each) for each in objects if each}
    for name, each in found.items():
        if name.startswith("ConfigMap "):
            each["data"] = {file: yaml.safe_load(text) for file, text in each["data"].items()}
    return found


@pytest.mark.parametrize(("name", "kubernetes"), CASES)
def test_helm_renders_the_same_objects(helm: str, name: str, kubernetes: str, tmp_path: Path):
    theirs = template(helm, CHART, GIVEN[name], kubernetes, tmp_path)
    assert theirs == by_name(documents(render(GIVEN[name], kubernetes=kubernetes)))


def test_helm_renders_the_package_with_the_image_of_its_release(helm: str, package: Path, tmp_path: Path):
    theirs = template(helm, package, {}, NEWEST, tmp_path)
    assert theirs == by_name(documents(render(IMAGE, kubernetes=NEWEST)))


def test_helm_finds_no_fault_in_the_package(helm: str, package: Path):
    run(helm, "lint", "--strict", str(package))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--set=node.uninstal=true",), "uninstal"),
        (("--set=dra.enabled=true", f"--kube-version={OLDEST}"), "dra.enabled: needs Kubernetes 1.36"),
    ],
    ids=["unknown value", "release without claims"],
)
def test_helm_refuses_values_and_says_which(helm: str, package: Path, options: tuple[str, ...], reason: str):
    command = [helm, "template", str(package), *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert reason in ended.stderr


UMBRELLA = """\
apiVersion: v2
name: platform
version: 1.0.0
dependencies: [{name: k8s-rdma, version: 0.1.0, condition: k8s-rdma.enabled}]
"""


def test_chart_is_part_of_an_umbrella_by_a_condition(helm: str, tmp_path: Path):
    parent = tmp_path / "platform"
    (parent / "charts").mkdir(parents=True)
    (parent / "charts" / "k8s-rdma").symlink_to(CHART)
    (parent / "Chart.yaml").write_text(UMBRELLA)
    (parent / "values.yaml").write_text("global: {imageRegistry: x}\n")
    values: Json = {"enabled": True, "hardware": None, "node": None}
    theirs = template(helm, parent, {"k8s-rdma": values}, NEWEST, tmp_path)
    assert theirs == by_name(documents(render({}, kubernetes=NEWEST)))
    values["enabled"] = False
    assert not template(helm, parent, {"k8s-rdma": values}, NEWEST, tmp_path)


def test_sections_with_only_comments_have_their_defaults(helm: str, tmp_path: Path):
    path = tmp_path / "values.yaml"
    sections = "".join(
        f"{name}:\n  # a comment\n" for name in default_values() if name != "namespacePolicies"
    )
    path.write_text(sections)
    command = ("template", "k8s-rdma", str(CHART), "--namespace=k8s-rdma", f"--kube-version={NEWEST}")
    theirs = by_name(parse(run(helm, *command, f"--values={path}")))
    assert theirs == by_name(documents(render({}, kubernetes=NEWEST)))
