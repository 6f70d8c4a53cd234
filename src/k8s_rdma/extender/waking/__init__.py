"""Pods that wait, and the nodes that are touched for them."""
