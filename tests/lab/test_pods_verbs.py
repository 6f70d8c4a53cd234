"""Verbs between two pods on two nodes over their VFs, in both modes of RDMA's network namespaces.

The RDMA device is soft-RoCE's, which dies when its netdev changes namespace: `soft-roce`, a CNI plugin behind
ours, makes it when the VF is in the pod. That our agent moves an RDMA device is shown if its netdev stays,
in tests/hardware/test_kernel_rdma.py; that it moves both together, as a real VF's, by suite `devices` of
test_suites.py, for which soft-RoCE's devices live on (module parameter `survives_moves=Y`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lab.report.flows import DEPTH, TIMEOUT
from tests.lab.cluster import Cluster, Pod, until
from tests.lab.pods_image import pod

if TYPE_CHECKING:
    from collections.abc import Callable


pytestmark = pytest.mark.long

MODES = ("exclusive", "shared")
BANDWIDTH = ("-F", "-s", "65536", "-n", "100", "-t", str(DEPTH), "-u", TIMEOUT)
SERVING_S = 120
NOT_YET = ("Couldn't connect", "RDMA_CM_EVENT_REJECTED", "RDMA_CM_EVENT_UNREACHABLE")
"""Errors of perftest's and rdma_cm's clients if the server does not listen."""


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest, cluster: Cluster) -> str:
    """Of both nodes; the kernel allows the change while there is no namespace but its own."""
    for node in cluster.nodes.values():
        node.set_rdma_mode(request.param)
    return str(request.param)


def devices(pod: Pod) -> list[str]:
    """The RDMA devices that a program in the pod's container finds."""
    return pod.run("ls", "/sys/class/infiniband", check=False).stdout.split()


def between(server: Pod, client: Pod, serve: tuple[str, ...], ask: tuple[str, ...]) -> str:
    """Return the report of a client's program on its exchange with the server's."""
    serving = server.begin("timeout", str(SERVING_S), *serve, name=f"serve-{serve[0]}-{server.uid}")
    done = until(f"{ask[0]} ends well", lambda: _try(client, ask, serving.running))
    assert serving.wait(SERVING_S) == 0, serving.output()
    return str(done)


def _try(client: Pod, ask: tuple[str, ...], serving: Callable[[], bool]) -> str:
    """Empty while the server does not listen yet."""
    done = client.run("timeout", str(SERVING_S), *ask, check=False, timeout_s=SERVING_S + 30)
    if done.returncode == 0:
        return done.stdout
    said = done.stdout + done.stderr
    assert serving(), said
    assert any(why in said for why in NOT_YET), said
    return ""


def test_verbs_between_pods_of_two_nodes(cluster: Cluster, mode: str) -> None:
    here, there = cluster.start(
        *(pod(f"verbs-{name}", {"max_tx_rate": 200}, node=name) for name in cluster.nodes)
    )
    ours, theirs = (f"{each.sandbox[:8]}_rdma0" for each in (here, there))
    for each, device in ((here, ours), (there, theirs)):
        assert device in devices(each)
        if mode == "exclusive":
            assert devices(each) == [device]
    address = here.addresses()["rdma0"]
    for program in ("ib_write_bw", "ib_send_bw"):
        said = between(
            here,
            there,
            (program, "-d", ours, *BANDWIDTH),
            (program, "-d", theirs, *BANDWIDTH, address),
        )
        (line,) = (each.split() for each in said.splitlines() if each.startswith(" 65536"))
        assert line[1] == "100", said
        assert float(line[3]) > 0, said
    rping = ("-C", "3", "-v")
    said = between(
        here, there, ("rping", "-s", "-a", address, *rping), ("rping", "-c", "-a", address, *rping)
    )
    assert said.count("ping data: rdma-ping-") == 3, said
