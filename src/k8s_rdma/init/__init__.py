"""The process `k8s-rdma init`: makes the VFs of a node's PFs, and ends."""
