"""What is wrong with a node or a cluster: facts, which `looking` sees, and checks that make findings of them.

Checks are pure. One module a subject; each says beside its check what it must know.
"""
