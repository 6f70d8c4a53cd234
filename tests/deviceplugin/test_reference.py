"""docs/device-plugin.md: its files can be used; docs/device-plugin-reference.md: its tables are complete."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
import yaml

from k8s_rdma.config.devices import (
    ClaimsConfig,
    DevicePluginConfig,
    ExactResource,
    ExclusiveResource,
    MountResource,
    Selector,
    SharedResource,
    SharedSelector,
)

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "device-plugin.md"
REFERENCE = ROOT / "docs" / "device-plugin-reference.md"
PACKAGE = ROOT / "src" / "k8s_rdma"
MODES = {
    "exact": ExactResource,
    "exclusive": ExclusiveResource,
    "shared": SharedResource,
    "mount": MountResource,
}


def tables(heading: str) -> list[list[list[str]]]:
    """The cells of the rows of each table below a heading, without their heads."""
    text = REFERENCE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = re.findall(r"((?:^\|.*\n)+)", text, re.MULTILINE)
    return [
        [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[2:]]
        for table in found
    ]


def named(cell: str) -> list[str]:
    """Return the parts of a cell in backticks."""
    return re.findall(r"`([^`]*)`", cell)


def keys(kind: type[msgspec.Struct]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(kind)}


def modes_by_key(table: list[list[str]]) -> dict[str, set[str]]:
    told: dict[str, set[str]] = {}
    for names, modes, *_ in table:
        meant = {"all": set(MODES), "both": {"exclusive", "shared"}}.get(modes, set(named(modes)))
        told |= dict.fromkeys(named(names), meant)
    return told


def test_all_settings_are_documented():
    settings, claims, resources, selectors = tables("Configuration")
    assert {name for row in settings for name in named(row[0])} == keys(DevicePluginConfig)
    assert {name for row in claims for name in named(row[0])} == keys(ClaimsConfig)
    expected = {
        key: {mode for mode, kind in MODES.items() if key in {"mode", *keys(kind)}}
        for key in {"mode"}.union(*map(keys, MODES.values()))
    }
    assert modes_by_key(resources) == expected
    assert modes_by_key(selectors) == {
        key: {"exclusive", "shared"} if key in keys(Selector) else {"shared"} for key in keys(SharedSelector)
    }


def test_defaults_of_settings_are_documented():
    fields = {field.encode_name: field.default for field in msgspec.structs.fields(DevicePluginConfig)}
    for key in ("kubeletDir", "podResources", "runDir"):
        assert [key, fields[key]] in [[*named(row[0]), *named(row[1])] for row in tables("Configuration")[0]]


def test_all_metrics_are_documented():
    texts = [path.read_text() for path in (PACKAGE / "deviceplugin").rglob("*.py")]
    shown = {name for text in texts for name in re.findall(r"\{_?PREFIX\}(\w+)", text)}
    [told] = tables("Metrics")
    assert shown
    assert {name for row in told for name in named(row[0])} == {
        f"k8s_rdma_device_plugin_{name}" for name in shown
    }


def test_all_log_lines_that_warn_are_documented():
    files = [*(PACKAGE / "deviceplugin").rglob("*.py"), PACKAGE / "state_reader.py"]
    warned = {
        event
        for path in files
        for event in re.findall(r"_log\.(?:warning|error|exception)\(\s*\"(\w+)\"", path.read_text())
    }
    [told] = tables("Log")
    assert warned <= {name for row in told for name in named(row[0])}


@pytest.mark.parametrize("snippet", re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(), re.DOTALL))
def test_snippet_is_yaml_of_a_pod(snippet: str):
    assert {"metadata", "spec"} <= yaml.safe_load(snippet).keys()
