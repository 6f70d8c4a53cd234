"""The command `k8s-rdma`."""
