"""Devices that kubelet gives to containers: what there is, who holds it, and the VFs and rates that go with it."""
