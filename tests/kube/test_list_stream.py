"""A list as it arrives, item by item."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8s_rdma.kube import list_stream
from k8s_rdma.kube.list_stream import ListSplitter

TEXT = st.sampled_from(["", "items", "a", '"', "\\", '\\"', "{", "}]", "[", "\u2028", "\u00e9"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
ITEMS = st.lists(st.dictionaries(TEXT, VALUES, max_size=3), max_size=5)
METADATA = {"kind": "items", "metadata": {"items": [{"a": 1}], "resourceVersion": "7"}}


@given(
    items=ITEMS, last=VALUES, first=st.booleans(), ascii_only=st.booleans(), cuts=st.sets(st.integers(1, 400))
)
def test_items_and_frame_are_those_of_the_document_however_it_is_cut(items, last, first, ascii_only, cuts):
    document = {"items": items, **METADATA, "z": last} if first else {**METADATA, "z": last, "items": items}
    data = json.dumps(document, ensure_ascii=ascii_only).encode()
    splitter, found = ListSplitter(), []
    for begin, end in pairwise(sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})):
        found += splitter.feed(data[begin:end])
    assert [json.loads(item) for item in found] == items
    assert json.loads(splitter.frame()) == {**document, "items": []}


@pytest.mark.parametrize("text", ["", "{", '{"items":[', '{"items":[{}', '{"items":[{}]', '{"a'])
def test_list_that_is_cut_short_is_refused(text: str):
    splitter = ListSplitter()
    splitter.feed(text.encode())
    with pytest.raises(ValueError, match="cut short"):
        splitter.frame()


@pytest.mark.parametrize("begin", [b'{"items":[{"a":"', b'{"metadata":{"a":"', b'{"metadata":[1,'])
def test_list_with_an_endless_part_is_refused(begin: bytes):
    splitter = ListSplitter()
    splitter.feed(begin)
    splitter.feed(b"1" * (list_stream.MAX_PART_BYTES // 2))
    with pytest.raises(ValueError, match="more than"):
        splitter.feed(b"1" * list_stream.MAX_PART_BYTES)
