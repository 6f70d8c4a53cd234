"""What is wrong with a node or a cluster: collectors gather facts, checks make findings of them.

Checks are pure. One module a subject; each says beside its check what it must know.
"""
