"""Fixtures of the folders whose subjects these cases are about."""

from __future__ import annotations

from init.conftest import world
from kube.conftest import answering

__all__ = ["answering", "world"]
