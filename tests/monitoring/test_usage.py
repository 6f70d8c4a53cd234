"""Recorded usage of workloads: the cases of usage.yaml, by Prometheus' own promtool.

The idea of recording a percentile over time beside requests is that of
https://github.com/kubernetes-sigs/kubernetes-mixin/issues/183. Names of pods by kind of controller:
https://kubernetes.io/docs/concepts/workloads/controllers/, and for letters of generated names
https://github.com/kubernetes/kubernetes/pull/50070.
"""

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
