"""Diagnosis of a node or a cluster: collectors gather facts, checks turn them into findings.

Checks are pure. One module a subject; each says beside its check what it must know.
"""
