"""One CNI ADD of 60 interfaces, beside two other ways to the same result.

They run in turn with it in one run and on the same kind of virtual functions: a script of a few lines with
pyroute2, the usual library, that only makes the same kernel changes, with every socket open before the clock
starts; and 60 ADDs of one interface each. IPAM is left out, as is the script's own start.

Budget: 1 ms an interface beyond the script. The ledger's commit is on the disk before the first change, which
the script does without; the time of such a write on this machine is in the note.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from pyroute2 import IPRoute

from bench.cni_plugin import (
    MIN_MBPS,
    PROGRAM,
    QUIET_S,
    Plugin,
    Rounds,
    needs_root,
    netconf,
    synced_write_ms,
)
from k8s_rdma.linux.netns import current_namespace
from k8s_rdma.linux.virtual.pf import BURST, FLOOR, QUANTUM
from k8s_rdma_demo.cluster.cni_runtime import create_namespace_at

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Record
    from e2e.node import Node

COUNT, ROUNDS = 60, 7
BYTES_PER_MBPS = 125_000
FIRST_CLASS = 0x10


class Script:
    """The same changes with pyroute2 on the first VFs, PFs in turn; `undo` is not timed."""

    def __init__(self, netns: Path, stack: ExitStack) -> None:
        self._home = current_namespace()
        stack.callback(os.close, self._home)
        self._away = stack.enter_context(netns.open("rb"))
        self._ipr = stack.enter_context(IPRoute())
        self._inside = stack.enter_context(IPRoute(netns=str(netns)))
        self._links = {link.get("ifname"): link["index"] for link in self._ipr.get_links()}
        pfs = sorted(name.removesuffix("-tx") for name in self._links if name.endswith("-tx"))
        self._vfs = [(pfs[each % len(pfs)], each // len(pfs)) for each in range(COUNT)]

    def do(self) -> None:
        """Set rates, move, bring up."""
        for pf, index in self._vfs:
            self._rate(pf, index, MIN_MBPS * BYTES_PER_MBPS, 2 * MIN_MBPS * BYTES_PER_MBPS)
        for number, (pf, index) in enumerate(self._vfs):
            vf = self._links[f"{pf}v{index}"]
            self._ipr.link("set", index=vf, net_ns_fd=self._away.fileno(), ifname=f"eth{number}")
        for pf, index in self._vfs:
            self._inside.link("set", index=self._links[f"{pf}v{index}"], state="up")

    def undo(self) -> None:
        """Undo all changes."""
        for pf, index in self._vfs:
            name = f"{pf}v{index}"
            self._inside.link("set", index=self._links[name], state="down")
            self._inside.link("set", index=self._links[name], net_ns_fd=self._home, ifname=name)
            self._rate(pf, index, FLOOR, 1000 * BYTES_PER_MBPS + BYTES_PER_MBPS // 2)

    def _rate(self, pf: str, index: int, rate: int, ceil: int) -> None:
        self._ipr.tc(
            "replace-class",
            "htb",
            index=self._links[f"{pf}-tx"],
            handle=0x10000 | FIRST_CLASS + index,
            parent=0x10001,
            rate=rate,
            ceil=ceil,
            burst=BURST,
            cburst=BURST,
            quantum=QUANTUM,
        )


@needs_root
def test_add_of_many_beside_a_script_and_beside_as_many_adds(node: Node, record: Record) -> None:
    netns = [node.directory / "netns" / f"pod{number}" for number in range(COUNT)]
    for each in netns:
        create_namespace_at(each)
    at_once = Plugin(str(PROGRAM), node, netns[0], netconf(node, COUNT, None))
    singly = [
        Plugin(str(PROGRAM), node, each, netconf(node, 1, None), container=f"single{number}")
        for number, each in enumerate(netns)
    ]
    rounds = Rounds()
    with ExitStack() as stack:
        script = Script(netns[0], stack)
        for number in range(ROUNDS + 1):
            if number == 1:
                rounds = Rounds()  # the first one warms up
            time.sleep(QUIET_S)
            rounds.time("script", script.do)
            script.undo()
            time.sleep(QUIET_S)
            rounds.time("at once", lambda: at_once.run("ADD"))
            at_once.run("DEL")
            time.sleep(QUIET_S)
            rounds.time("singly", lambda: [each.run("ADD") for each in singly])
            for each in singly:
                each.run("DEL")
    record(
        f"CNI ADD of {COUNT} interfaces beyond the same changes with pyroute2",
        budget=COUNT,
        measured=rounds.beyond("at once", "script"),
        unit="ms",
        note=f"ADD {rounds['at once']:.0f} ms, script {rounds['script']:.0f} ms; "
        f"a synced write takes {synced_write_ms(node.directory):.1f} ms here",
    )
    record(
        f"{COUNT} CNI ADDs of 1 interface, one after the other",
        budget=None,
        measured=rounds["singly"],
        unit="ms",
        note=f"{rounds['singly'] / rounds['at once']:.2f} times as long as one of {COUNT}",
    )
