"""A pretended machine with SR-IOV network cards: a tree of files that answers writes as the kernel does."""
