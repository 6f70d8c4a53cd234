"""`k8s-rdma demo`: two nodes on this machine, everything through the real processes."""
