"""`k8s-rdma gather`: this machine as a file, and what to do with it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from k8s_rdma.errors import K8sRdmaError, visible
from k8s_rdma.linux.discovery.gather import gather
from k8s_rdma.linux.discovery.netlink_queries import NetlinkQueries
from k8s_rdma.linux.sysfs import Sysfs
from k8s_rdma.wire.machine import encode_machine

if TYPE_CHECKING:
    from pathlib import Path


def gather_machine(output: Path | None) -> None:
    """Write the machine to a file or to standard output, and a line of advice to standard error.

    K8sRdmaError when it cannot be written, or the kernel cannot be asked anything.
    """
    with NetlinkQueries() as queries:
        machine = gather(Sysfs(), queries)
    text = encode_machine(machine)
    if output is None:
        sys.stdout.write(text)
    else:
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            msg = f"--output {output}: {error.strerror}"
            raise K8sRdmaError(msg) from error
    for what in machine.about.unreadable:
        sys.stderr.write(f"k8s-rdma: could not be looked at: {visible(what)}\n")
    where = output or "what was printed"
    sys.stderr.write(
        f"k8s-rdma: read {where} through, then attach it to your report; docs/gather.md says what it holds\n"
    )
