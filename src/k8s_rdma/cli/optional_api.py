"""The API server, for commands that can answer a part without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k8s_rdma.cli.service_proxy import NoAnswerError
from k8s_rdma.errors import MalformedError
from k8s_rdma.kube.documents import Documents

if TYPE_CHECKING:
    from contextlib import ExitStack

    from k8s_rdma.errors import K8sRdmaError
    from k8s_rdma.kube.selection import KubeconfigSelection


def optional_api(
    stack: ExitStack, kubeconfig: KubeconfigSelection, *, is_needed: bool = False
) -> tuple[Documents | None, str]:
    """Connect to the API server; without credentials return None, and the reason.

    MalformedError if credentials are needed, or if a kubeconfig that the command line names cannot be used.
    """
    try:
        return stack.enter_context(Documents(kubeconfig)), ""
    except MalformedError as error:
        if kubeconfig.is_explicit or is_needed:
            raise
        return None, error.message


def with_problem(error: K8sRdmaError, problem: str) -> K8sRdmaError:
    """Join the API server's problem, if there is one, to the error of an extender that does not answer."""
    if not problem or not isinstance(error, NoAnswerError):
        return error
    return NoAnswerError(f"{error.message}; {problem}", details=error.details)
