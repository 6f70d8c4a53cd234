"""Errors of calls of the Kubernetes API, by their effect on a write. This module imports no client."""

from __future__ import annotations

from k8s_rdma.errors import K8sRdmaError, Reason

TOO_LARGE = 413
"""The status of a refusal since the object would be longer than etcd takes (1.5 MiB), or the request than the
API server does."""


class ApiRefusedError(K8sRdmaError):
    """The API server refuses the call (HTTP 4xx); `status` is the code, and no object was written.

    `TOO_LARGE` also if it answers 409 or 500 for that reason.

    retry_after_s: the time to wait that it demands; 0 if it demands no wait.
    """

    reason = Reason.API_FAILURE

    def __init__(self, message: str, *, status: int, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


class PodGroupVersionError(ApiRefusedError):
    """The API server serves PodGroups in no version that is known here. served: those that it has."""

    def __init__(self, *, served: tuple[str, ...], readable: tuple[str, ...]) -> None:
        if served:
            why = f"this API server has PodGroups as scheduling.k8s.io/{', '.join(served)} only"
            advice = f"this k8s-rdma knows {', '.join(readable)}: install one that knows it"
        else:
            why = "this API server has no PodGroups of scheduling.k8s.io"
            advice = f"turn its feature gate GenericWorkload on, with one of {', '.join(readable)}"
        super().__init__(f"{why}; {advice}", status=404)
        self.served = served


class ApiUnreachableError(K8sRdmaError):
    """No connection to the API server could be made; no object was written."""

    reason = Reason.API_FAILURE


class ApiUncertainError(K8sRdmaError):
    """No usable answer (timeout, connection lost, HTTP 5xx); a write may have happened, or happen yet."""

    reason = Reason.API_FAILURE


API_ERRORS = (ApiRefusedError, ApiUnreachableError, ApiUncertainError)
