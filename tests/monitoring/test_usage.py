"""What is recorded of workloads: the cases of usage.yaml, by Prometheus' own promtool."""

from __future__ import annotations

from pathlib import Path

from monitoring.test_alerts import needs_promtool, promtool

CASES = Path(__file__).with_name("usage.yaml")
RULES = Path(__file__).parents[2] / "deploy" / "monitoring" / "usage.yaml"


@needs_promtool
def test_promtool_finds_no_fault():
    promtool("check", "rules", "--lint=all", "--lint-fatal", RULES)


@needs_promtool
def test_records_have_known_answers():
    promtool("test", "rules", CASES)
