"""Protobuf messages of the CRI, generated from `cri.proto` by `make proto` for `k8s_rdma_demo.cri`."""
