"""The process `k8s-rdma web`: the cluster's RDMA interfaces as pages for people, read-only."""
