"""The node's read-only REST face."""
