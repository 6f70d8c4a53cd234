"""Kernels and a cluster for machines that have no RDMA hardware and no Kubernetes."""
