"""The servers of the chart's nodes, by the API server's proxy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from k8s_rdma.cli.service_proxy import ServiceProxy, server_port
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma.wire.report import decode_report, require_node

if TYPE_CHECKING:
    from k8s_rdma.cli.options import Chart
    from k8s_rdma.kube.documents import Documents
    from k8s_rdma.wire.node_metrics import CounterReader
    from k8s_rdma.wire.report import NodeReport


def chart_proxy(api: Documents, chart: Chart) -> ServiceProxy:
    """Return the proxy of the chart's servers, with their token."""
    return ServiceProxy(api=api, namespace=chart.namespace, secret=chart.secret)


@dataclass(slots=True, kw_only=True)
class NodeServers:
    """Reads the servers of nodes. K8sRdmaError if one cannot be read; its port is looked up again then."""

    proxy: ServiceProxy
    _ports: dict[str, str] = field(default_factory=dict)

    def report(self, node: str) -> NodeReport:
        """Return a node's report."""
        report = decode_report(self._get(node, "/v1/node"))
        require_node(report, node)
        return report

    def feed(self, counters: CounterReader, node: str) -> None:
        """Feed a node's metrics to a reader."""
        counters.feed(self._get(node, "/metrics"))

    def port(self, node: str) -> str:
        """Return the port of a node's server, as the proxy names it."""
        if node not in self._ports:
            self._ports[node] = server_port(self.proxy.api, self.proxy.namespace, node)
        return self._ports[node]

    def _get(self, node: str, path: str) -> bytes:
        try:
            return self.proxy.get("pods", self.port(node), path, {})
        except K8sRdmaError:
            self._ports.pop(node, None)  # its pod may have been replaced
            raise


def why_not_read(error: K8sRdmaError) -> str:
    """Return a note that a node's server was not read, and why."""
    details = "".join(f"; {text}" for text in error.details.splitlines())
    return f"its server was not read: {error.message}{details}"
