"""Fixtures of the folders whose subjects these cases are about."""

from __future__ import annotations

from init.conftest import world

__all__ = ["world"]
