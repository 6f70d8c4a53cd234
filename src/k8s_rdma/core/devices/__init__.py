"""Devices that kubelet gives to containers: what there is, who holds it, which VFs and rates go with it."""
