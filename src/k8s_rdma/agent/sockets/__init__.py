"""The agent's sockets: for the CNI executable's calls, and for readers of the node's state."""
