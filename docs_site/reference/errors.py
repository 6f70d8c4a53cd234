"""The page of reasons: the name of each cause of refusal or failure in each protocol."""

from __future__ import annotations

from docs_site.reference.tables import code, table
from k8s_rdma.errors import STATUS

GRPC_NAMES = {
    3: "INVALID_ARGUMENT",
    5: "NOT_FOUND",
    6: "ALREADY_EXISTS",
    7: "PERMISSION_DENIED",
    8: "RESOURCE_EXHAUSTED",
    9: "FAILED_PRECONDITION",
    10: "ABORTED",
    11: "OUT_OF_RANGE",
    13: "INTERNAL",
    14: "UNAVAILABLE",
}
"""google.rpc.Code."""

HEAD = """# Reasons and error codes

Made of the code. One cause has one name, in logs (`reason`), metrics and `explain`, and one code in each
protocol. What to do about a CNI error: [errors](../cni.md#errors); about a pod that is not placed:
[refusals](../extender-refusals.md#refusals).
"""


def errors_page() -> str:
    """Return every reason with its codes."""
    rows = [
        [code(reason.value), str(status.cni), str(status.http), code(GRPC_NAMES[status.grpc])]
        for reason, status in STATUS.items()
    ]
    return f"{HEAD}\n{table(('reason', 'CNI', 'HTTP', 'gRPC'), rows)}"
