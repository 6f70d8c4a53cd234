"""Other plugins of the node, executed: IPAM, and a delegate."""
