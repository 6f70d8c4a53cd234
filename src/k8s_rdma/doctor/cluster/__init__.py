"""Checks of a cluster."""
