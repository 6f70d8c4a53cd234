"""`python -m k8s_rdma` is the command `k8s-rdma`."""

from k8s_rdma.cli.main import main

main()
