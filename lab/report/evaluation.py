"""Several pods on two nodes: the node of each, the pods that it reaches, and at which rate."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING

from lab.report.cluster import LabCluster
from lab.report.flows import Endpoint, Verbs, make_rdma, mtu, pings, rpings, tcp, verbs
from lab.report.frames import tcp_share, write_share
from lab.report.observed import node_of, pod_of
from lab.report.pods import PODS
from lab.report.result import Node, Pair, Pod
from lab.report.steady import least, until_carried
from lab.say import step

if TYPE_CHECKING:
    from lab.machine import Machine

TCP_SECONDS = 4
VERBS_SECONDS = 5


class Evaluation:
    """The evaluation of a started cluster. repeated: measurements that were made again."""

    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...]
    pairs: tuple[Pair, ...]

    def __init__(self, cluster: LabCluster) -> None:
        self._cluster = cluster
        self.repeated = 0

    def run(self) -> None:
        """Place, attach, measure."""
        with step("pods"):
            placed = self._cluster.apply(PODS)
            attached = self._cluster.attached()
            reports = {node.name: node.report() for node in self._cluster.nodes}
            endpoints = {name: node.endpoint(pod) for name, (node, pod) in attached.items()}
            for endpoint in endpoints.values():
                make_rdma(endpoint)
        self.nodes = tuple(node_of(report) for report in reports.values())
        running = {name: (pod, reports[node.name]) for name, (node, pod) in attached.items()}
        self.pods = tuple(pod_of(each, placed[each.name], running.get(each.name)) for each in PODS)
        self.pairs = tuple(self._measure_all(endpoints))

    def _measure_all(self, endpoints: dict[str, Endpoint]) -> list[Pair]:
        caps = {pod.name: pod.interfaces[0].max_tx_rate_mbps for pod in self.pods if pod.node}
        names = list(permutations(caps, 2))
        found = []
        for number, (source, destination) in enumerate(names, 1):
            with step(f"{number} of {len(names)}: {source} to {destination}") as notes:
                pair = self._measure(source, destination, endpoints, caps[source])
                notes.append(f"TCP {pair.tcp_mbps:.2f} Mb/s, verbs {pair.verbs_mbps:.2f} Mb/s of payload")
            found.append(pair)
        return found

    def _measure(self, source: str, destination: str, endpoints: dict[str, Endpoint], cap: int) -> Pair:
        out, to = endpoints[source], endpoints[destination]
        ping, rping, size = pings(out, to), rpings(out, to), mtu(out)
        streams = until_carried(lambda: tcp(out, to, TCP_SECONDS) / tcp_share(size), least(cap))
        writes: list[Verbs] = []
        written = until_carried(lambda: _write(out, to, writes), least(cap))
        self.repeated += len(streams) + len(written) - 2
        best = max(writes, key=lambda each: each.mbps)
        return Pair(
            source=source,
            destination=destination,
            ping=ping,
            rping=rping,
            tcp_mbps=max(streams) * tcp_share(size),
            tcp_mtu=size,
            verbs_mbps=best.mbps,
            verbs_message=best.message,
            path_mtu=best.path_mtu,
        )


def _write(out: Endpoint, to: Endpoint, writes: list[Verbs]) -> float:
    """Measure one RDMA write; return Mb/s of frames."""
    writes.append(verbs(out, to, VERBS_SECONDS))
    return writes[-1].mbps / write_share(writes[-1].message, writes[-1].path_mtu)


def evaluate(machines: tuple[Machine, Machine]) -> Evaluation:
    """Run the evaluation on two machines that have just been started."""
    cluster = LabCluster(*machines)
    with step("two nodes"):
        cluster.start()
    evaluation = Evaluation(cluster)
    evaluation.run()
    return evaluation
