"""Collected tests cost garbage collections nothing."""

from __future__ import annotations

import gc


def test_garbage_collection_leaves_collected_tests_out(request):
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0
    looked_at = {id(each) for each in gc.get_objects()}
    assert not looked_at & {id(item) for item in request.session.items}
