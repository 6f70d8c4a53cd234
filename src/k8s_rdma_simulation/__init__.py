"""`k8s-rdma simulate`: pods that come and go on a cluster, to compare policies of placement."""
