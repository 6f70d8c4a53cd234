"""Diagnosis of a node or a cluster: collectors gather facts, and checks turn them into findings.

Checks are pure. Each subject has a module, which defines the facts that its checks need.
"""
