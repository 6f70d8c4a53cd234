"""`python -m k8s_rdma.sim.virtual`: the former name of `k8s_rdma.linux.virtual`, for one release."""

from __future__ import annotations

import sys

from k8s_rdma.linux.virtual.__main__ import main

if __name__ == "__main__":
    sys.stderr.write("python -m k8s_rdma.sim.virtual is deprecated: use python -m k8s_rdma.linux.virtual\n")
    sys.exit(main())
