"""The page of a node's metrics: what the server says of them in its own exposition."""

from __future__ import annotations

import re

from docs_site.reference.tables import code, table
from k8s_rdma.server.metrics import render_metrics
from k8s_rdma.server.traffic_metrics import render_age, render_traffic
from k8s_rdma.wire.rest import NodeReport
from k8s_rdma.wire.state import Counters, ScanCounts

HEAD = """# Metrics

Of a node, made of the code: `GET /metrics` on port 54005. Labels, and how often traffic is looked at:
[a node in operation](../operating-a-node.md#metrics). The metrics of other processes are on pages that
tests hold complete: [extender](../extender.md#metrics), port 8888;
[device plugin](../device-plugin.md#metrics), port 54006.
"""

_FAMILY = re.compile(r"^# HELP (\S+) (.*)\n# TYPE \S+ (\w+)$", re.MULTILINE)


def metrics_page() -> str:
    """Every family with its type."""
    rows = [[code(name), kind, help_text] for name, help_text, kind in _FAMILY.findall(_exposition())]
    return f"{HEAD}\n{table(('metric', 'type', 'meaning'), rows)}"


def _exposition() -> str:
    """Of a node without PFs: families are there without samples as well."""
    report = NodeReport(node="w1", generation="0.0", ledger="ok", pfs=())
    scans = ScanCounts(total=0, failed=0, seconds=0)
    counters = Counters(node="w1", age_s=0, failed_samples=0, scans=scans)
    return b"".join([render_metrics(report), render_traffic(counters), render_age(counters, 0)]).decode()
