"""The former place of virtual SR-IOV, which is `k8s_rdma.linux.virtual` now."""
