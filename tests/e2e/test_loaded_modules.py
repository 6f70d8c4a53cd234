"""The modules that a node's processes have loaded once they serve, because each is memory on all nodes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from k8s_rdma_demo.cluster.command import write_kubeconfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from e2e.node import Node

COMMAND_LINE = {"h2.connection", "pydantic", "pygments", "rich.console", "shellingham", "typer"}
"""Modules of libraries that processes do not need, though other libraries load them if they can."""

CLIENT = {"httpcore2", "httpx2", "lightkube"}
KUBELET = {"google", "grpc"}
PAGES = {"jinja2"}
SERVING = {"httptools", "prometheus_client", "uvicorn", "uvloop"}
UNNEEDED = {
    "agent": {*CLIENT, *KUBELET, *PAGES, *SERVING, "click"},
    "agent with credentials": {*KUBELET, *PAGES, *SERVING, "click"},
    "server": {*CLIENT, *KUBELET, *PAGES, "sqlite3"},
    "device-plugin": {*CLIENT, *PAGES, "sqlite3"},
}
READY = {"agent": "agent_ready", "server": "server_ready", "device-plugin": "serving"}
IMPORT = re.compile(r"^import time: .*\| +(?P<module>[\w.]+)$", re.MULTILINE)


@pytest.mark.parametrize("case", sorted(UNNEEDED))
def test_process_that_serves_has_loaded_no_library_of_another_purpose(
    case: str, make_node: Callable[[int], Node]
) -> None:
    node = make_node(4)
    node.enter = ["env", "PYTHONPROFILEIMPORTTIME=1"]  # each module in a line of the process's log
    process, _, credentials = case.partition(" with ")
    log = node.directory / f"{process}.log"
    node.start(process, node.config(process, documents(node, bool(credentials))[process]))
    node.wait(process, lambda: f'"{READY[process]}"' in log.read_text())
    loaded = set(IMPORT.findall(log.read_text()))
    assert {"k8s_rdma", "msgspec", *(CLIENT if credentials else ())} <= loaded
    assert loaded & {*COMMAND_LINE, *UNNEEDED[case]} == set()


def documents(node: Node, credentials: bool) -> dict[str, dict[str, object]]:
    """Return the configuration of each process; no server listens at the address of the credentials."""
    kubeconfig = write_kubeconfig(node.directory / "kubeconfig", "http://127.0.0.1:9")
    return {
        "agent": node.document() | ({"kubeconfig": str(kubeconfig)} if credentials else {}),
        "server": {"node": "w1", "runDir": str(node.run_dir), "listen": "127.0.0.1"},
        "device-plugin": {
            "resources": [{"mode": "exact", "count": 1}],
            "kubeletDir": str(node.directory),
            "runDir": str(node.run_dir),
            "listen": "127.0.0.1",
        },
    }
