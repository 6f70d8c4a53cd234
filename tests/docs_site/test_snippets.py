"""Blocks of configuration that the pages show can be used: pods, cards, values of the chart, networks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest
import yaml

from k8s_rdma.config.hardware import HardwareConfig
from k8s_rdma.wire.annotation import ANNOTATION, read_pod
from k8s_rdma.wire.cni_request import decode_netconf

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
OF_NETWORKS = {"addresses.md", "cni-install.md"}
"""Pages whose JSON is a network configuration, beside those on doing things and on coming from elsewhere."""
VALUES_SCHEMA = json.loads((ROOT / "deploy" / "chart" / "values.schema.json").read_text())


def blocks(language: str) -> list[tuple[str, str]]:
    """Fenced blocks of a language, with their pages' names."""
    fenced = re.compile(rf"^```{language}\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    return [(path.name, text) for path in PAGES for text in fenced.findall(path.read_text())]


DOCUMENTS: list[tuple[str, dict[str, Any]]] = [
    (name, document) for name, text in blocks("yaml") if isinstance(document := yaml.safe_load(text), dict)
]
NETWORKS = [
    (name, text)
    for name, text in blocks("json")
    if name in OF_NETWORKS or name.startswith(("migration-", "howto-"))
]
PODS = [
    (name, each) for name, each in DOCUMENTS if ANNOTATION in each.get("metadata", {}).get("annotations", {})
]
HARDWARE = [(name, each["hardware"]) for name, each in DOCUMENTS if "hardware" in each]
VALUES = [(name, yaml.safe_load(text)) for name, text in blocks("yaml") if text.startswith("# values.yaml\n")]
IN_TEXT = re.compile(r"`rdma_interfaces_required: '(\[.*?\])'`")


@pytest.mark.parametrize(("page", "pod"), PODS)
def test_pod_asks_for_interfaces(page: str, pod: dict[str, Any]):
    assert read_pod(pod["metadata"]["annotations"], strict=True).request.interfaces, page


@pytest.mark.parametrize(
    "page", [path for path in PAGES if IN_TEXT.search(path.read_text())], ids=lambda p: p.name
)
def test_annotation_in_a_sentence_asks_for_interfaces(page: Path):
    for asked in IN_TEXT.findall(page.read_text()):
        assert read_pod({ANNOTATION: asked}, strict=True).request.interfaces


@pytest.mark.parametrize(("page", "section"), HARDWARE)
def test_hardware_can_be_configured_so(page: str, section: dict[str, Any]):
    assert msgspec.convert(section, HardwareConfig).to_core(), page


@pytest.mark.parametrize(("page", "values"), VALUES)
def test_chart_takes_values(page: str, values: dict[str, Any]):
    assert not list(jsonschema_rs.Draft7Validator(VALUES_SCHEMA).iter_errors(values)), page


@pytest.mark.parametrize(("page", "text"), NETWORKS)
def test_network_can_be_configured_so(page: str, text: str):
    given = {"cniVersion": "1.0.0", "name": "pods", "prevResult": {"ips": []}}
    assert decode_netconf(json.dumps(given | json.loads(text)).encode()).chained, page


def test_pages_show_something():
    assert len(PODS) > 11
    assert len(HARDWARE) > 6
    assert len(VALUES) > 6
    assert len(NETWORKS) > 1
