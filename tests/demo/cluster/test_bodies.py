"""Patches of the API server: RFC 7386, RFC 6902, and strategic merge patches as kubectl sends them."""

from __future__ import annotations

import json

import pytest

from k8s_rdma_demo.cluster.bodies import (
    JSON,
    STRATEGIC,
    json_patch,
    merge_patch,
    patching,
    strategic_merge_patch,
)
from k8s_rdma_demo.cluster.fields import FIELDS
from k8s_rdma_demo.cluster.status import StatusError

STATUS = FIELDS["PodStatus"]


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        # RFC 7386, appendix A
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch_follows_the_examples_of_rfc_7386(target, patch, result):
    before = json.dumps(target)
    assert merge_patch(target, patch) == result
    assert json.dumps(target) == before


def test_strategic_patch_deletes_an_element_by_directive():
    target = {"podIPs": [{"ip": "1"}, {"ip": "2"}], "args": ["a", "b"]}
    patch = {"podIPs": [{"ip": "1", "$patch": "delete"}, {"ip": "3"}], "args": ["c"]}
    assert strategic_merge_patch(target, patch, STATUS) == {
        "podIPs": [{"ip": "2"}, {"ip": "3"}],
        "args": ["c"],
    }


def test_strategic_patch_refuses_an_element_without_its_key():
    with pytest.raises(StatusError):
        strategic_merge_patch({}, {"conditions": [{"status": "True"}]}, STATUS)


def strategic(target: dict, patch: dict) -> dict:
    """A patched pod."""
    return patching(STRATEGIC, "Pod", patch)(target)


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": 1, "b": 2}, {"$retainKeys": ["a"], "a": 3}, {"a": 3}),
        ({"a": 1}, {"$patch": "replace", "b": 2}, {"b": 2}),
        (
            {"finalizers": ["a", "b"]},
            {"$deleteFromPrimitiveList/finalizers": ["a"], "$setElementOrder/finalizers": ["b"]},
            {"finalizers": ["b"]},
        ),
        ({"finalizers": ["a"]}, {"finalizers": ["b", "a"]}, {"finalizers": ["a", "b"]}),
        ({"labels": {"a": "1", "b": "2"}}, {"labels": {"b": None}}, {"labels": {"a": "1"}}),
    ],
)
def test_strategic_merge_patch_follows_directives(target, patch, result):
    before = json.dumps(target)
    assert strategic({"metadata": target}, {"metadata": patch}) == {"metadata": result}
    assert json.dumps(target) == before


def test_strategic_merge_patch_merges_containers_by_name_and_their_lists_by_key():
    env = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    target = {"spec": {"containers": [{"name": "c", "image": "x:1", "args": ["a"], "env": env}]}}
    changed = {"name": "c", "args": ["b"], "env": [{"name": "A", "$patch": "delete"}]}
    patch = {"spec": {"containers": [{"name": "d"}, changed]}}
    [c, d] = strategic(target, patch)["spec"]["containers"]
    assert c == {"name": "c", "image": "x:1", "args": ["b"], "env": [{"name": "B", "value": "2"}]}
    assert d == {"name": "d"}


@pytest.mark.parametrize(
    ("target", "patch"),
    [
        ({}, {"$retainKeys": 5}),
        ({"finalizers": ["a"]}, {"$deleteFromPrimitiveList/finalizers": 5}),
        ({"finalizers": 5}, {"$deleteFromPrimitiveList/finalizers": []}),
        ({"finalizers": 5}, {"finalizers": ["a"]}),
        ({}, {"ownerReferences": [5]}),
        ({"ownerReferences": 5}, {"ownerReferences": [{"uid": "u"}]}),
    ],
)
def test_strategic_merge_patch_is_refused_when_it_is_malformed(target, patch):
    with pytest.raises(StatusError) as refused:
        strategic({"metadata": target}, {"metadata": patch})
    assert refused.value.code == 400


@pytest.mark.parametrize(
    ("document", "operations", "result"),
    [
        # RFC 6902, appendix A
        ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux"}], {"foo": "bar", "baz": "qux"}),
        ({"foo": [1, 2]}, [{"op": "add", "path": "/foo/1", "value": 9}], {"foo": [1, 9, 2]}),
        ({"foo": [1]}, [{"op": "add", "path": "/foo/-", "value": [2]}], {"foo": [1, [2]]}),
        ({"foo": 1, "baz": 2}, [{"op": "remove", "path": "/baz"}], {"foo": 1}),
        ({"foo": [1, 2, 3]}, [{"op": "remove", "path": "/foo/1"}], {"foo": [1, 3]}),
        ({"baz": 1}, [{"op": "replace", "path": "/baz", "value": 2}], {"baz": 2}),
        (
            {"a": {"b": 1}, "c": {}},
            [{"op": "move", "from": "/a/b", "path": "/c/d"}],
            {"a": {}, "c": {"d": 1}},
        ),
        ({"a": [1]}, [{"op": "copy", "from": "/a", "path": "/b"}], {"a": [1], "b": [1]}),
        ({"/": 9, "~1": 10}, [{"op": "test", "path": "/~01", "value": 10}], {"/": 9, "~1": 10}),
        ({"a": 1}, [{"op": "replace", "path": "", "value": {"b": 2}}], {"b": 2}),
    ],
)
def test_json_patch_follows_the_examples_of_rfc_6902(document, operations, result):
    before = json.dumps(document)
    assert json_patch(document, operations) == result
    assert json.dumps(document) == before


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "remove", "path": "/absent"},
        {"op": "replace", "path": "/absent", "value": 1},
        {"op": "add", "path": "/list/5", "value": 1},
        {"op": "add", "path": "/list/x", "value": 1},
        {"op": "add", "path": "/list/-1", "value": 1},
        {"op": "add", "path": "/text/deeper", "value": 1},
        {"op": "remove", "path": "/text/0"},
        {"op": "add", "path": "no-slash", "value": 1},
        {"op": "test", "path": "/text", "value": "other"},
        {"op": "move", "path": "/text"},
        {"op": "shuffle", "path": "/text"},
    ],
)
def test_json_patch_is_refused_with_422_when_it_cannot_be_done(operation):
    with pytest.raises(StatusError) as refused:
        json_patch({"list": [1], "text": "t"}, [operation])
    assert refused.value.code == 422


@pytest.mark.parametrize("patch", [{}, "text", [1], [{"op": "add"}], [{"op": 1, "path": "/a"}]])
def test_json_patch_is_refused_with_400_when_it_is_malformed(patch):
    with pytest.raises(StatusError) as refused:
        patching(JSON, "Pod", patch)({})
    assert refused.value.code == 400


def test_json_patch_that_leaves_no_object_is_refused():
    with pytest.raises(StatusError) as refused:
        json_patch({}, [{"op": "replace", "path": "", "value": []}])
    assert refused.value.code == 400
