module k8s-rdma.io/rendering

go 1.21
