"""RDMA devices as containers use them: their functions, character devices and faults."""
