"""Collected tests do not slow garbage collections."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def test_garbage_collection_leaves_collected_tests_out(request: pytest.FixtureRequest) -> None:
    assert gc.isenabled()
    looked_at = {id(each) for each in gc.get_objects()}
    assert not looked_at & {id(item) for item in request.session.items}
