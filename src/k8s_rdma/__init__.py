"""RDMA interfaces with guaranteed bandwidth for Kubernetes pods."""

__version__ = "0.1.0"
