"""RDMA devices as containers use them: whose they are, their character devices, their faults."""
