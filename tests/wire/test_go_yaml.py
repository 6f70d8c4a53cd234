"""YAML as Go's decoder reads it, if that differs from other readers."""

from __future__ import annotations

import pytest
import yaml

from k8s_rdma.wire.go_yaml import read_go_yaml


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a: 1\n---\na: 2\n", {"a": 1}),
        (b"", None),
        (b"a: 1\na: 2\n", {"a": 2}),
        (b"a:\t1\t# one\n", {"a": 1}),
        (b'{\n\t"a": [\n\t\t1]\n}\n', {"a": [1]}),
        (b"\xef\xbb\xbfa: 1\n", {"a": 1}),
        ("a: 1\n".encode("utf-16"), {"a": 1}),
        (b"a: !!binary MjAw\n  MQ==\n", {"a": "2001"}),
        (b"a: 2001-01-01\n", {"a": "2001-01-01"}),
        (b"a: &x 1\nb: *x\nc: &x 2\nd: *x\n", {"a": 1, "b": 1, "c": 2, "d": 2}),
    ],
    ids=[
        *("first-document", "no-document", "last-value", "tabs", "tabs-in-json", "byte-order-mark", "utf-16"),
        *("binary", "timestamp", "anchor-again"),
    ],
)
def test_document_is_read_as_kubectl_does(data: bytes, expected: object):
    assert read_go_yaml(data) == expected


@pytest.mark.parametrize(
    ("data", "line"), [(b"a: 1\nb:\n\tc: 1\n", 3), (b"a: 1\nb: !!binary '?'\n", 2), (b"a: [\n", 2)]
)
def test_fault_is_named_with_its_line(data: bytes, line: int):
    with pytest.raises(yaml.YAMLError, match=f"line {line}, "):
        read_go_yaml(data)
