"""The entry of `k8s-rdma`: a process whose command line is plain starts without the command line's libraries.

These would cost 4 MiB in each process of each node, and a third of a second of a start.
"""

from __future__ import annotations

import os
import sys

from k8s_rdma.cli.output import COULD_NOT, guarded_output, reported_failures
from k8s_rdma.cli.processes import COMPLETE, plain_start


def main() -> None:
    """Run a process or a command; a failure is one line on stderr and exit status 2."""
    start = None if COMPLETE in os.environ else plain_start(sys.argv[1:])
    if start is None:
        from k8s_rdma.cli.main import main as run_command

        run_command()
        return
    try:
        with guarded_output(), reported_failures():
            start()
    except KeyboardInterrupt:
        sys.exit(COULD_NOT)
