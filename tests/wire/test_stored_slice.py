"""Slices as the API server kept them, beside those that were written."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import msgspec
import pytest

from deviceplugin.offered_pf import offer
from k8s_rdma.wire.claims import Offers
from k8s_rdma.wire.resource_slice import slice_specs
from k8s_rdma.wire.stored_slice import SliceSpec, decode_spec, dropped_fields, equals

PFS = (offer("f0"), offer("f1", link_up=False))
[WRITTEN] = slice_specs(Offers(node="w1", pfs=PFS))


def stored(spec: dict[str, Any]) -> SliceSpec:
    """Return the slice as the API server answers it, with fields of its own."""
    kept = deepcopy(spec)
    kept["pool"]["generation"] = 7
    kept["allNodes"] = False
    for device in kept["devices"]:
        device["bindingConditions"] = []
    return decode_spec(msgspec.json.encode(kept))


def changed(**fields: Any) -> dict[str, Any]:
    """Return the written slice with changed fields of its second device; None removes a field."""
    spec = deepcopy(WRITTEN)
    device = spec["devices"][1] | fields
    spec["devices"][1] = {key: value for key, value in device.items() if value is not None}
    return spec


def test_slice_is_as_written_whatever_its_generation_is():
    assert equals(stored(WRITTEN), WRITTEN)
    assert dropped_fields(stored(WRITTEN), WRITTEN) == ()


@pytest.mark.parametrize(
    ("fields", "dropped"),
    [
        ({"name": "f2"}, ("allowMultipleAllocations", "requestPolicy", "taints")),
        ({"attributes": {}}, ()),
        ({"taints": None}, ("taints",)),
        ({"allowMultipleAllocations": None}, ("allowMultipleAllocations",)),
        ({"capacity": {"bandwidth": {"value": "95G"}, "vfs": {"value": "8"}}}, ("requestPolicy",)),
    ],
    ids=["name", "attributes", "taints", "shares", "policy"],
)
def test_fields_that_the_api_server_dropped_are_named(fields: dict[str, Any], dropped: tuple[str, ...]):
    found = stored(changed(**fields))
    assert not equals(found, WRITTEN)
    assert dropped_fields(found, WRITTEN) == dropped


@pytest.mark.parametrize("spec", [b"", b"[]", b'{"devices": 5}', b'{"pool": {"generation": "1"}}'])
def test_malformed_slice_is_an_empty_one(spec: bytes):
    assert decode_spec(spec) == SliceSpec()
