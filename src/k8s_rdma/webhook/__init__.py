"""The process `k8s-rdma webhook`."""
