"""What the pages on coming from elsewhere show can be used."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from k8s_rdma.wire.annotation import ANNOTATION, read_pod

DOCS = Path(__file__).resolve().parents[2] / "docs"
ASKED = re.compile(r"`rdma_interfaces_required: '(\[.*?\])'`")


def annotations(page: str) -> list[str]:
    """What pods ask for, in blocks of YAML and in the text."""
    text = (DOCS / page).read_text()
    pods = [yaml.safe_load(each) for each in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    in_blocks = [pod["metadata"]["annotations"].get(ANNOTATION) for pod in pods]
    return [*filter(None, in_blocks), *ASKED.findall(text)]


@pytest.mark.parametrize("page", ["migration-sriov.md", "migration-mellanox-shared.md"])
def test_annotations_of_a_page_ask_for_interfaces(page: str):
    [asked] = annotations(page)
    assert read_pod({ANNOTATION: asked}, strict=True).request.interfaces
