"""Paths of objects at the API server."""

from __future__ import annotations

PODS_URL = "/api/v1/namespaces/default/pods"
