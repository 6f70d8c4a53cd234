"""RDMA interfaces with reserved bandwidth for Kubernetes pods."""

__version__ = "0.1.0"
