"""The bodies of requests: objects in Protocol Buffers, and patches.

kubectl writes objects of its own in Protocol Buffers (`create namespace`, `auth can-i`), and files in
JSON. Answers are JSON, which its clients take, too.

Sources: RFC 7386 (merge patch), RFC 6902 and 6901 (JSON patch), for the strategic merge patch
`k8s.io/apimachinery/pkg/util/strategicpatch` with the merge keys of `fields`, and
`k8s.io/apimachinery/pkg/runtime/serializer/protobuf`.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import msgspec
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from k8s_rdma_demo.cluster.fields import FIELDS, Field, fields_of_kind
from k8s_rdma_demo.cluster.status import StatusError, bad_request, unsupported_body
from k8s_rdma_demo.pb import kubernetes_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from k8s_rdma_demo.cluster.objects import JsonObject

MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
JSON, APPLY = "application/json-patch+json", "application/apply-patch+yaml"

_DELETE_VALUES = "$deleteFromPrimitiveList/"

PROTOBUF = "application/vnd.kubernetes.protobuf"

_MAGIC = b"k8s\0"
_KINDS = frozenset(
    {
        "ClusterRole",
        "ClusterRoleBinding",
        "ConfigMap",
        "DeleteOptions",
        "Eviction",
        "Namespace",
        "PriorityClass",
        "Role",
        "RoleBinding",
        "SelfSubjectAccessReview",
        "SelfSubjectReview",
        "SelfSubjectRulesReview",
        "ServiceAccount",
        "TokenRequest",
    }
)


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386, section 2; neither argument is changed."""
    if not isinstance(patch, dict):
        return deepcopy(patch)
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def strategic_merge_patch(target: Any, patch: JsonObject, fields: Mapping[str, Field]) -> JsonObject:
    """Apply a merge patch with lists merged by key; StatusError 400 for an element without its key.

    `$setElementOrder` is ignored: elements keep their places, and new ones follow.
    """
    directive = patch.get("$patch")
    if directive == "delete":
        return {}
    merged = dict(target) if isinstance(target, dict) and directive != "replace" else {}
    if "$retainKeys" in patch:
        retained = _as_list("$retainKeys", patch["$retainKeys"])
        merged = {name: value for name, value in merged.items() if name in retained}
    for name, value in patch.items():
        if name.startswith(_DELETE_VALUES):
            field = name.removeprefix(_DELETE_VALUES)
            deleted = _as_list(name, value)
            merged[field] = [item for item in _as_list(field, merged.get(field)) if item not in deleted]
        elif name.startswith("$"):
            continue
        elif value is None:
            merged.pop(name, None)
        else:
            merged[name] = _strategic_value(merged.get(name), value, name, fields.get(name))
    return merged


def _strategic_value(target: Any, value: Any, name: str, field: Field | None) -> Any:
    inner = FIELDS.get(field.type, {}) if field else {}
    if isinstance(value, dict):
        return strategic_merge_patch(target, value, inner)
    if not isinstance(value, list) or field is None or field.merge_key is None:
        return deepcopy(value)
    if not field.merge_key:
        present = _as_list(name, target)
        return [*present, *(item for item in value if item not in present)]
    if {"$patch": "replace"} in value:
        return [element for element in value if element != {"$patch": "replace"}]
    return _merge_by_key(name, _as_list(name, target), value, field.merge_key, inner)


def _as_list(name: str, value: Any) -> list[Any]:
    if value is not None and not isinstance(value, list):
        raise bad_request(f"{name}: wanted a list, found {value!r}")
    return value or []


def _merge_by_key(
    name: str, target: list[Any], patch: list[Any], key: str, fields: Mapping[str, Field]
) -> list[Any]:
    merged = list(target)
    for element in patch:
        if not isinstance(element, dict) or key not in element:
            raise bad_request(f"map: {element} does not contain declared merge key: {key} (field {name})")
        keys = [present.get(key) if isinstance(present, dict) else None for present in merged]
        index = keys.index(element[key]) if element[key] in keys else None
        if element.get("$patch") == "delete":
            if index is not None:
                del merged[index]
        elif index is None:
            merged.append(strategic_merge_patch({}, element, fields))
        else:
            merged[index] = strategic_merge_patch(merged[index], element, fields)
    return merged


class _Operation(msgspec.Struct, frozen=True):
    op: str
    path: str
    value: Any = None
    from_: str | None = msgspec.field(name="from", default=None)


def json_patch(target: JsonObject, patch: Any) -> JsonObject:
    """RFC 6902; StatusError 422 for an operation that cannot be done, 400 for a malformed patch."""
    try:
        operations = msgspec.convert(patch, list[_Operation])
    except msgspec.ValidationError as error:
        raise bad_request(f"error decoding patch: {error}") from error
    document: Any = {"": deepcopy(target)}
    for operation in operations:
        try:
            _apply(document, operation)
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            why = f"the server rejected our request due to an error in our request: {operation.op}"
            raise StatusError(422, "Invalid", f"{why} {operation.path}") from error
    patched = document[""]
    if not isinstance(patched, dict):
        raise bad_request("the patched object is no object")
    return patched


def _apply(document: Any, operation: _Operation) -> None:
    path = operation.path
    match operation.op:
        case "add":
            _add(document, path, deepcopy(operation.value))
        case "remove":
            _remove(document, path)
        case "replace":
            _remove(document, path)
            _add(document, path, deepcopy(operation.value))
        case "move" if operation.from_ is not None:
            _add(document, path, _remove(document, operation.from_))
        case "copy" if operation.from_ is not None:
            _add(document, path, deepcopy(_get(document, operation.from_)))
        case "test":
            if _get(document, path) != operation.value:
                raise ValueError(path)
        case _:
            raise ValueError(operation.op)


def _parent(document: Any, pointer: str) -> tuple[Any, str]:
    """Return the container that a JSON pointer (RFC 6901) ends in, and its key there."""
    if pointer and not pointer.startswith("/"):
        raise ValueError(pointer)
    steps = [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")]
    container = document
    for step in steps[:-1]:
        container = container[_index(container, step)]
    return container, steps[-1]


def _index(container: Any, step: str) -> str | int:
    if not isinstance(container, list):
        return step
    if not step.isdecimal():
        raise ValueError(step)
    return int(step)


def _get(document: Any, pointer: str) -> Any:
    container, step = _parent(document, pointer)
    return container[_index(container, step)]


def _add(document: Any, pointer: str, value: Any) -> None:
    container, step = _parent(document, pointer)
    if not isinstance(container, list):
        container[step] = value
    elif step == "-":
        container.append(value)
    elif (index := int(_index(container, step))) <= len(container):
        container.insert(index, value)
    else:
        raise IndexError(step)


def _remove(document: Any, pointer: str) -> Any:
    container, step = _parent(document, pointer)
    return container.pop(_index(container, step))


def patching(content_type: str, kind: str, patch: Any) -> Callable[[JsonObject], JsonObject]:
    """Return the function that patches an object of a kind; StatusError 400 if it is no patch."""
    if content_type == JSON:
        return lambda old: json_patch(old, patch)
    if not isinstance(patch, dict):
        raise bad_request("json: cannot unmarshal the patch into an object")
    if content_type == STRATEGIC:
        return lambda old: strategic_merge_patch(old, patch, fields_of_kind(kind))
    return lambda old: merge_patch(old, patch)


def decode_protobuf(body: bytes) -> JsonObject:
    """Decode an object; StatusError 400 for a malformed one, 415 for a kind or fields that are not known."""
    if not body.startswith(_MAGIC):
        raise bad_request("the request's body: no Kubernetes object in protocol buffers")
    try:
        envelope = pb.Unknown.FromString(body[len(_MAGIC) :])
        kind = envelope.typeMeta.kind
        if kind not in _KINDS:
            raise unsupported_body(("application/json",))
        message: Message = getattr(pb, kind).FromString(envelope.raw)
    except DecodeError as error:
        raise bad_request(f"the request's body: {error}") from error
    if any(len(UnknownFieldSet(part)) for part in _messages(message)):
        raise unsupported_body(("application/json",))
    decoded = MessageToDict(message)
    decoded.get("metadata", {}).pop("creationTimestamp", None)
    return {"kind": kind, "apiVersion": envelope.typeMeta.apiVersion, **decoded}


def _messages(message: Message) -> Iterator[Message]:
    """Yield a message and all in it."""
    yield message
    for field, value in message.ListFields():
        inner_type = field.message_type
        if inner_type is None or inner_type.GetOptions().map_entry:
            continue
        for inner in value if field.is_repeated else (value,):
            yield from _messages(inner)
