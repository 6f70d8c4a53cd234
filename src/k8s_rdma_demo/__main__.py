"""The demo itself, as init of the namespaces that `launch` made."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.text import Text

from k8s_rdma.cli.console import Page
from k8s_rdma.config.addresses import SERVER_PORT
from k8s_rdma.errors import K8sRdmaError
from k8s_rdma_demo.launch import INIT_PID
from k8s_rdma_demo.outcome import Outcome
from k8s_rdma_demo.overbooking_monitor import OverbookingMonitor
from k8s_rdma_demo.processes import leftover_processes
from k8s_rdma_demo.scenes import POD_TIMEOUT_S, Scenes
from k8s_rdma_demo.world import EXTENDER_URL, Paths, World, packaged

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SCENES: tuple[tuple[str, str], ...] = (
    ("examples", "Pods of examples/: fitting, spread over both PFs, fitting nowhere"),
    ("caps", "Caps, measured"),
    ("contention", "Three reservations on one link, measured"),
    ("live_rates", "A reservation raised while its pod runs, measured"),
    ("claims", "A pod by ResourceClaim, and one that waits for its bandwidth"),
    ("sixty", "Two pods of 60 interfaces each"),
    ("race", "Two pods at the same moment that fit only alone"),
    ("crash", "kill -9 of the agent in the middle of an ADD"),
)
KEEPS_PODS = frozenset({"examples", "contention", "sixty"})
"""Scenes that leave their pods to the next one."""


def main() -> int:
    """Play everything; return the exit status: 0 if no check failed, 130 if interrupted."""
    options = _options()
    signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    page = Page()
    outcome = Outcome()
    world = World(Paths(directory=options.directory, plugins=options.plugins, shim=options.shim))
    status, shown = 1, False
    try:
        pages = _play(world, outcome, page, options)
        outcome.complete, status = True, 0
        if options.keep:
            outcome.show(page)
            shown = True
            _pause(world, outcome, page, pages, options.no_throughput)
    except KeyboardInterrupt:
        page.print("interrupted")
        status = 130
    except K8sRdmaError as error:
        print_error(page, error)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with page.status("Stopping"):
            stubborn = world.stop()
    outcome.check_equal("every process ended on SIGTERM", [], stubborn)
    outcome.check_equal("no process is left", [], leftover_processes())
    if shown:
        outcome.show_verdict(page)
    else:
        outcome.show(page)
        if status == 0:
            page.print("To explore it: make demo ARGS=--keep (k8s-rdma demo --keep); docs/tutorial.md")
    outcome.show_lesson(page)
    if options.json:
        outcome.write(options.json)
    return status or (0 if outcome.passed else 1)


def print_error(page: Page, error: K8sRdmaError) -> None:
    """Print an error as it is: paths and addresses in brackets are no markup."""
    page.print(Text(str(error), style="bold red"))
    page.print(Text(f"  {error.details}"))


def _interrupt(*_: object) -> None:
    """End the scenes at the first Ctrl-C; later ones do not end the cleanup."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _play(world: World, outcome: Outcome, page: Page, options: argparse.Namespace) -> str | None:
    """Play the scenes; return the address of the pages, if they are served."""
    started = time.monotonic()
    scenes = Scenes(world, outcome, examples_directory(), options.no_throughput)
    _step(page, "Two nodes with two PFs of 64 VFs each, and a PF for claims", world.build)
    initial_state = {node.name: world.kernel_state(node) for node in world.nodes}
    _step(page, "Agents, servers, extender; API server, scheduler, kubelets", world.start)
    pages = None if options.web is None else world.start_web(options.web)
    if pages:
        page.print(f"Pages for people: {escape(pages)}")
    with OverbookingMonitor(world.nodes) as monitor:
        try:
            _play_scenes(scenes, page, options.over_time)
        finally:
            _teardown(world, scenes, page)
            outcome.check(
                "no PF of any node was ever promised more than it has",
                not monitor.overcommitted and monitor.reports > 0,
                "at most 100 %",
                ", ".join(
                    [
                        f"at most {monitor.peak_mbps:.0%} in {monitor.reports} reports",
                        *monitor.overcommitted,
                    ]
                ),
            )
            _check_kernel_state(world, outcome, initial_state)
    page.print(f"[dim]{time.monotonic() - started:.0f} s in total[/]")
    return pages


def _play_scenes(scenes: Scenes, page: Page, over_time_s: float) -> None:
    """Play all scenes, or record one link in phases of as many seconds."""
    if over_time_s:
        _step(page, "Three pods on one link over time", lambda: scenes.over_time(over_time_s))
        return
    for name, title in SCENES:
        _step(page, title, getattr(scenes, name))
        if name not in KEEPS_PODS:
            scenes.finish()


def _teardown(world: World, scenes: Scenes, page: Page) -> None:
    """Delete the remaining pods, however the scenes ended; Ctrl-C does not stop this."""
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    world.restart_agents()
    _step(page, "Everything given back", scenes.finish)
    signal.signal(signal.SIGINT, previous)


def _pause(world: World, outcome: Outcome, page: Page, pages: str | None, obstacle: str) -> None:
    """Run some pods, serve Deployments, and say how to look around, until Ctrl-C; pages show traffic."""
    scenes = Scenes(world, Outcome(), examples_directory(), obstacle)
    scenes.examples()
    world.start_workloads()
    scenes.await_published()
    directory = world.paths.directory
    init = (directory / INIT_PID).read_text()
    as_user = "" if os.environ.get("K8S_RDMA_DEMO_ROOT") else " --user --preserve-credentials"
    lines = [
        *([f"Pages for people: {pages}"] if pages else []),
        "It keeps running; Ctrl-C ends it. In another terminal, go in:",
        f"  nsenter --target {init} --mount --net --pid{as_user} bash",
        f"  cd {Path.cwd()}",
        f"  export DEMO={directory} KUBECONFIG={directory}/kubeconfig KUBECACHEDIR={directory}/kubectl",
        f"  export K8S_RDMA_EXTENDER={EXTENDER_URL}",
        "and look around (docs/tutorial.md):",
        "  kubectl get nodes,pods,rdmanodes",
        "  kubectl describe pod fits-nowhere",
        "  kubectl apply --filename examples/workloads/deployment.yaml     # three replicas",
        "  kill -9 $(pgrep --full '[n]ode w2 |/[w]2-')     # w2 dies, and its replicas start on w1",
        f"  {sys.executable} -m k8s_rdma top     # nodes, PFs, and pods that wait",
        f"  {sys.executable} -m k8s_rdma explain pod default/fits-nowhere     # why, PF by PF",
        f"  {sys.executable} -m k8s_rdma who     # which pod has which VF",
        *(f"  curl http://{node.address}:{SERVER_PORT}/getpfs     # {node.name}" for node in world.nodes),
        *(f"  nsenter --net={node.netns} ip link     # {node.name}'s interfaces" for node in world.nodes),
        f"  ls {directory}/logs",
    ]
    with suppress(KeyboardInterrupt), ExitStack() as streams:
        for stream in scenes.streams() if pages else ():
            streams.enter_context(stream)
        page.out("\n".join(lines))  # which a terminal wraps, so that commands can be copied whole
        outcome.show_lesson(page)
        signal.pause()


def _check_kernel_state(world: World, outcome: Outcome, expected: Mapping[str, frozenset[str]]) -> None:
    """Check that every node is as it was before the first pod."""
    outcome.check_equal(
        "ResourceClaims that are left", [], world.kubectl.leftovers("resourceclaims", timeout_s=POD_TIMEOUT_S)
    )
    for node in world.nodes:
        changed = sorted(expected[node.name] ^ world.kernel_state(node))
        outcome.check_equal(f"{node.name}: VFs not home with their name, MAC and rates", [], changed)
        used = [
            vf
            for pf in world.getpfs(node)
            if pf["name"] not in world.pfs_for_claims(node)  # VFs for claims are always shown as in use
            for vf in pf["vfs"]
            if vf["allocated"] or vf["min_tx_rate"]
        ]
        outcome.check_equal(f"{node.name}: /getpfs shows no VF in use", [], used)
        outcome.check_equal(f"{node.name}: no address is leased", [], world.leases(node))
        outcome.check_equal(f"{node.name}: no namespace is left", [], world.leftover_sandboxes(node))


def _step(page: Page, title: str, work: Callable[[], None]) -> None:
    started = time.monotonic()
    with page.status(title):
        work()
    page.print(f"[green]✓[/] {title} [dim]{time.monotonic() - started:.1f} s[/]")


def examples_directory() -> Path:
    """The pods of `examples/`."""
    return packaged("examples", "examples/pods")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--plugins", type=Path, required=True)
    parser.add_argument("--shim", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--web", type=int, help="the descriptor of the listening socket for pages")
    parser.add_argument("--over-time", metavar="S", type=float, help="record one link in phases of S seconds")
    parser.add_argument("--no-throughput", metavar="REASON", default="", help="omit what iperf3 measures")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
