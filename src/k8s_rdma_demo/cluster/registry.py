"""The API server's verbs on the store, with defaults, validation and deletion of objects.

A request either changes the store once or raises StatusError. No disruption controller runs: the
`status.disruptionsAllowed` of a budget stays as written until an eviction spends it. Service account tokens
are not mounted.

Source: `pkg/registry`, `pkg/registry/core/pod/strategy.go`, `pkg/registry/core/pod/storage/eviction.go`,
the admission plugin Priority;
`pkg/registry/customresource/strategy.go` and `status_strategy.go` of apiextensions-apiserver.
"""

from __future__ import annotations

import re
import secrets
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta

import msgspec

from k8s_rdma_demo.cluster.custom_resources import checked_definition, resource_of
from k8s_rdma_demo.cluster.defaults import with_defaults
from k8s_rdma_demo.cluster.delete_options import DeleteOptions, Preconditions, parse_delete_options
from k8s_rdma_demo.cluster.fields import as_stored
from k8s_rdma_demo.cluster.objects import (
    CUSTOM_RESOURCE_DEFINITIONS,
    NAMESPACES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Clock,
    JsonObject,
    ResourceType,
    Target,
    is_finished,
    is_terminating,
    labels_of,
    metadata,
    name_of,
    namespace_of,
    parse_timestamp,
    spec_of,
    status_of,
    system_clock,
    timestamp,
    uid_of,
)
from k8s_rdma_demo.cluster.pod_strategy import (
    TOLERATED_S,
    check_spec_update,
    complete_spec,
    grace_period_s,
    new_pod,
)
from k8s_rdma_demo.cluster.resource_slices import stored_slice
from k8s_rdma_demo.cluster.selection import selects
from k8s_rdma_demo.cluster.shapes import check_shape
from k8s_rdma_demo.cluster.status import (
    StatusError,
    already_exists,
    bad_request,
    conflict,
    denied,
    details,
    invalid,
    modified,
    not_found,
    success,
    too_large_for_etcd,
    too_many_requests,
)
from k8s_rdma_demo.cluster.store import Store
from k8s_rdma_demo.cluster.workload_strategy import WORKLOADS, check_workload

_PRIORITY_FIELDS = ("priority", "preemptionPolicy")

_METADATA = frozenset({"metadata", "kind", "apiVersion"})
"""The fields that change without a new generation."""

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_MAX_NAME = 253
_MAX_ANNOTATIONS = 256 * 1024  # bytes of all keys and values (`TotalAnnotationSizeLimitB`)
MAX_OBJECT_BYTES = 1_572_266
"""The limit of an object, like etcd's `--max-request-bytes` of 1.5 MiB; here for JSON, there for Protocol
Buffers."""
_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # no vowels: no words (k8s.io/apimachinery/pkg/util/rand)
_OWNED_BY_SERVER = (
    "uid",
    "creationTimestamp",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)


def check_eviction(target: Target, eviction: JsonObject) -> None:
    """Refuse (StatusError 400) an Eviction that is for another pod than the URL's."""
    if name_of(eviction) not in {"", target.name}:
        raise bad_request("name in URL does not match name in Eviction object")


def spend_budget(store: Store, pod: JsonObject) -> None:
    """Spend the pod's eviction from its budgets; StatusError 429 if one of them is used up.

    The eviction of a pending, finished or terminating pod needs no budget.
    """
    if is_finished(pod) or is_terminating(pod) or status_of(pod).get("phase") == "Pending":
        return
    namespace = pod["metadata"]["namespace"]
    budgets = [budget for budget in store.items(POD_DISRUPTION_BUDGETS, namespace) if _covers(budget, pod)]
    for budget in budgets:
        if status_of(budget).get("disruptionsAllowed", 0) <= 0:
            raise too_many_requests(
                "Cannot evict pod as it would violate the pod's disruption budget.", name_of(budget)
            )
    for budget in budgets:
        status = status_of(budget)
        reduced = {**status, "disruptionsAllowed": status["disruptionsAllowed"] - 1}
        store.put(POD_DISRUPTION_BUDGETS, {**budget, "status": reduced})


def _covers(budget: JsonObject, pod: JsonObject) -> bool:
    """Report whether a budget covers the pod; an empty selector covers all pods, a missing one no pod."""
    selector = spec_of(budget).get("selector")
    return selector is not None and selects(selector, labels_of(pod))


def new_object(obj: JsonObject, *, has_status: bool) -> JsonObject:
    """Return the object as created: without a status if that is a subresource."""
    created = {**obj, "metadata": {**metadata(obj), "generation": 1}}
    if has_status:
        created.pop("status", None)
    return created


def updated(target: Target, old: JsonObject, new: JsonObject) -> JsonObject:
    """Return the object as updated: only the status by its subresource, all but the status otherwise.

    Another generation with every change but of the metadata (labels and annotations among them).
    """
    if target.subresource == "status":
        return _with_status_of(old, new)
    if target.resource.has_status:
        new = _with_status_of(new, old)
    if _content(new) != _content(old):
        new["metadata"] = {**metadata(new), "generation": metadata(old).get("generation", 0) + 1}
    return new


def _with_status_of(obj: JsonObject, source: JsonObject) -> JsonObject:
    merged = {name: value for name, value in obj.items() if name != "status"}
    return {**merged, "status": source["status"]} if "status" in source else merged


def _content(obj: JsonObject) -> JsonObject:
    return {name: value for name, value in obj.items() if name not in _METADATA}


def new_namespace(namespace: JsonObject) -> JsonObject:
    """Return the namespace as created: active, with the label of its name."""
    labels = {**labels_of(namespace), "kubernetes.io/metadata.name": name_of(namespace)}
    return {
        **namespace,
        "metadata": {**metadata(namespace), "labels": labels},
        "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": "Active"},
    }


def random_suffix() -> str:
    """Return a random suffix for a `generateName`."""
    return "".join(secrets.choice(_SUFFIX_LETTERS) for _ in range(5))


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """Creates, reads, updates and deletes objects as the API server does.

    clock, new_uid, new_suffix: the sources of times, UIDs and the ends of generated names.
    gates_off: feature gates that are off. checks_namespaces: objects need their namespace to exist.
    tolerated_s: of new pods, the seconds for which they tolerate a node that is not ready.
    """

    store: Store
    clock: Clock = system_clock
    gates_off: frozenset[str] = frozenset()
    checks_namespaces: bool = False
    tolerated_s: int = TOLERATED_S
    new_uid: Callable[[], str] = field(default=lambda: str(uuid.uuid4()))
    new_suffix: Callable[[], str] = random_suffix

    def draft(self) -> Registry:
        """Return a registry of the same objects, whose writes are dropped, for a dry run."""
        return replace(self, store=self.store.draft())

    def get(self, target: Target) -> JsonObject:
        """Return the object; StatusError 404 if it does not exist."""
        obj = self.store.get(target.resource, (target.namespace, target.name))
        if obj is None:
            raise not_found(target.resource, target.name)
        return obj

    def create(self, target: Target, document: JsonObject) -> JsonObject:
        """Create an object, which the server gives uid, resourceVersion and creationTimestamp."""
        resource = target.resource
        document = _decoded(resource, document)
        meta = {k: v for k, v in metadata(document).items() if k not in _OWNED_BY_SERVER}
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = f"{meta['generateName']}{self.new_suffix()}"
        name = _checked_name(resource, str(meta.get("name", "")))
        if self.checks_namespaces and resource.namespaced:
            self.get(Target(resource=NAMESPACES, name=target.namespace))
        if self.store.get(resource, (target.namespace, name)) is not None:
            raise already_exists(resource, name)
        meta["uid"] = self.new_uid()
        meta["creationTimestamp"] = timestamp(self.clock())
        if resource.has_status:
            meta["generation"] = 1
        obj = {**document, "metadata": meta}
        _check_annotations(target.resource, obj)
        return self._write(target, self._with_defaults(target, obj))

    def _with_defaults(self, target: Target, obj: JsonObject) -> JsonObject:
        """Return a new object with the fields that the server fills in; StatusError if it is wrong."""
        resource = target.resource
        if resource.custom:
            obj = new_object(obj, has_status=resource.has_status)
        elif resource == PODS:
            obj = new_pod(obj, self._priority_of(target, obj), self.tolerated_s)
        elif resource in WORKLOADS:
            check_workload(resource, obj, None)
            obj = {**obj, "status": {}}
        elif resource == RESOURCE_CLAIMS:
            obj = {**obj, "status": {}}
        elif resource == RESOURCE_SLICES:
            obj = self._stored_slice(obj, None)
        elif resource == NAMESPACES:
            obj = new_namespace(obj)
        elif resource == CUSTOM_RESOURCE_DEFINITIONS:
            obj = checked_definition(obj, timestamp(self.clock()))
        return obj

    def update(self, target: Target, document: JsonObject) -> JsonObject:
        """Replace an object, or of a subresource `status` its status."""
        old = self.get(target)
        document = _decoded(target.resource, document)
        if name_of(document) != target.name:
            found = name_of(document)
            msg = f"the name of the object ({found}) does not match the name on the URL ({target.name})"
            raise bad_request(msg)
        if not metadata(document).get("resourceVersion") and not target.resource.unconditional_update:
            why = "Invalid value: 0: must be specified for an update"
            raise invalid(target.resource, target.name, "metadata.resourceVersion", "FieldValueInvalid", why)
        return self._replace(target, old, document)

    def patch(self, target: Target, merge: Callable[[JsonObject], JsonObject]) -> JsonObject:
        """Replace an object by the result of `merge`."""
        old = self.get(target)
        new = _decoded(target.resource, merge(old))
        if name_of(new) != target.name:
            raise bad_request("the name of the object may not be changed by a patch")
        return self._replace(target, old, new)

    def delete(self, target: Target, options: DeleteOptions) -> JsonObject:
        """Delete an object.

        A pod on a node goes gracefully: it stays, with a `deletionTimestamp`, until its kubelet deletes it
        with a grace period of 0.
        """
        if options.dry_run:
            return self.draft().delete(target, replace(options, dry_run=False))
        old = self.get(target)
        options.preconditions.check(target.resource, old)
        if target.resource != PODS:
            for contained in self._contents(old, target):
                self.delete(contained, DeleteOptions())
            if options.orphans:
                self._release(old)
            self.store.remove(target.resource, (target.namespace, target.name))
            return success(about={**details(target.resource, target.name), "uid": uid_of(old)})
        grace_s = grace_period_s(old, options.grace_period_s)
        if grace_s == 0:
            return self.store.remove(PODS, (target.namespace, target.name))
        return self._write(target, self._terminating(old, grace_s))

    def _release(self, owner: JsonObject) -> None:
        """Leave the pods and sets that an object owns without it, before it is deleted."""
        for resource in (PODS, *WORKLOADS):
            for obj in self.store.items(resource, namespace_of(owner)):
                references = metadata(obj).get("ownerReferences") or []
                remaining = [reference for reference in references if reference["uid"] != uid_of(owner)]
                if remaining != references:
                    meta = {**metadata(obj), "ownerReferences": remaining}
                    self.store.put(resource, {**obj, "metadata": meta})

    def _contents(self, obj: JsonObject, target: Target) -> list[Target]:
        """List the objects of a namespace, or of a custom resource's definition."""
        if target.resource == NAMESPACES:
            resources = [resource for resource in self.store.resources() if resource.namespaced]
            namespace = target.name
        elif target.resource == CUSTOM_RESOURCE_DEFINITIONS:
            resources, namespace = [resource_of(obj)], ""
        else:
            return []
        return [
            Target(resource=resource, namespace=namespace_of(item), name=name_of(item))
            for resource in resources
            for item in self.store.items(resource, namespace)
        ]

    def bind(self, target: Target, binding: JsonObject) -> JsonObject:
        """Assign a pod to a node, and merge the Binding's annotations into the pod, in one write.

        Source: `pkg/registry/core/pod/storage/storage.go`, BindingREST. The nomination goes with it since
        Kubernetes 1.35 (feature gate `ClearingNominatedNodeNameAfterBinding`). The pod is not validated then:
        annotations that are too long with the Binding's have every later write refused.
        """
        check_shape("Binding", binding)
        node = _binding_target(target, binding)
        pod = self.get(target)
        requested = metadata(binding)
        Preconditions(
            uid=str(requested.get("uid") or ""), resource_version=str(requested.get("resourceVersion") or "")
        ).check(PODS, pod)
        if is_terminating(pod):
            why = f"pod {target.name} is being deleted, cannot be assigned to a host"
            raise conflict(PODS, target.name, why, "binding")
        if assigned := spec_of(pod).get("nodeName"):
            why = f'pod {target.name} is already assigned to node "{assigned}"'
            raise conflict(PODS, target.name, why, "binding")
        try:
            self._write(target, self._bound(pod, node, requested.get("annotations") or {}))
        except StatusError as error:  # whatever it is, as BindingREST.Create has it
            raise conflict(PODS, target.name, error.message, "binding") from error
        return success(201)

    def evict(self, target: Target, eviction: JsonObject) -> JsonObject:
        """Delete a pod as its disruption budgets allow."""
        check_shape("Eviction", eviction)
        check_eviction(target, eviction)
        options = parse_delete_options(eviction.get("deleteOptions") or {})
        if options.dry_run:
            return self.draft().evict(target, {**eviction, "deleteOptions": {}})
        pod = self.get(target)
        options.preconditions.check(PODS, pod)
        spend_budget(self.store, pod)
        self.delete(target, options)
        return success(201)

    def _priority_of(self, target: Target, pod: JsonObject) -> JsonObject:
        """Return the fields set by the pod's PriorityClass; StatusError 403 if no class has that name.

        Source: `plugin/pkg/admission/priority`. There is no class that is everybody's default.
        """
        name = str(spec_of(pod).get("priorityClassName") or "")
        if not name:
            return {}
        found = self.store.get(PRIORITY_CLASSES, ("", name))
        if found is None:
            raise denied(target.resource, name_of(pod), f"no PriorityClass with name {name} was found")
        policy = found.get("preemptionPolicy", "PreemptLowerPriority")
        return {"priority": found.get("value", 0), "preemptionPolicy": policy}

    def _bound(self, pod: JsonObject, node: str, annotations: dict[str, str]) -> JsonObject:
        meta = {**metadata(pod), "annotations": {**(metadata(pod).get("annotations") or {}), **annotations}}
        if not meta["annotations"]:
            del meta["annotations"]
        scheduled = {
            "type": "PodScheduled",
            "status": "True",
            "lastTransitionTime": timestamp(self.clock()),
        }
        status = {name: value for name, value in pod["status"].items() if name != "nominatedNodeName"}
        conditions = [c for c in status.get("conditions", []) if c["type"] != "PodScheduled"]
        return {
            **pod,
            "metadata": meta,
            "spec": {**pod["spec"], "nodeName": node},
            "status": {**status, "conditions": [*conditions, scheduled]},
        }

    def _terminating(self, pod: JsonObject, grace_s: int) -> JsonObject:
        """A later request may shorten the time, never lengthen it (`rest.BeforeDelete`)."""
        meta = dict(metadata(pod))
        left_s = meta.get("deletionGracePeriodSeconds")
        if left_s is not None:
            if grace_s >= left_s:
                return pod
            deletion_time = parse_timestamp(meta["deletionTimestamp"]) - timedelta(seconds=left_s)
        else:
            deletion_time = self.clock()
            meta["generation"] = meta.get("generation", 0) + 1
        meta["deletionTimestamp"] = timestamp(deletion_time + timedelta(seconds=grace_s))
        meta["deletionGracePeriodSeconds"] = grace_s
        return {**pod, "metadata": meta}

    def _replace(self, target: Target, old: JsonObject, document: JsonObject) -> JsonObject:
        resource, requested = target.resource, metadata(document)
        Preconditions(uid=str(requested.get("uid") or "")).check(resource, old)
        if requested.get("resourceVersion") not in {None, "", metadata(old)["resourceVersion"]}:
            raise modified(resource, target.name)
        preserved = {name: metadata(old)[name] for name in _OWNED_BY_SERVER if name in metadata(old)}
        new = {**document, "metadata": {**requested, **preserved}}
        _check_annotations(resource, new)
        if resource.custom:
            return self._write(target, updated(target, old, new))
        if resource == RESOURCE_SLICES:
            return self._write(target, self._stored_slice(new, old))
        if target.subresource == "status":
            new = {**old, "metadata": new["metadata"], "status": document.get("status") or {}}
        elif resource.has_status:
            new = {**new, "status": old.get("status") or {}}
        if resource == CUSTOM_RESOURCE_DEFINITIONS:
            new = checked_definition(new, timestamp(self.clock()))
        if resource == PODS and not target.subresource:
            priority = {name: spec_of(old)[name] for name in _PRIORITY_FIELDS if name in spec_of(old)}
            new = {**new, "spec": complete_spec(new, priority)}
            check_spec_update(old, new)
        _check_update(resource, old, new)
        if resource.has_status and spec_of(new) != spec_of(old):
            new["metadata"]["generation"] = preserved.get("generation", 0) + 1
        return self._write(target, new)

    def _stored_slice(self, slice_: JsonObject, old: JsonObject | None) -> JsonObject:
        now = timestamp(self.clock())
        try:
            return stored_slice(slice_, old, gates_off=self.gates_off, now=now)
        except ValueError as error:  # of a quantity
            raise bad_request(f"ResourceSlice in version v1 cannot be handled: {error}") from error

    def _write(self, target: Target, obj: JsonObject) -> JsonObject:
        resource = target.resource
        meta = {"resourceVersion": "0", **metadata(obj)}
        if resource.namespaced:
            meta["namespace"] = target.namespace
        typed = {**obj, "kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta}
        if len(msgspec.json.encode(typed)) > MAX_OBJECT_BYTES:
            raise too_large_for_etcd()
        return self.store.put(resource, as_stored(typed, _kind_of(resource)))


def _decoded(resource: ResourceType, document: JsonObject) -> JsonObject:
    """Return a request's object in the form that the server stores; StatusError 400 for a malformed one."""
    check_shape(resource.kind, document)
    try:
        return with_defaults(as_stored(document, _kind_of(resource)), _kind_of(resource))
    except ValueError as error:  # of a quantity or a time
        kind, version = resource.kind, resource.version
        raise bad_request(f'{kind} in version "{version}" cannot be handled as a {kind}: {error}') from error


def _kind_of(resource: ResourceType) -> str:
    """Return the kind whose fields are known; empty for a custom resource, even if its kind is named so."""
    return "" if resource.custom else resource.kind


def _checked_name(resource: ResourceType, name: str) -> str:
    if not name:
        why = "Required value: name or generateName is required"
        raise invalid(resource, name, "metadata.name", "FieldValueRequired", why)
    if len(name) > _MAX_NAME or not _SUBDOMAIN.fullmatch(name):
        why = f'Invalid value: "{name}": {_SUBDOMAIN_RULE}'
        raise invalid(resource, name, "metadata.name", "FieldValueInvalid", why)
    return name


def _check_update(resource: ResourceType, old: JsonObject, new: JsonObject) -> None:
    """Refuse (StatusError 422) a change that a kind does not allow."""
    if resource in WORKLOADS:
        check_workload(resource, new, old)
    if resource == RESOURCE_CLAIMS and spec_of(new) != spec_of(old):
        raise invalid(resource, name_of(old), "spec", "FieldValueInvalid", "field is immutable")


def _check_annotations(resource: ResourceType, obj: JsonObject) -> None:
    """Refuse (StatusError 422) too long ones (source: `ValidateAnnotationsSize`, apimachinery)."""
    annotations = metadata(obj).get("annotations") or {}
    if sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items()) > _MAX_ANNOTATIONS:
        why = f"Too long: may not be more than {_MAX_ANNOTATIONS} bytes"
        raise invalid(resource, name_of(obj), "metadata.annotations", "FieldValueTooLong", why)


def _binding_target(target: Target, binding: JsonObject) -> str:
    if name_of(binding) not in {"", target.name}:
        raise bad_request("name in URL does not match name in Binding object")
    reference = binding.get("target") or {}
    if reference.get("kind", "Node") not in {"", "Node"}:
        why = f'Unsupported value: "{reference["kind"]}": supported values: "Node", "<empty>"'
        raise invalid(PODS, target.name, "target.kind", "FieldValueNotSupported", why)
    if not reference.get("name"):
        raise invalid(PODS, target.name, "target.name", "FieldValueRequired", "Required value")
    return str(reference["name"])
