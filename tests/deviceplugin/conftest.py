"""A node with kubelet's directories."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deviceplugin.plugin_process import World, make_world

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def world() -> Iterator[World]:
    yield from make_world()
