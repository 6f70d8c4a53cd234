"""The extender's documents against recorded exchanges with a real kube-scheduler."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8s_rdma.errors import MalformedError
from k8s_rdma.wire import extender
from k8s_rdma.wire.extender import (
    ExtenderArgs,
    ExtenderBindingResult,
    ExtenderFilterResult,
    HostPriority,
    NodeList,
    Reply,
    decode_args,
    decode_binding,
    encode_reply,
)
from k8s_rdma.wire.json import joined, size_of

if TYPE_CHECKING:
    from collections.abc import Collection

RECORDINGS = Path(__file__).parents[1] / "recordings" / "extender"
FILTERS = sorted(RECORDINGS.glob("*-filter.json"))
PRIORITIZES = sorted(RECORDINGS.glob("*-prioritize.json"))
BINDS = sorted(RECORDINGS.glob("*-bind.json"))


def load(path: Path) -> tuple[dict[str, Any], bytes, Any]:
    recording = json.loads(path.read_text())
    return recording["body"], json.dumps(recording["body"]).encode(), recording["reply"]


def body(**fields: object) -> bytes:
    pod = {"metadata": {"name": "p", "namespace": "default", "uid": "u-1"}, "spec": {}}
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": None, **fields}).encode()


def names_of(nodes: dict[str, Any] | None, node_names: list[str] | None) -> list[str]:
    return [item["metadata"]["name"] for item in nodes["items"]] if nodes else list(node_names or ())


@pytest.mark.parametrize("path", [*FILTERS, *PRIORITIZES], ids=lambda path: path.stem)
def test_args_hold_the_recorded_pod_and_candidates(path: Path) -> None:
    recorded, sent, _ = load(path)
    args = decode_args(sent)
    pod = recorded["Pod"]
    assert args.pod.metadata.uid == pod["metadata"]["uid"]
    assert args.pod.metadata.name == pod["metadata"]["name"]
    assert args.pod.metadata.namespace == pod["metadata"]["namespace"]
    assert args.pod.metadata.resource_version == pod["metadata"]["resourceVersion"]
    assert args.pod.annotations == pod["metadata"].get("annotations", {})
    assert args.pod.priority == pod["spec"]["priority"]
    assert args.pod.limits == tuple(c["resources"].get("limits", {}) for c in pod["spec"]["containers"])
    assert (args.node_names or [c.name for c in args.candidates()]) == names_of(
        recorded["Nodes"], recorded["NodeNames"]
    )


def encoded(reply: Reply) -> Any:
    return json.loads(joined(encode_reply(reply)))


def passing(args: ExtenderArgs, names: Collection[str]) -> NodeList | None:
    """Return the node objects of these names, unless names alone were sent."""
    if args.nodes is None:
        return None
    items = [candidate.raw for candidate in args.candidates() if candidate.name in names]
    return NodeList(metadata=args.nodes.metadata, items=items)


@pytest.mark.parametrize("path", FILTERS, ids=lambda path: path.stem)
def test_filter_reply_encodes_to_the_recorded_value(path: Path) -> None:
    _, sent, reply = load(path)
    args = decode_args(sent)
    fitting = names_of(reply["Nodes"], reply["NodeNames"])
    result = ExtenderFilterResult(
        nodes=passing(args, fitting),
        node_names=fitting if args.nodes is None else None,
        failed_nodes=reply["FailedNodes"],
        failed_and_unresolvable_nodes=reply["FailedAndUnresolvableNodes"],
    )
    assert encoded(result) == reply
    assert list(encoded(result)) == list(reply)


@pytest.mark.parametrize("path", PRIORITIZES, ids=lambda path: path.stem)
def test_prioritize_reply_encodes_to_the_recorded_value(path: Path) -> None:
    _, _, reply = load(path)
    scores = [HostPriority(entry["Host"], entry["Score"]) for entry in reply]
    assert encoded(scores) == reply


@pytest.mark.parametrize("path", BINDS, ids=lambda path: path.stem)
def test_binding_decodes_and_replies_as_recorded(path: Path) -> None:
    recorded, sent, reply = load(path)
    binding = decode_binding(sent)
    assert (binding.pod_name, binding.pod_namespace) == (recorded["PodName"], recorded["PodNamespace"])
    assert (binding.pod_uid, binding.node) == (recorded["PodUID"], recorded["Node"])
    assert encoded(ExtenderBindingResult()) == reply


def test_filter_reply_keeps_a_nodes_bytes_when_it_passes() -> None:
    node = b'{ "metadata":{"name":"n1", "x-new":[1.50, 1e3]},"status":{} }'
    sent = (
        body()[:-1].replace(b'"Nodes": null', b'"Nodes": {"metadata": {}, "items": [' + node + b"]}") + b"}"
    )
    args = decode_args(sent)
    reply = encode_reply(ExtenderFilterResult(nodes=passing(args, ["n1"])))
    assert node in joined(reply)


def test_filter_reply_of_megabytes_is_parts_with_the_requests_own_memory() -> None:
    nodes = [{"metadata": {"name": f"n{index}", "labels": {"x": "y" * 9_000}}} for index in range(500)]
    args = decode_args(body(Nodes={"metadata": {}, "items": nodes}))
    assert args.nodes is not None
    reply = encode_reply(ExtenderFilterResult(nodes=args.nodes, failed_nodes={"a": "1"}))
    assert isinstance(reply, tuple)
    assert [part for part in reply if isinstance(part, msgspec.Raw)] == [
        args.nodes.metadata,
        *(args.nodes.items or ()),
    ]
    document = json.loads(bytes(joined(reply)))
    assert (document["Nodes"]["items"], document["FailedNodes"]) == (nodes, {"a": "1"})
    assert size_of(reply) == len(joined(reply))


def test_filter_reply_is_an_empty_list_when_no_named_node_fits() -> None:
    reply = ExtenderFilterResult(
        node_names=[], failed_nodes={"a": "1"}, failed_and_unresolvable_nodes={"b": "2"}
    )
    assert encoded(reply) == {
        "Nodes": None,
        "NodeNames": [],
        "FailedNodes": {"a": "1"},
        "FailedAndUnresolvableNodes": {"b": "2"},
        "Error": "",
    }


def test_filter_reply_is_an_empty_list_when_no_full_node_fits() -> None:
    args = decode_args(
        body(Nodes={"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "a"}}]})
    )
    reply = encoded(ExtenderFilterResult(nodes=passing(args, []), failed_nodes={"a": "1"}))
    assert reply["Nodes"] == {"metadata": {"resourceVersion": "7"}, "items": []}
    assert reply["NodeNames"] is None


def test_error_reply_holds_every_key() -> None:
    assert encoded(ExtenderFilterResult(error="why")) == {
        "Nodes": None,
        "NodeNames": None,
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {},
        "Error": "why",
    }


def test_candidate_addresses_are_the_internal_ones_in_the_objects_order() -> None:
    addresses = [
        {"type": "ExternalIP", "address": "192.0.2.1"},
        {"type": "InternalDNS", "address": "n1.internal"},
        {"type": "InternalIP", "address": "10.0.0.1"},
        {"type": "Hostname", "address": "n1"},
        {"type": "InternalIP", "address": "fd00::1"},
    ]
    node = {"metadata": {"name": "n1"}, "status": {"addresses": addresses}}
    [candidate] = decode_args(body(Nodes={"items": [node]})).candidates()
    assert candidate.addresses() == ("n1.internal", "10.0.0.1", "fd00::1")


@pytest.mark.parametrize("status", [{}, {"addresses": None}, {"addresses": []}])
def test_candidate_has_no_address_if_its_object_has_none(status: dict[str, object]) -> None:
    node = {"metadata": {"name": "n1"}, "status": status}
    [candidate] = decode_args(body(Nodes={"items": [node]})).candidates()
    assert candidate.addresses() == ()


def test_candidates_are_none_when_the_list_is_null() -> None:
    assert decode_args(body(Nodes={"metadata": {}, "items": None})).candidates() == []


def test_pod_reads_as_empty_when_its_fields_are_null() -> None:
    pod = {
        "metadata": {"name": "p", "namespace": "d", "uid": "u", "annotations": None},
        "spec": {"priority": None, "containers": None, "initContainers": None},
    }
    decoded = decode_args(body(Pod=pod, NodeNames=[])).pod
    assert (dict(decoded.annotations), decoded.priority, decoded.limits) == ({}, 0, ())


def test_pod_limits_are_those_of_init_containers_first() -> None:
    spec = {
        "containers": [{"resources": {"limits": {"b": "2"}}}, {"resources": {}}, {}],
        "initContainers": [{"resources": {"limits": {"a": "1"}}}],
    }
    pod = {"metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": spec}
    assert decode_args(body(Pod=pod, NodeNames=[])).pod.limits == ({"a": "1"}, {"b": "2"}, {}, {})


@pytest.mark.parametrize(
    ("sent", "named"),
    [
        (b"", "ends too early"),
        (b"[]", "Expected `object`"),
        (b"null", "Expected `object`"),
        (b'{"Nodes":null,"NodeNames":["a"]}', "`Pod`"),
        (body(), "neither Nodes nor NodeNames"),
        (body(NodeNames=[1]), "$.NodeNames[0]"),
        (body(Nodes=[]), "$.Nodes"),
        (body(Pod={"metadata": {"name": "p", "namespace": "d"}}, NodeNames=[]), "`uid`"),
        (
            body(Pod={"metadata": {"name": "p", "namespace": "d", "uid": 7}}, NodeNames=[]),
            "$.Pod.metadata.uid",
        ),
        (b'{"other":' + b"[" * 2_000_000, "nested deeper than 64 levels"),
        (b'{"Pod":{"metadata":{"name":"\xff"}}}', "utf-8"),
    ],
)
def test_args_are_refused_naming_the_field_when_malformed(sent: bytes, named: str) -> None:
    with pytest.raises(MalformedError) as refused:
        decode_args(sent)
    assert refused.value.message.startswith("extender arguments: ")
    assert named in refused.value.message


NAMES = {
    b'{"metadata":{"name":"n-1.example","labels":{}}}': "n-1.example",
    b'{"kind":"Node","metadata":{"name":"n1"}}': "n1",
    b'{"metadata": {"name": "n1"}}': "n1",
    b'{"metadata":{"name":"n\\u0031"}}': "n1",
    b'{"metadata":{"labels":{"name":"x"},"name":"n1"}}': "n1",
}


@pytest.mark.parametrize("node", NAMES)
def test_candidate_has_its_objects_name_however_it_is_written(node: bytes) -> None:
    sent = body(Nodes={"items": [0]}).replace(b'"items": [0]', b'"items": [' + node + b"]")
    assert [candidate.name for candidate in decode_args(sent).candidates()] == [NAMES[node]]


@pytest.mark.parametrize("node", [{}, {"metadata": {}}, {"metadata": {"name": 5}}, 5, None])
def test_candidates_are_refused_naming_the_item_when_a_node_has_no_name(node: object) -> None:
    args = decode_args(body(Nodes={"items": [{"metadata": {"name": "n1"}}, node]}))
    with pytest.raises(MalformedError, match=r"Nodes\.items\[1\]"):
        args.candidates()


@pytest.mark.parametrize("field", ["PodName", "PodNamespace", "PodUID", "Node"])
def test_binding_is_refused_naming_the_field_when_it_is_absent(field: str) -> None:
    recorded, _, _ = load(BINDS[0])
    del recorded[field]
    with pytest.raises(MalformedError, match=f"`{field}`"):
        decode_binding(json.dumps(recorded).encode())


@given(st.binary())
def test_args_raise_only_malformed_for_any_bytes(sent: bytes) -> None:
    with contextlib.suppress(MalformedError):
        decode_args(sent)


def test_sentences_are_those_that_runbooks_search_for() -> None:
    assert extender.UNREADABLE_NODE == (
        "RDMA Scheduler Extension: Unable to collect information on available RDMA resources for node."
    )
    assert extender.NOT_ENOUGH_FREE == (
        "RDMA Scheduler Extension: Node did not have enough free RDMA resources."
    )
    assert extender.MALFORMED_ANNOTATION == (
        "RDMA Scheduler Extension: 'rdma_interfaces_required' field in pod YAML file is malformatted."
    )


def test_items_stay_undecoded_until_they_are_read() -> None:
    args = decode_args(body(Nodes={"items": [{"anything": 1}]}))
    assert args.nodes is not None
    assert args.nodes.items == [msgspec.Raw(b'{"anything": 1}')]
