"""The command `python -m k8s_rdma_demo.cluster api|scheduler|controllers|workloads|kubelet`."""

from __future__ import annotations

import sys

from k8s_rdma_demo.cluster.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
