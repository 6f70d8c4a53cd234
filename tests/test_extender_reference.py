"""docs/extender*.md, docs/annotation.md, examples/scheduler: files can be used, tables are complete."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from extender.world import world
from k8s_rdma.config.agent import AgentConfig
from k8s_rdma.config.devices import HUSTCAT_RESOURCE, MOUNT_RESOURCE, SLOT_RESOURCE
from k8s_rdma.config.extender import ExtenderConfig, NamespaceLimit, ViewsConfig
from k8s_rdma.config.files import load_config
from k8s_rdma.config.tls import NodeTls, TlsConfig
from k8s_rdma.core.request import PfPolicy
from k8s_rdma.core.types import Strategy
from k8s_rdma.errors import Reason
from k8s_rdma.extender.rdmanode_informer import RdmaNodeInformer
from k8s_rdma.wire.annotation import read_pod
from k8s_rdma.wire.extender import MALFORMED_ANNOTATION, NOT_ALLOWED, NOT_ENOUGH_FREE, UNREADABLE_NODE
from k8s_rdma_demo.cluster.command import load_scheduler_config

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples" / "scheduler"
PAGES = (*sorted((ROOT / "docs").glob("extender*.md")), ROOT / "docs" / "annotation.md")
DOCS = "\n".join(page.read_text() for page in PAGES)
SCHEDULERS = sorted(
    path for path in EXAMPLES.glob("*.yaml") if "KubeSchedulerConfiguration" in path.read_text()
)
EXTENDERS = sorted(set(EXAMPLES.glob("*.yaml")) - set(SCHEDULERS))
SNIPPETS = re.findall(r"```yaml\n(.*?)```", DOCS, re.DOTALL)


def table(heading: str) -> list[list[str]]:
    """The cells of the rows of the first table after a heading, without its head."""
    text = DOCS.partition(f"\n## {heading}\n")[2].partition("\n## ")[0].partition("\n# ")[0]
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def named(cell: str) -> list[str]:
    """Return the words in backticks of a cell."""
    return re.findall(r"`([^`]*)`", cell)


@pytest.mark.parametrize("path", SCHEDULERS, ids=lambda path: path.stem)
def test_configuration_of_kube_scheduler_is_one(path: Path):
    [extender] = load_scheduler_config(path).extenders
    assert extender.filter_verb == "rdma_scheduling"
    assert not extender.ignorable
    prefix = extender.url_prefix.partition("8888")[2]
    defaults = ExtenderConfig()
    assert f"{prefix}/{extender.filter_verb}" == defaults.filter_path
    if extender.bind_verb:
        verbs = [extender.prioritize_verb, extender.preempt_verb, extender.bind_verb]
        paths = [defaults.prioritize_path, defaults.preempt_path, defaults.bind_path]
        assert [f"{prefix}/{verb}" for verb in verbs] == paths


def test_policy_file_of_before_registers_the_same_as_filter_only():
    [old] = json.loads((EXAMPLES / "rit-policy.json").read_text())["extenders"]
    [new] = yaml.safe_load((EXAMPLES / "filter-only.yaml").read_text())["extenders"]
    assert old == new


@pytest.mark.parametrize("path", EXTENDERS, ids=lambda path: path.stem)
def test_configuration_of_the_extender_is_one(path: Path):
    load_config(ExtenderConfig, str(path), {})


def test_resource_of_preemption_is_counted_by_all_three():
    [extender] = load_scheduler_config(EXAMPLES / "preemption.yaml").extenders
    resource = load_config(ExtenderConfig, str(EXAMPLES / "extender-crd.yaml"), {}).vf_resource
    assert set(extender.managed_resources) == {resource}


def test_pods_of_every_mode_with_interfaces_come_to_the_extender():
    [extender] = load_scheduler_config(EXAMPLES / "recommended.yaml").extenders
    assert extender.managed_resources == {SLOT_RESOURCE, MOUNT_RESOURCE, HUSTCAT_RESOURCE}


def test_all_example_files_are_described():
    readme = (EXAMPLES / "README.md").read_text()
    assert not [path.name for path in EXAMPLES.iterdir() if path.name not in (*named(readme), "README.md")]


def of(document: dict[str, Any]) -> str:
    """Return the kind of a document of the reference."""
    if document.get("kind") == "KubeSchedulerConfiguration":
        return "scheduler"
    if document.get("kind") == "PriorityClass":
        return "class"
    if "metadata" in document:
        return "pod"
    return "agent" if "publish" in document else "extender"


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_snippet_can_be_used(snippet: str, tmp_path: Path):
    path = tmp_path / "snippet.yaml"
    path.write_text(snippet)
    for document in yaml.safe_load_all(snippet):
        match of(document):
            case "scheduler":
                assert document == yaml.safe_load((EXAMPLES / "recommended.yaml").read_text())
            case "class":
                assert isinstance(document["value"], int)
            case "agent":
                assert load_config(AgentConfig, str(path), {}).publish.anything()
            case "pod":
                assert read_pod(document["metadata"]["annotations"], strict=True).request
            case _:
                load_config(ExtenderConfig, str(path), {})


def shown(default: object) -> str:
    """A default as the table writes it."""
    if default is None or default in ((), ""):
        return "none"
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:g}" if isinstance(default, float) else str(default)


def test_all_settings_are_documented_with_their_defaults():
    fields = msgspec.structs.fields(ExtenderConfig)
    expected = {field.encode_name: shown(field.default) for field in fields}
    told = {}
    for keys, default, _ in table("Configuration"):
        told |= dict.fromkeys(named(keys), "".join(named(default)))
    parts = {"tls": TlsConfig, "views": ViewsConfig, "nodeTls": NodeTls, "limits[]": NamespaceLimit}
    for prefix, kind in parts.items():
        expected |= {f"{prefix}.{f.encode_name}": None for f in msgspec.structs.fields(kind)}
    assert sorted(told) == sorted(expected)
    assert {key: told[key] for key, default in expected.items() if default is not None} == {
        key: default for key, default in expected.items() if default is not None
    }


@pytest.mark.anyio
async def test_all_metrics_are_documented_with_their_types():
    async with world("w1") as w:
        text = w.extender.metrics.render()
        crd = RdmaNodeInformer(w.extender.cache.state, w.api.real, float, stale_s=1, namespace="n")
    shown = dict(re.findall(r"^# TYPE k8s_rdma_extender_(\w+) (\w+)$", text, re.MULTILINE))
    shown |= {name: kind for name, (_, kind, _) in crd.readings().items()}
    rows = table("Metrics")
    assert {name.partition("{")[0]: kind for names, kind, _ in rows for name in named(names)} == shown


def test_all_log_lines_that_warn_are_documented():
    package = ROOT / "src" / "k8s_rdma"
    files = [path for part in ("extender", "http_server", "kube") for path in (package / part).rglob("*.py")]
    files.remove(package / "kube" / "event_recorder.py")  # events of agents and device plugins
    files.remove(package / "kube" / "pod_resources_client.py")  # they alone ask kubelet
    warned = {
        event
        for path in files
        for event in re.findall(r"log\.(?:warning|error)\(\s*\"(\w+)\"", path.read_text())
    }
    told = {event for events, *_ in table("Logs") for event in named(events)}
    assert len(warned) > 20
    assert warned <= told


def test_rights_are_those_that_the_manifests_grant():
    roles = [
        document
        for path in (ROOT / "deploy" / "rbac").glob("*.yaml")
        for document in yaml.safe_load_all(path.read_text())
    ]
    its_own = {
        (each["roleRef"]["kind"], each["roleRef"]["name"])
        for each in roles
        if any(subject["name"] == "k8s-rdma-extender" for subject in each.get("subjects", []))
    }
    granted = {
        (resource, verb)
        for document in roles
        if (document["kind"], document["metadata"]["name"]) in its_own
        for rule in document["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    told = {(named(what)[0], verb) for what, verbs, _ in table("Rights") for verb in named(verbs)}
    assert told == granted


def test_all_strategies_policies_and_sentences_are_documented():
    assert [named(row[0])[0] for row in table("Strategies")] == [strategy.value for strategy in Strategy]
    assert [named(row[0])[0] for row in table("Which PFs together")] == [policy.value for policy in PfPolicy]
    rows = table("Refusals")
    sentences = {named(row[0])[0] for row in rows[:4]}
    assert sentences == {NOT_ENOUGH_FREE, UNREADABLE_NODE, MALFORMED_ANNOTATION, NOT_ALLOWED}
    reasons = {reason for row in rows[6:] for reason in named(row[1])}
    assert reasons <= {reason.value for reason in Reason}
