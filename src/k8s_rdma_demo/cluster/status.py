"""`metav1.Status`: the API's error responses.

The messages are those of `k8s.io/apimachinery/pkg/api/errors`, since clients and users read them.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from k8s_rdma.errors import K8sRdmaError, Reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from k8s_rdma_demo.cluster.objects import JsonObject, ResourceType, Target


class StatusError(K8sRdmaError):
    """A request that the API refuses.

    code: the HTTP status. cause: the `reason` of the Status object, e.g. `NotFound`.
    about: its `details`.
    """

    reason = Reason.API_FAILURE

    def __init__(self, code: int, cause: str, message: str, about: JsonObject | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.cause = cause
        self.about = about

    def document(self) -> JsonObject:
        """Return the Status object."""
        document: JsonObject = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        }
        if self.cause:
            document["reason"] = self.cause
        if self.about:
            document["details"] = self.about
        document["code"] = self.code
        return document


def success(code: int = HTTPStatus.OK, about: JsonObject | None = None) -> JsonObject:
    """The Status object of something done that returns no object."""
    document: JsonObject = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if about:
        document["details"] = about
    if code != HTTPStatus.OK:
        document["code"] = code
    return document


def details(resource: ResourceType, name: str) -> JsonObject:
    """The details of a Status: the object concerned."""
    about: JsonObject = {"name": name} if name else {}
    if resource.group:
        about["group"] = resource.group
    about["kind"] = resource.plural
    return about


def not_found(resource: ResourceType, name: str) -> StatusError:
    """Return the error for a missing object: 404."""
    message = f'{resource.qualified} "{name}" not found'
    return StatusError(404, "NotFound", message, details(resource, name))


def unauthorized() -> StatusError:
    """Return the error for credentials of an unknown user: 401."""
    return StatusError(401, "Unauthorized", "Unauthorized")


def forbidden(user: str, verb: str, target: Target) -> StatusError:
    """403: no role allows this user to do that (source: `endpoints/handlers/responsewriters/errors.go`)."""
    resource = target.resource
    resource_path = f"{resource.plural}/{target.subresource}" if target.subresource else resource.plural
    scope = f'in the namespace "{target.namespace}"' if target.namespace else "at the cluster scope"
    why = f'User "{user}" cannot {verb} resource "{resource_path}" in API group "{resource.group}" {scope}'
    named = f'{resource.qualified} "{target.name}"' if target.name else resource.qualified
    return StatusError(403, "Forbidden", f"{named} is forbidden: {why}", details(resource, target.name))


def denied(resource: ResourceType, name: str, why: str) -> StatusError:
    """403: admission refuses the object."""
    message = f'{resource.qualified} "{name}" is forbidden: {why}'
    return StatusError(403, "Forbidden", message, details(resource, name))


def no_such_path() -> StatusError:
    """Return the error for a missing resource: 404."""
    return StatusError(404, "NotFound", "the server could not find the requested resource", {})


def already_exists(resource: ResourceType, name: str) -> StatusError:
    """409: an object of that name is there."""
    message = f'{resource.qualified} "{name}" already exists'
    return StatusError(409, "AlreadyExists", message, details(resource, name))


def conflict(resource: ResourceType, name: str, why: str, subresource: str = "") -> StatusError:
    """409: the object is not in the state that the request is for."""
    qualified = f"{resource.qualified}/{subresource}" if subresource else resource.qualified
    message = f'Operation cannot be fulfilled on {qualified} "{name}": {why}'
    return StatusError(409, "Conflict", message, {**details(resource, name), "kind": qualified})


def modified(resource: ResourceType, name: str) -> StatusError:
    """409: somebody else wrote the object since the caller read it."""
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(resource, name, why)


def bad_request(message: str) -> StatusError:
    """400: the request cannot be understood."""
    return StatusError(400, "BadRequest", message)


def invalid(resource: ResourceType, name: str, field: str, kind: str, why: str) -> StatusError:
    """422: a field of the object is wrong. kind: `FieldValueInvalid`, `FieldValueRequired`, ..."""
    qualified = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    message = f'{qualified} "{name}" is invalid: {field}: {why}'
    causes = [{"reason": kind, "message": why, "field": field}]
    about = {**details(resource, name), "kind": resource.kind, "causes": causes}
    return StatusError(422, "Invalid", message, about)


def expired(requested: int, oldest: int) -> StatusError:
    """410: the changes after that resourceVersion are no longer known; list again."""
    return StatusError(410, "Expired", f"too old resource version: {requested} ({oldest})")


def too_large(limit: int) -> StatusError:
    """413: the request's body is longer than the server takes."""
    return StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {limit}")


def too_large_for_etcd() -> StatusError:
    """500: the object is longer than etcd takes (`--max-request-bytes`). There is no `reason`."""
    return StatusError(500, "", "etcdserver: request is too large")


def too_many_requests(message: str, budget: str) -> StatusError:
    """429: a disruption budget allows no further eviction."""
    why = f"The disruption budget {budget} does not allow another eviction now"
    causes = [{"reason": "DisruptionBudget", "message": why}]
    return StatusError(429, "TooManyRequests", message, {"causes": causes})


def unsupported_body(accepted: Sequence[str]) -> StatusError:
    """415: a content type that the request may not have."""
    message = (
        "the body of the request was in an unknown format - accepted media types include: "
        f"{', '.join(accepted)}"
    )
    return StatusError(415, "UnsupportedMediaType", message)


def no_server_side_apply() -> StatusError:
    """415: an object that is applied by the server, which keeps no owners of fields here."""
    message = (
        "this simulated API server keeps no owners of fields; use kubectl apply without --server-side, or "
        "kubectl replace"
    )
    return StatusError(415, "UnsupportedMediaType", message)


def no_kubelet(subresource: str) -> StatusError:
    """405: a request that only a kubelet could answer."""
    message = (
        f"pods/{subresource} is not served: this simulated API server reaches no kubelet; a pod here is a "
        "network namespace, which nsenter(1) enters"
    )
    return StatusError(405, "MethodNotAllowed", message)


def unavailable(message: str) -> StatusError:
    """503: the target of a forwarded request gives no answer."""
    return StatusError(503, "ServiceUnavailable", message)


def method_not_allowed() -> StatusError:
    """405: the resource has no such verb."""
    return StatusError(
        405, "MethodNotAllowed", "the server does not allow this method on the requested resource"
    )
