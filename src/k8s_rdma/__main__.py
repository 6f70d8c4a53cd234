"""`python -m k8s_rdma` is the command `k8s-rdma`."""

from k8s_rdma.cli.entry import main

main()
