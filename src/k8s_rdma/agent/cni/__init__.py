"""The calls of the CNI executable: what each does, from its arrival to its answer."""
