"""examples/workloads: templates have annotations alone, which extender, policies and injection take."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from admission import policy
from injection_cases import SLOT
from k8s_rdma.wire.annotation import read_pod
from webhook.test_injection import injected
from workloads import FILES, FOLDER, pods, templates, workload

if TYPE_CHECKING:
    from pathlib import Path

NEEDS = ("schedulerName", SLOT, "rdma_interfaces_required")
"""Words that a file has to do without: injection adds them, and linters want a domain."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_template_has_its_annotation_alone(path: Path):
    assert not [each for each in NEEDS if each in path.read_text()]
    document = workload(path)
    asking = [pod for _, pod in templates(document) if "annotations" in pod.get("metadata", {})]
    assert asking
    for template in asking:
        annotations = template["metadata"]["annotations"]
        assert read_pod(annotations, strict=True).request.interfaces
        assert all(isinstance(text, str) for text in annotations.values())
    assert not policy("annotation").refusals(document)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_pod_with_interfaces_gets_one_slot_and_its_scheduler(path: Path):
    for pod in pods(workload(path)):
        made = injected(pod)
        asks = "annotations" in pod["metadata"]
        assert made["spec"].get("schedulerName") == ("rdma-scheduler" if asks else None)
        assert json.dumps(made["spec"]).count(SLOT) == 2 * asks, "in limits and requests"
        nccl = "k8s-rdma.io/nccl" in pod["metadata"].get("annotations", {})
        assert json.dumps(made["spec"]).count("NCCL_NET") == nccl


def test_all_example_files_are_described():
    readme = (FOLDER.parent / "README.md").read_text()
    assert not [path.name for path in FILES if f"`{path.name}`" not in readme]
