"""The first files that strangers meet: README.md, CHANGELOG.md, and those that a code host reads."""

from __future__ import annotations

import json
import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.rendering.chart import documents, render
from k8s_rdma.wire.annotation import read_pod

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
SET_UP = "apt-get update && apt-get install --yes gcc git libc6-dev make openssh-client python3"
"""The packages that README.md asks of a machine, git for the checkout, and ssh-keygen for a release."""


def steps(workflow: Path) -> list[dict[str, str]]:
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


def test_readme_is_read_in_a_few_minutes():
    assert len(README.splitlines()) <= 150


def test_changelog_has_at_most_80_lines_for_every_version():
    parts = re.split(r"^## \[([\d.]+|Unreleased)\]", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    lengths = {
        version: len(text.splitlines()) for version, text in zip(parts[1::2], parts[2::2], strict=True)
    }
    assert lengths
    assert not {version: length for version, length in lengths.items() if length > 80}


def test_pod_of_the_readme_gets_its_interfaces():
    [pod] = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)]
    rates = [
        (interface.min_tx_rate_mbps, interface.max_tx_rate_mbps)
        for interface in read_pod(pod["metadata"]["annotations"], strict=True).request.interfaces
    ]
    assert rates == [(5000, 10000), (2000, 0)]


def test_command_of_the_readme_installs_the_chart():
    [command] = re.findall(r"^helm install .*?(?=\n```)", README, re.DOTALL | re.MULTILINE)
    words = shlex.split(command.replace("\\\n", " "))
    values: dict[str, Any] = {}
    for option, word in pairwise(words):
        if option in {"--set", "--set-json"}:
            path, _, text = word.partition("=")
            *folders, name = path.split(".")
            section = values
            for folder in folders:
                section = section.setdefault(folder, {})
            section[name] = json.loads(text) if option == "--set-json" else text
    made = documents(render(values))
    images = {
        container["image"]
        for document in made
        if document["kind"] == "DaemonSet"
        for container in document["spec"]["template"]["spec"]["containers"]
    }
    assert {image.partition(":")[0] for image in images} == {"registry.example/k8s-rdma"}
    assert "10.55.0.0/16" in json.dumps(made)
    assert "enp4s0f1" in json.dumps(made)


def test_workflows_only_run_targets_of_make():
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = [step["run"] for workflow in WORKFLOWS for step in steps(workflow) if "run" in step]
    called = [command.split()[1] for command in commands if command != SET_UP and command.startswith("make ")]
    assert len(called) == len([command for command in commands if command != SET_UP])
    [matrix] = [
        job["strategy"]["matrix"]["target"]
        for workflow in WORKFLOWS
        for job in yaml.safe_load(workflow.read_text())["jobs"].values()
        if "strategy" in job
    ]
    assert {*called, *(target.split()[0] for target in matrix)} - {"${{"} <= targets


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow_pins_its_actions_and_may_only_read(workflow: Path):
    uses = re.findall(r"uses: (.+)", workflow.read_text())
    assert uses
    assert not [each for each in uses if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)]
    assert yaml.safe_load(workflow.read_text())["permissions"] == {"contents": "read"}


@pytest.mark.parametrize(
    "form", [form for form in FORMS if form.stem != "feature"], ids=lambda path: path.stem
)
def test_form_asks_for_the_report_of_a_node(form: Path):
    assert "k8s-rdma gather --report" in form.read_text()
