"""The node's read-only REST server."""
