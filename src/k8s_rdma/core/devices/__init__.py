"""Devices that kubelet gives to containers: their kinds, their holders, and their VFs and rates."""
