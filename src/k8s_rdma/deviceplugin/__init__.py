"""The process `k8s-rdma device-plugin`: gives containers their RDMA device nodes."""
