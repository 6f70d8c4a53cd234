"""The chart as Helm itself renders it, where there is one."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from chart_values import GIVEN
from deploy.rendering.chart import CHART, documents, render
from helm_program import HELM, needs_helm

if TYPE_CHECKING:
    from pathlib import Path

Json = dict[str, Any]

pytestmark = needs_helm

RANDOM = {"ed25519.pub", "signing.key"}
OF_THE_TEXT = "k8s-rdma.io/configuration"
"""A hash of files, which hold the same and are written otherwise."""


def helm(*arguments: str) -> str:
    ended = subprocess.run([str(HELM), *arguments], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def without(value: Any) -> Any:
    """What does not differ each time."""
    if isinstance(value, list):
        return [without(each) for each in value]
    if isinstance(value, dict):
        return {key: without(each) for key, each in value.items() if key not in {*RANDOM, OF_THE_TEXT}}
    return value


def by_name(objects: list[Json]) -> dict[tuple[str, str], Any]:
    """Objects by kind and name, with the meaning of files in place of their text."""
    found = {(each["kind"], each["metadata"]["name"]): without(each) for each in objects}
    for (kind, _), each in found.items():
        if kind == "ConfigMap":
            each["data"] = {name: yaml.safe_load(text) for name, text in each["data"].items()}
    return found


@pytest.mark.parametrize("kubernetes", ["v1.28.0", "v1.36.2"])
@pytest.mark.parametrize("name", GIVEN)
def test_helm_renders_the_same_objects(name: str, kubernetes: str, tmp_path: Path):
    values = tmp_path / "values.yaml"
    values.write_text(json.dumps(GIVEN[name]))
    said = helm(
        "template",
        "k8s-rdma",
        str(CHART),
        "--namespace=k8s-rdma",
        f"--values={values}",
        f"--kube-version={kubernetes}",
    )
    theirs = [each for each in yaml.safe_load_all(said) if each]
    assert by_name(theirs) == by_name(documents(render(GIVEN[name], kubernetes=kubernetes)))


def test_helm_finds_no_fault():
    helm("lint", "--strict", str(CHART))
