"""The command line of `k8s-rdma`."""
