"""A node is uninstalled when its pods have given everything back, and not before."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from typer.testing import CliRunner

from e2e.processes import pod
from k8s_rdma.cli.main import app

if TYPE_CHECKING:
    from e2e.node import Node


def uninstall(node: Node) -> str:
    """Return its output, or the reason if it refuses."""
    below = {
        "--run-dir": node.run_dir,
        "--state-dir": node.directory / "state",
        "--bin-dir": node.directory / "bin",
        "--conf-dir": node.directory / "net.d",
        "--cdi-dir": node.directory / "cdi",
        "--grace-s": 0,
    }
    words = [str(word) for option in below.items() for word in option]
    done = CliRunner().invoke(app, ["uninstall", *words])
    return done.stdout if done.exception is None else f"{done.stdout}{done.exception}"


def test_node_is_uninstalled_when_its_pods_have_ended(node: Node) -> None:
    runtime = node.runtime(chained=True)
    sandbox = asyncio.run(runtime.add(pod("a", {"min_tx_rate": 100})))
    assert "pods hold interfaces: default/a; end them, and run this again (nothing was removed)" in (
        uninstall(node)
    )
    node.kill_agent()
    assert "while no agent runs, nothing comes back: start it" in uninstall(node)
    node.start_agent()
    asyncio.run(runtime.delete(sandbox))
    assert node.leftovers() == {}
    assert "left: the agent runs" in uninstall(node)
    assert node.run_dir.exists()
    node.kill_agent()
    assert f"removed {node.run_dir}\n" in uninstall(node)
    assert not node.run_dir.exists()
    node.start_agent()  # as after another installation
    asyncio.run(runtime.delete(asyncio.run(runtime.add(pod("b", {"min_tx_rate": 100})))))
    assert node.leftovers() == {}
