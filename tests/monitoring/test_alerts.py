"""When the alerts fire, and in which words: the cases of alerts.yaml, by Prometheus' own promtool."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

CASES = Path(__file__).with_name("alerts.yaml")
RULES = Path(__file__).parents[2] / "deploy" / "monitoring" / "alerts.yaml"
PROMTOOL = shutil.which("promtool")

needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="no promtool: needs Debian's prometheus")


def promtool(*arguments: str | Path) -> None:
    ended = subprocess.run([str(PROMTOOL), *arguments], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@needs_promtool
def test_promtool_finds_no_fault():
    promtool("check", "rules", "--lint=all", "--lint-fatal", RULES)


@needs_promtool
def test_alerts_fire_when_they_should_in_these_words():
    promtool("test", "rules", CASES)


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not():
    cases = [case for test in yaml.safe_load(CASES.read_text())["tests"] for case in test["alert_rule_test"]]
    alerts = {rule["alert"] for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]}
    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == alerts
    assert {case["alertname"] for case in cases if not case.get("exp_alerts")} == alerts
