"""Checks of a node."""
