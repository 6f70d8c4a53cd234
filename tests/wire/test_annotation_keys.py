"""Misspelt keys of annotations are named, as far as there are few."""

from __future__ import annotations

import pytest

from k8s_rdma.wire.annotation_keys import PREFIX, unknown_keys


@pytest.mark.parametrize("key", ["rdma_interface_required", "rdma-interfaces-required"])
def test_misspelling_of_the_original_key_is_named(key: str):
    [sentence] = unknown_keys([key])
    assert sentence.endswith("did you mean rdma_interfaces_required?")


def test_hostile_number_of_keys_is_looked_at_no_further_than_ten():
    assert len(unknown_keys(f"{PREFIX}x{number}" for number in range(10_000))) == 10
