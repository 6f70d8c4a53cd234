"""CNI ADD and DEL through the real executable and agent, beside the kernel operations that they need.

Budget of ADD: 5 ms plus 1 ms an interface beyond the kernel's own work, IPAM apart; and 1.15 times that work
for one interface, 1.3 times for its DEL. The kernel's own work is that of a script that knows everything in
advance, without checks: it runs the executable, as every runtime does, for the versions that it knows by
itself; and on the same virtual functions it programs each one's rates, moves and renames it, and brings it
up, or takes it down, moves it home and resets its rates, with every socket open before the clock starts. The
time to program a rate of a virtual function (`Shaper.set_rate`) is that of the virtual hardware, the same for
both.

An ADD also syncs its receipt to disk before it changes anything, once. The script has no such write: how long
one takes beside is in the note, because disks differ more than kernels.

Both spend most of their time asleep: after each move the kernel waits until every callback has run that RCU
has queued by then (`rcu_barrier` in `__dev_change_net_namespace`, net/core/dev.c, Linux 6.18), which takes a
grace period, some 10 ms here. A process that begins or ends queues callbacks, and so begins one; a move some
milliseconds later waits for the rest of it and for the next one as well. A script without a process takes 3
to 5 ms less for the same move. Grace periods vary from round to round by more than the budget, and with all
else on the machine. So the figure is the median of each ADD less the bare work just before it, and beside it
stands the processor time of both, which does not depend on that.

ADD and DEL are timed from the spawn of the executable to its end, as the runtime sees them. All take turns in
one run, in a namespace that stays, and each begins after the agent has looked at the changes of the last one.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.cni_plugin import (
    MIN_MBPS,
    PLUGINS,
    PROGRAM,
    QUIET_S,
    Plugin,
    Rounds,
    needs_root,
    netconf,
    synced_write_ms,
)
from k8s_rdma.core.step import VfRate
from k8s_rdma.linux.netlink.rtnl import Rtnl, answering_for_itself, in_namespace, named
from k8s_rdma.linux.netns import current_namespace
from k8s_rdma.linux.virtual.pf import Shaper
from k8s_rdma.linux.virtual.topology import pfs_among
from k8s_rdma_demo.cluster.cni_runtime import create_namespace_at

if TYPE_CHECKING:
    from conftest import Record
    from e2e.node import Node

ROUNDS = {1: 20, 60: 7}
FIXED_MS, INTERFACE_MS = 5, 1
RATIOS = {("ADD", 1): 1.15, ("DEL", 1): 1.3}


class Bare:
    """The kernel's own work on the first `count` VFs, PFs in turn, and its way back."""

    def __init__(self, netns: Path, count: int, stack: ExitStack) -> None:
        self._home = current_namespace()
        stack.callback(os.close, self._home)
        self._away = stack.enter_context(netns.open("rb"))
        self._rtnl = stack.enter_context(Rtnl())
        self._inside = stack.enter_context(Rtnl(self._away.fileno()))
        self._shaper = Shaper(self._rtnl)
        links = {link.name: link.index for link in self._rtnl.links()}
        pfs = tuple(pfs_among(self._rtnl.links()).values())
        self._vfs = [(pfs[each % len(pfs)], each // len(pfs)) for each in range(count)]
        self._links = [links[pf.vf_name(index)] for pf, index in self._vfs]
        self._schedulers = {pf.name: links[pf.scheduler_name] for pf in pfs}

    def do(self) -> None:
        """Set rates, move, bring up."""
        for pf, index in self._vfs:
            rate = VfRate(index, MIN_MBPS, 2 * MIN_MBPS)
            self._shaper.set_rate(pf, self._schedulers[pf.name], rate, VfRate(index))
        for each, link in enumerate(self._links):
            self._rtnl.change(link, "move", in_namespace(self._away.fileno()), named(f"eth{each}"))
        for link in self._links:
            self._inside.change(link, "up", answering_for_itself(), up=True)

    def undo(self) -> None:
        """Take down, move home, reset rates."""
        for link, (pf, index) in zip(self._links, self._vfs, strict=True):
            home = (in_namespace(self._home), named(pf.vf_name(index)))
            self._inside.change(link, "home", *home, up=False)
            free = VfRate(index, MIN_MBPS, 2 * MIN_MBPS)
            self._shaper.set_rate(pf, self._schedulers[pf.name], VfRate(index), free)


def processor_ms(process: int) -> float:
    """Return the time of all threads of a process, ms (Linux `Documentation/scheduler/sched-stats.rst`)."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e6


@needs_root
@pytest.mark.parametrize("count", ROUNDS)
def test_add_beyond_the_kernels_own_work(node: Node, record: Record, count: int) -> None:
    netns = node.directory / "netns" / "pod"
    create_namespace_at(netns)
    ours = Plugin(str(PROGRAM), node, netns, netconf(node, count, None))
    rounds = Rounds()
    with ExitStack() as stack:
        bare = Bare(netns, count, stack)
        for number in range(ROUNDS[count] + 1):
            if number == 1:
                rounds = Rounds()  # the first one warms up
            time.sleep(QUIET_S)  # both begin on a quiet kernel: a grace period is shorter right after another
            used = time.thread_time()
            rounds.time("kernel", lambda: (ours.run("VERSION"), bare.do()))
            rounds.add("kernel, processor", (time.thread_time() - used) * 1e3)
            rounds.time("kernel's way back", lambda: (ours.run("VERSION"), bare.undo()))
            for command in ("ADD", "DEL"):
                used = processor_ms(node.agent.pid)
                rounds.time(command, lambda command=command: ours.run(command))
                rounds.add(f"{command}, processor", processor_ms(node.agent.pid) - used)
    interfaces = "1 interface" if count == 1 else f"{count} interfaces"
    synced_ms = synced_write_ms(node.directory)
    record(
        f"CNI ADD of {interfaces} beyond the kernel's own work",
        budget=FIXED_MS + INTERFACE_MS * count,
        measured=rounds.beyond("ADD", "kernel"),
        unit="ms",
        note=f"ADD {rounds['ADD']:.1f} ms, kernel's own work {rounds['kernel']:.1f} ms, a synced write "
        f"{synced_ms:.1f} ms",
    )
    for command, floor in (("ADD", "kernel"), ("DEL", "kernel's way back")):
        least, middle, most = rounds.ratios(command, floor)
        record(
            f"CNI {command} of {interfaces}, times the kernel's own work",
            budget=RATIOS.get((command, count)),
            measured=middle,
            unit="times",
            note=f"{least:.2f} to {most:.2f} in {ROUNDS[count]} rounds; the kernel's {rounds[floor]:.1f} ms",
        )
    record(
        f"CNI ADD of {interfaces}, the agent's processor time beyond the kernel's own work",
        budget=None,
        measured=rounds.beyond("ADD, processor", "kernel, processor"),
        unit="ms",
        note="with the look at the hardware that follows it",
    )
    record(
        f"CNI DEL of {interfaces}, the agent's processor time",
        budget=None,
        measured=rounds["DEL, processor"],
        unit="ms",
        note="with the look at the hardware that follows it",
    )
    record(f"CNI DEL of {interfaces}", budget=None, measured=rounds["DEL"], unit="ms")


@needs_root
@pytest.mark.parametrize("count", ROUNDS)
def test_add_with_host_local(node: Node, record: Record, count: int) -> None:
    host_local = shutil.which("host-local", path=PLUGINS)
    if host_local is None:
        pytest.skip("no CNI plugin host-local: needs Debian's containernetworking-plugins")
    netns = node.directory / "netns" / "pod"
    create_namespace_at(netns)
    ipam = {
        "type": "host-local",
        "ranges": [[{"subnet": "10.56.0.0/24"}]],
        "dataDir": str(node.directory / "leases"),
    }
    conf = netconf(node, count, ipam)
    ours, alone = Plugin(str(PROGRAM), node, netns, conf), Plugin(host_local, node, netns, conf)
    names = [f"eth{index}" for index in range(count)]

    def each(command: str) -> None:
        for name in names:
            alone.run(command, name)

    rounds = Rounds()
    for _ in range(ROUNDS[count] // 2):
        for what, work in {"alone": each, "ours": ours.run}.items():
            for command in ("ADD", "DEL"):
                rounds.time(f"{command} {what}", lambda work=work, command=command: work(command))
    interfaces = "1 interface" if count == 1 else f"{count} interfaces"
    for command in ("ADD", "DEL"):
        record(
            f"CNI {command} of {interfaces} with host-local",
            budget=None,
            measured=rounds[f"{command} ours"],
            unit="ms",
            note=f"host-local alone, as often, {rounds[f'{command} alone']:.1f} ms",
        )
