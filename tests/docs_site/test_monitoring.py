"""The dashboard and the alerts name metrics that there are, and docs/howto-monitoring.md names the alerts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from deploy.rendering.chart import documents, render
from docs_site.reference.metrics import metrics_page
from docs_site.reference.tables import rows_by_name, section

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
DASHBOARDS = sorted((MONITORING / "dashboards").glob("*.json"))
METRIC = re.compile(r"(?<![:\w])k8s_rdma_\w+")
RECORDED = re.compile(r"\w+:k8s_rdma_\w+:\w+")


def metrics() -> set[str]:
    """Of all processes."""
    return {name for name, _ in rows_by_name(metrics_page())}


def missing(expressions: list[str]) -> set[str]:
    """Return PromQL's metrics that are not exposed or recorded; a histogram's buckets are the histogram's."""
    used = {name.removesuffix("_bucket") for each in expressions for name in METRIC.findall(each)}
    assert used
    recorded = {name for each in expressions for name in RECORDED.findall(each)}
    return (used - metrics()) | (recorded - {rule["record"] for rule in usage_rules()})


def usage_rules() -> list[dict[str, str]]:
    [group] = yaml.safe_load((MONITORING / "usage.yaml").read_text())["groups"]
    return list(group["rules"])


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboard_shows_metrics_that_there_are(path: Path):
    dashboard = json.loads(path.read_text())
    targets = [target for panel in dashboard["panels"] for target in panel["targets"]]
    assert not missing([target["expr"] for target in targets])
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    variables = {each["name"]: each for each in dashboard["templating"]["list"]}
    assert not missing([each["query"] for each in variables.values() if each["type"] == "query"])
    used = set(re.findall(r"\$(\w+)", "".join(target["expr"] for target in targets)))
    assert used | {"datasource"} == variables.keys()


def test_chart_has_all_dashboards_and_alerts_as_they_are():
    made = documents(render({"monitoring": {"dashboards": True, "alerts": True, "usage": True}}))
    [dashboards] = [each for each in made if each["metadata"]["name"] == "k8s-rdma-dashboards"]
    assert {name: json.loads(text) for name, text in dashboards["data"].items()} == {
        f"k8s-rdma-{path.name}": json.loads(path.read_text()) for path in DASHBOARDS
    }
    rules = {each["metadata"]["name"]: each["spec"] for each in made if each["kind"] == "PrometheusRule"}
    files = {"k8s-rdma": "alerts.yaml", "k8s-rdma-usage": "usage.yaml"}
    assert rules == {name: yaml.safe_load((MONITORING / file).read_text()) for name, file in files.items()}


def test_usage_is_recorded_of_metrics_that_there_are_as_documented():
    assert not missing([rule["expr"] for rule in usage_rules()])
    told = section((ROOT / "docs" / "howto-monitoring.md").read_text(), "Right-sizing")
    assert [name for name, _ in rows_by_name(told)] == [rule["record"] for rule in usage_rules()]


def test_alerts_use_existing_metrics_and_are_all_documented():
    [group] = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]
    assert not missing([rule["expr"] for rule in group["rules"]])
    told = section((ROOT / "docs" / "howto-monitoring.md").read_text(), "Alerts")
    assert [name for name, _ in rows_by_name(told)] == [rule["alert"] for rule in group["rules"]]
